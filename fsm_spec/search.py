"""Search every state that composed requests reach, breadth first, in plain Python.

The moves are in `composition.py`. The first break of a property is a shortest one, as states are met level by level.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from fsm_spec import properties

if TYPE_CHECKING:
    from fsm_spec.composition import Composition, Interleaving, Move, State


# Where requests have many outcomes, moves and not states take the time: ten a state are usual for small parameters.
MOVES_A_STATE: Final = 10
TOLD_EVERY: Final = 256


class Fault(NamedTuple):
    """Hold how a property breaks: the states from the start on, the move that breaks it if one does, and the reason."""

    path: list[State]
    move: Move | None = None
    why: str = ""


@dataclass
class Found:
    """Hold what a search covered: counts, the first fault of each broken property, and the sentences shown."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = True
    broken: dict[str, Fault] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)


def search(
    composed: Composition | Interleaving, most_states: int, tick: Callable[[int], None] | None = None
) -> Found:
    """Search all reachable states breadth first; `tick` hears the number of states now and then.

    Beyond `most_states`, or ten times as many moves, the search is given up and is not `complete`.
    The first break of a property is its shortest one; states behind a broken property are not searched.
    """
    return _Search(composed, most_states, tick).run()


class _Search:
    def __init__(
        self, composed: Composition | Interleaving, most_states: int, tick: Callable[[int], None] | None
    ) -> None:
        self.composed = composed
        self.most_states = most_states
        self.tick = tick
        self.numbers: dict[State, int] = {composed.start: 0}
        self.states: list[State] = [composed.start]
        self.parents: list[int] = [-1]
        self.depths: list[int] = [0]
        # Successors by the scheduler alone: arrivals and aborts happen at most once a request, so no cycle has one.
        self.next: list[list[int]] = []
        self.moves = 0
        self.found = Found()
        self.liveness = properties.eventually(composed.table)

    def run(self) -> Found:
        started = time.perf_counter()
        found = self.found
        at = 0
        while at < len(self.states) and found.complete:
            self._expand(at)
            at += 1
            if self.moves > MOVES_A_STATE * self.most_states and at < len(self.states):
                found.complete = False
            if self.tick and at % TOLD_EVERY == 0:
                self.tick(len(self.states))
        found.states = len(self.states)
        found.depth = self.depths[-1]
        if found.complete and self.liveness not in found.broken:
            self._livelock()
        found.seconds = time.perf_counter() - started
        return found

    def _expand(self, at: int) -> None:
        state, found = self.states[at], self.found
        onward: dict[int, None] = {}
        reached: set[State] = set()
        moved = False
        for move in self.composed.moves(state):
            self.moves += 1
            for sentence in move.broken:
                if sentence not in found.broken:
                    found.broken[sentence] = Fault(self._path(at), move)
            moved = moved or (move.by_scheduler and (move.after != state or bool(move.broken)))
            if move.broken:
                continue
            found.shown.update(move.shown)
            reached.add(move.after)
            number = self._number(move.after, at)
            if move.by_scheduler:
                onward[number] = None
        found.transitions += len(reached)
        self.next.append(list(onward))
        unfinished = any(entry is not None and entry.columns for entry in state)
        if unfinished and not moved and self.liveness not in found.broken:
            found.broken[self.liveness] = Fault(
                self._path(at), None, "deadlock: no move changes anything any more"
            )

    def _number(self, state: State, parent: int) -> int:
        number = self.numbers.get(state)
        if number is None:
            number = self.numbers[state] = len(self.states)
            self.states.append(state)
            self.parents.append(parent)
            self.depths.append(self.depths[parent] + 1)
            if number >= self.most_states:
                self.found.complete = False
        return number

    def _path(self, at: int) -> list[State]:
        path = []
        while at >= 0:
            path.append(self.states[at])
            at = self.parents[at]
        return path[::-1]

    def _livelock(self) -> None:
        """Find the nearest cycle: no state of it emits, as `emitted` never falls, so it can repeat for ever."""
        on_cycle = self._peeled()
        for number in sorted(on_cycle):
            cycle = self._cycle(number, on_cycle)
            if cycle:
                path = self._path(number) + [self.states[node] for node in cycle[1:]]
                back = f"livelock: the last {len(cycle) - 1} moves can repeat for ever without a token"
                self.found.broken[self.liveness] = Fault(path, None, back)
                return

    def _peeled(self) -> set[int]:
        """Remove states that cannot reach a cycle, or that no cycle reaches, layer by layer."""
        before: list[list[int]] = [[] for _ in self.states]
        for number, onward in enumerate(self.next):
            for successor in onward:
                before[successor].append(number)
        left = set(range(len(self.next)))
        for forth, back in ((self.next, before), (before, self.next)):
            counts = {number: sum(other in left for other in forth[number]) for number in left}
            leaves = [number for number, count in counts.items() if not count]
            while leaves:
                number = leaves.pop()
                left.discard(number)
                for other in back[number]:
                    if other in left:
                        counts[other] -= 1
                        if not counts[other]:
                            leaves.append(other)
        return left

    def _cycle(self, start: int, within: set[int]) -> list[int]:
        """Give the shortest way from a state back to itself, both ends included; nothing if there is none."""
        parents = {start: -1}
        level = [start]
        while level:
            deeper = []
            for number in level:
                for successor in self.next[number]:
                    if successor == start:
                        way = [start, number]
                        while way[-1] != start:
                            way.append(parents[way[-1]])
                        return way[::-1]
                    if successor in within and successor not in parents:
                        parents[successor] = number
                        deeper.append(successor)
            level = deeper
        return []
