"""Requests that share a prompt's pages: the first to prefill them leaves them to those that come later.

All prompts start alike. The full pages of a prefilled prompt are one chain; a request that is admitted may find any
front part of it filled (`admit(hit)`), and holds these pages together with whoever else does. A page of the chain
returns to the pool when its last holder has gone. Both searches' counts without sharing are those of `composition.py`.
Who prefills a prompt while another one does keeps pages of its own.

A late host (`lag.py`) finds a prompt's pages once it has seen its prefill: one iteration later, or when it waits for
the round in flight.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fsm_spec import life_cycle
from fsm_spec.checker import properties
from fsm_spec.checker.composition import Composition
from fsm_spec.checker.lag import HostView
from fsm_spec.language.expression import evaluate
from fsm_spec.policy import fill_slots, plan
from fsm_spec.prefix_cache import counted_before, lookahead, usable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from fsm_spec.checker.automaton import Automaton, Event
    from fsm_spec.checker.composition import Held, Move, Option, Part, State
    from fsm_spec.policy import Plan, Waiting
    from fsm_spec.step import Columns


def chain_of(entries: Sequence[Held | None]) -> int:
    """Count the pages of the chain: as many as the request that holds most of it."""
    return max((entry.shared for entry in entries if entry), default=0)


class SharedPrefix(Composition):
    """Compose requests with a prefix cache: hits of every length that the chain has, or none."""

    def _view(self, lag: int) -> HostView:
        return HostView(self.automaton, lag, books=lag > 0)

    def _landed(self, state: State) -> tuple[State, tuple[Part, ...]]:
        landed, gone = super()._landed(state)
        return self._left(state, landed), gone

    def _hits(self, state: State) -> Iterator[Mapping[int, int]]:
        longest = {
            index: self._most_hit(entry, chain_of(state))
            for index, entry in enumerate(state)
            if entry and entry.columns and entry.columns[0] == self._wait
        }
        # Requests that wait together find the same part of the chain, as far as their text reaches.
        for most in range(max(longest.values(), default=0) + 1):
            yield {index: min(most, hit) for index, hit in longest.items()}

    def _most_hit(self, entry: Held, chain: int) -> int:
        """Give the most pages that a waiting request can find: full ones, and a row is left to run for its logits.

        One that is done at once looks for none.
        """
        named = self.automaton.columns(entry.columns)
        if named["limit"] <= named["emitted"]:
            return 0
        fill = fill_slots(self.table, named["prompt"], named["emitted"])
        return usable(self.table, self.pool.page_size, min(chain, self.full_pages(named["prompt"])), fill)

    def full_pages(self, prompt: int) -> int:
        """Count the pages of a prompt that are left to others: full ones, whose KV no later token decides.

        A draft model may read a token behind a slot, so that the slot is written once more (`prefix_cache.lookahead`).
        """
        return max(prompt - lookahead(self.table), 0) // self.pool.page_size

    def _decided(
        self, live: list[Held], columns: Columns, pages: NDArray[np.int32], waiting: list[Waiting]
    ) -> Plan:
        counted = self._counted_before(live)
        # Pages of the chain that are counted with a request return with it.
        mine = np.array([entry.shared for entry in live], np.int32) - counted
        decision = plan(self.table, self.policy, self.pool, columns, pages + mine, waiting, counted)
        stays = np.ones(len(live), np.bool_)
        stays[list(decision.preempt)] = False
        return replace(decision, pages=decision.pages - np.where(stays, mine, 0).astype(np.int32))

    @staticmethod
    def _counted_before(live: Sequence[Held]) -> NDArray[np.int32]:
        """Count each request's pages of the chain that an older one holds as well, and is counted with."""
        return np.array(counted_before(range(entry.shared) for entry in live), np.int32)

    def in_common(self, state: State) -> int:
        """Count the pages of the chain: held, by one request or several, beside what is each one's own."""
        return chain_of(state)

    def held_in_common(self, choice: Sequence[Option]) -> int:
        """Count the pages of the chain while requests do what is chosen: those who go back to wait hold none."""
        staying = [option for option in choice if option.after.columns[:1] != (self._wait,)]
        return max((option.shared for option in staying), default=0)

    def _move(self, state: State, moving: Sequence[int], choice: Sequence[Option], tier: int | None) -> Move:
        move = super()._move(state, moving, choice, tier)
        # While the move lasts, newcomers hold the part of the chain that they found.
        held = {index: entry.shared for index, entry in enumerate(state) if entry}
        held.update((index, option.shared) for index, option in zip(moving, choice, strict=True))
        written = any(self._writes_shared(part, held, move) for part in move.parts)
        broken = (*move.broken, properties.SHARED) if written else move.broken
        return move._replace(after=self._chained(state, move), broken=broken)

    def _writes_shared(self, part: Part, shared: dict[int, int], move: Move) -> bool:
        """Tell whether a request writes a page that another one holds as well."""
        automaton = self.automaton_of(move)
        slots = [slot for event in part.events for slot in _written(automaton, event)]
        page = min(slots, default=0) // self.pool.page_size
        mine = shared.get(part.request, 0)
        return bool(slots) and page < mine and sum(page < others for others in shared.values()) > 1

    def _chained(self, state: State, move: Move) -> State:
        """Let requests leave the pages of prompts that the host knows to be prefilled."""
        if self.policy.lag:
            return self._left(state, move.after)
        after = list(move.after)
        for part in move.parts:
            if any(event.name == life_cycle.FIRST for event in part.events):
                self._leave(after, part.request, self.automaton.columns(part.events[0].before)["prompt"])
        return tuple(after)

    def _left(self, state: State, after: State) -> State:
        """Let requests that had a prefill in flight in `state` leave the pages of their prompts."""
        entries = list(after)
        for index, entry in enumerate(state):
            if entry and entry.columns and self.view.prefilled(entry.columns, entry.seen):
                self._leave(entries, index, self.automaton.columns(entry.columns)["prompt"])
        return tuple(entries)

    def _leave(self, after: list[Held | None], index: int, prompt: int) -> None:
        """Let a request leave the full pages of its prompt to others, where they go on the chain."""
        entry, full, chain = after[index], self.full_pages(prompt), chain_of(after)
        if entry and entry.columns and entry.columns[0] != self._wait and full > chain == entry.shared:
            after[index] = entry._replace(pages=entry.pages - (full - chain), shared=full)


def _written(automaton: Automaton, event: Event) -> Iterator[int]:
    """Yield the lowest slot of every segment that an event writes."""
    before = automaton.columns(event.before)
    if event.name in (life_cycle.CHUNK, life_cycle.FIRST):
        yield before["kv"]
    state = automaton.table.states[event.before[0]]
    if event.name == state.name and state.forward is not None:
        for segment in automaton.table.forwards[state.forward].segments:
            if evaluate(segment.count, before):
                yield evaluate(segment.slot, before)
