"""What happened in each iteration of a run step by step: its launches, and the round or chunk of every request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from fsm_spec.launch import Launch

MOST_SLICES = 200_000  # of launches and of requests; a viewer takes no more with ease


class Launched(NamedTuple):
    """Describe one launch: when it ran, its requests by state, the prompt tokens that rode along, and its rows."""

    start_ns: int
    end_ns: int
    states: dict[str, int]
    chunk_tokens: int
    rows: int


class Turn(NamedTuple):
    """Describe what one request did in an iteration: the states it ran, or the prompt tokens it prefilled."""

    request: int
    start_ns: int
    end_ns: int
    states: tuple[str, ...]
    chunk_tokens: int
    emitted: int


@dataclass
class RoundLog:
    """Collect iterations, until there are too many; `until_ns` is then the time of the first that is left out."""

    iterations: list[tuple[int, int, list[Launched]]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    until_ns: int | None = None
    _launched: list[Launched] = field(default_factory=list)
    _states: dict[int, list[str]] = field(default_factory=dict)
    _chunks: dict[int, int] = field(default_factory=dict)

    def launch(self, launch: Launch, start_ns: int, ns: int, rows: int) -> None:
        """Note a launch of the present iteration."""
        states = {group.state: len(group.requests) for group in launch.groups}
        tokens = sum(chunk.tokens for chunk in launch.chunks)
        self._launched.append(Launched(start_ns, start_ns + ns, states, tokens, rows))
        for group in launch.groups:
            for request in group.requests.tolist():
                self._states.setdefault(request, []).append(group.state)
        for chunk in launch.chunks:
            self._chunks[int(chunk.request)] = chunk.tokens

    def close(self, start_ns: int, end_ns: int, emitted: dict[int, int]) -> None:
        """End the present iteration; `emitted` are the tokens that its requests got."""
        if len(self.turns) + len(self.iterations) >= MOST_SLICES:
            self.until_ns = start_ns if self.until_ns is None else self.until_ns
        else:
            self.iterations.append((start_ns, end_ns, self._launched))
            for request in sorted({*self._states, *self._chunks}):
                states = tuple(self._states.get(request, ()))
                tokens = self._chunks.get(request, 0)
                self.turns.append(Turn(request, start_ns, end_ns, states, tokens, emitted.get(request, 0)))
        self._launched, self._states, self._chunks = [], {}, {}

    @property
    def requests(self) -> list[int]:
        """List the requests of the present iteration."""
        return sorted({*self._states, *self._chunks})
