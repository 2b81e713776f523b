"""Requests composed: the states that a few requests share, and every move that leads from one to the next.

Requests arrive in order and the scheduler is the one that simulator and executor call. A move is an arrival, an abort,
or one iteration: the plan, then every combination of what its requests can do. Requests of abstract models
move one event at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from fsm_spec import life_cycle, properties
from fsm_spec.lag import HostView
from fsm_spec.oracle import holding
from fsm_spec.policy import ADMISSIONS, Plan, Policy, Pool, Waiting, admits, plan
from fsm_spec.table import END, WAIT

if TYPE_CHECKING:
    from fsm_spec.automaton import Automaton, Event, Values, Way


class Held(NamedTuple):
    """Hold a request that has arrived and not ended: its columns, its pages, and what a late host has seen of it.

    `seen` is empty where the host sees the columns as they are.
    """

    columns: Values
    pages: int = 0
    seen: Values = ()

    @property
    def visible(self) -> Values:
        """Give the columns as the host sees them."""
        return self.seen or self.columns


# A request that ended holds nothing and moves no more: all of them are one value, which keeps the state space small.
ENDED: Final = Held((), 0)
# One entry a request, in order of arrival; None: not arrived yet.
State = tuple[Held | None, ...]


class Part(NamedTuple):
    """Hold what one request does in a move: its events, and its pages before, during and after."""

    request: int
    events: tuple[Event, ...]
    pages: tuple[int, int, int] = (0, 0, 0)


class _Option(NamedTuple):
    """Hold one thing a request can do in an iteration; `pages` are owned while it runs."""

    after: Held
    pages: int
    part: Part | None
    broken: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    lost: bool = False


class Move(NamedTuple):
    """Hold one move: what each request does that takes part, the state after, properties broken or shown.

    A `lost` move leads nowhere (see `automaton.Way`); `by_scheduler` tells it from an arrival or an abort.
    """

    parts: tuple[Part, ...]
    after: State
    broken: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    by_scheduler: bool = False
    lost: bool = False


class Composition:
    """Give the moves of `requests` requests under a policy and a pool; `arrivals` are their possible sizes."""

    def __init__(
        self,
        automaton: Automaton,
        policy: Policy,
        pool: Pool,
        requests: int,
        arrivals: Sequence[tuple[int, int]],
        *,
        abort: bool = True,
    ) -> None:
        self.automaton = automaton
        self.table = automaton.table
        self.policy = policy
        self.pool = pool
        self.requests = requests
        self.abort = abort
        self.arrivals = [automaton.values(self.table.new_request(*sizes)) for sizes in arrivals]
        self._plans: dict[object, Plan] = {}
        self._wait = self.table.codes[WAIT]
        self.view = HostView(automaton, policy.lag)

    @property
    def start(self) -> State:
        """Give the state before any arrival."""
        return (None,) * self.requests

    def moves(self, state: State) -> Iterator[Move]:
        """Yield every move from a state; the scheduler's come last."""
        yield from self._arrive(state)
        if self.abort:
            yield from self._abort(state)
        if any(entry is not None and entry.columns for entry in state):
            yield from self._iterate(state)

    def _arrive(self, state: State) -> Iterator[Move]:
        if None not in state:
            return
        index = state.index(None)
        for values in self.arrivals:
            yield Move((Part(index, ()),), _put(state, index, Held(values)))

    def _abort(self, state: State) -> Iterator[Move]:
        for index, entry in enumerate(state):
            if entry is not None and entry.columns:
                (way, *_) = self._abandoned(entry.columns, life_cycle.ABORT)
                part = Part(index, way.events, (entry.pages, entry.pages, 0))
                yield Move((part,), _put(state, index, ENDED))

    def _abandoned(self, columns: Values, event: str) -> Sequence[Way]:
        """Give the ways of an abort or a preemption; a request that has ended unseen only goes."""
        if self.view.done(columns):
            return (self.view.dropped(columns),)
        return self.automaton.alone(columns, event)

    def _settled(self, values: Values, pages: int, seen: Values = ()) -> Held:
        if self.view.done(values) and not seen:
            return ENDED
        return Held(values, pages, seen)

    def _iterate(self, state: State) -> Iterator[Move]:
        """Yield the moves of one iteration: the plan, and every combination of what its requests can do."""
        live = [
            index
            for index, entry in enumerate(state)
            if entry and entry.columns and entry.columns[0] != self._wait
        ]
        queue = [
            index
            for index, entry in enumerate(state)
            if entry and entry.columns and entry.columns[0] == self._wait
        ]
        decision = self._plan([state[index] for index in live], [state[index] for index in queue])  # type: ignore[misc]
        options: list[list[_Option]] = []
        chunks, runs = dict(decision.chunks), set(decision.run.tolist())
        for place, index in enumerate(live):
            entry = state[index]
            assert entry is not None
            pages = int(decision.pages[place])
            ways: list[tuple[Way, Values]]
            if place in decision.preempt:
                ways = [(way, ()) for way in self._abandoned(entry.columns, life_cycle.PREEMPT)]
                options.append(self._options(index, entry, ways, 0))
            elif self.view.done(entry.columns):
                options.append(self._options(index, entry, [(self.view.dropped(entry.columns), ())], pages))
            elif place in runs:
                ways = self.view.rounds(entry.columns, self.automaton.round(entry.columns))
                options.append(self._options(index, entry, ways, pages))
            elif place in chunks:
                ways = self.view.firsts(self.automaton.prefill(entry.columns, chunks[place]))
                options.append(self._options(index, entry, ways, pages))
            else:
                options.append([_Option(Held(entry.columns, pages), pages, None)])
        for index, pages, tokens in zip(queue, decision.admit, decision.admit_chunks, strict=False):
            entry = state[index]
            assert entry is not None
            ways = self.view.firsts(self.automaton.admit(entry.columns, tokens))
            options.append(self._options(index, entry, ways, pages))
        moving = live + queue[: len(decision.admit)]
        for choice in product(*options):
            yield self._move(state, moving, choice)

    def _options(
        self, index: int, entry: Held, ways: Sequence[tuple[Way, Values]], pages: int
    ) -> list[_Option]:
        """Join ways that leave a request in one place with as many slots used; the first stands for all."""
        found: dict[tuple[object, ...], _Option] = {}
        for way, seen in ways:
            waits = way.after[0] == self._wait
            broken = way.broken
            if not way.lost and not waits and way.used > pages * self.pool.page_size:
                broken = (*broken, properties.SLOTS)
            after = self._settled(way.after, 0 if waits else pages, seen)
            part = Part(index, way.events, (entry.pages, pages, after.pages))
            key = (None if way.lost else after, way.used, frozenset(way.broken))
            known = found.setdefault(key, _Option(after, pages, part, broken, way.shown, way.lost))
            if set(way.shown) - set(known.shown):
                found[key] = known._replace(shown=(*known.shown, *way.shown))
        return list(found.values())

    def _plan(self, live: list[Held], queue: list[Held]) -> Plan:
        key = (tuple(live), tuple(entry.columns for entry in queue))
        if key not in self._plans:
            columns = {
                name: np.array([entry.visible[place] for entry in live], np.int32)
                for place, name in enumerate(self.automaton.names)
            }
            pages = np.array([entry.pages for entry in live], np.int32)
            waiting = [
                Waiting(named["prompt"], named["limit"], named["emitted"])
                for named in (self.automaton.columns(entry.columns) for entry in queue)
            ]
            self._plans[key] = plan(self.table, self.policy, self.pool, columns, pages, waiting)
        return self._plans[key]

    def _move(self, state: State, moving: Sequence[int], choice: Sequence[_Option]) -> Move:
        after = list(state)
        broken: list[str] = []
        shown: list[str] = []
        for index, option in zip(moving, choice, strict=True):
            after[index] = option.after
            broken += option.broken
            shown += option.shown
        if sum(option.pages for option in choice) > self.pool.pages:
            broken.append(properties.POOL)
        parts = tuple(option.part for option in choice if option.part is not None)
        lost = any(option.lost for option in choice)
        return Move(
            parts, tuple(after), tuple(dict.fromkeys(broken)), tuple(shown), by_scheduler=True, lost=lost
        )

    def alike(self, state: State) -> State:
        """Give one state for all that differ only in who has ended: the order of arrival counts, ended ones do not."""
        left = [entry for entry in state if entry != ENDED]
        return (*left, *[ENDED] * (len(state) - len(left)))

    def faults(self, state: State) -> tuple[str, ...]:
        """Name the properties that a state breaks by itself: none, as every iteration's plan is judged."""
        del state
        return ()


class Interleaving:
    """Give the moves of requests of an abstract model: one event of one of them at a time, in a pool.

    A state holds the pages of all its slots. A request waits for pages it lacks; blocked so at a round state, it
    may give all of them back (policies holdback and preempt). Admission is the scheduler's.
    """

    def __init__(
        self, automaton: Automaton, policy: Policy, pool: Pool, requests: int, *, abort: bool = True
    ) -> None:
        self.automaton = automaton
        self.table = automaton.table
        self.policy = policy
        self.pool = pool
        self.requests = requests
        self.abort = abort
        self.first = automaton.values(self.table.new_abstract_request())
        self.local = self._reachable()
        held = [holding(self.table, automaton.columns(values)) for values in self.local]
        self.longest = max(int(pool.pages_of(sum(slots.values()))) for slots in held)
        self.grow = int(pool.pages_of(max(slots["provisional"] + slots["scratch"] for slots in held)))
        self._admission = ADMISSIONS.index(policy.admit)

    def _reachable(self) -> list[Values]:
        """List every local state of a request, the waiting one first; ended ones are left out."""
        found = {self.first: None}
        queue = [self.first]
        while queue:
            for name, way in self.events(queue.pop()):
                if not (way.lost or self.is_end(name, way)) and way.after not in found:
                    found[way.after] = None
                    queue.append(way.after)
        return list(found)

    @property
    def start(self) -> State:
        """Give the state in which every request waits."""
        return (Held(self.first),) * self.requests

    def events(self, values: Values) -> list[tuple[str, Way]]:
        """List the events of a local state with the ways they go: its own, admission, preemption, then abort."""
        state = self.automaton.state_of(values)
        own = [name for name, event in self.table.events.items() if state in event.states]
        last = (life_cycle.ADMIT, life_cycle.PREEMPT, life_cycle.ABORT)
        ordered = [name for name in own if name not in last] + [name for name in last if name in own]
        kept = [name for name in ordered if name != life_cycle.ABORT or self.abort]
        return [(name, way) for name in kept for way in self.automaton.alone(values, name)]

    def pages(self, values: Values) -> int:
        """Count the pages that a local state holds."""
        return int(self.pool.pages_of(sum(holding(self.table, self.automaton.columns(values)).values())))

    def moves(self, state: State) -> Iterator[Move]:
        """Yield every move from a state."""
        used = sum(entry.pages for entry in state if entry)
        live = [entry for entry in state if entry and entry.columns and self.lives(entry.columns)]
        for index, entry in enumerate(state):
            assert entry is not None
            if not entry.columns:
                continue
            blocked = False
            for name, way in self.events(entry.columns):
                grows = self.pages(way.after) - entry.pages
                if name == life_cycle.ADMIT:
                    promised = (len(live) + 1) * self.longest
                    if not admits(
                        self._admission, len(live), used, grows, promised, self.grow, self.pool.pages
                    ):
                        continue
                elif name == life_cycle.PREEMPT:
                    if not blocked or self.policy.admit in ("reserve", "greedy"):
                        continue
                elif name != life_cycle.ABORT and grows > 0 and used + grows > self.pool.pages:
                    blocked = True
                    continue
                yield self._move(state, index, name, way)

    def lives(self, values: Values) -> bool:
        """Tell whether a request has been admitted."""
        return self.automaton.state_of(values) != WAIT

    def _move(self, state: State, index: int, name: str, way: Way) -> Move:
        entry = state[index]
        assert entry is not None
        after = ENDED if self.is_end(name, way) else Held(way.after, self.pages(way.after))
        part = Part(index, way.events, (entry.pages, max(entry.pages, after.pages), after.pages))
        by_scheduler = name != life_cycle.ABORT
        return Move((part,), _put(state, index, after), way.broken, way.shown, by_scheduler, way.lost)

    def is_end(self, name: str, way: Way) -> bool:
        """Tell whether a request is done after an event: it ends, or is back in the state that it must reach."""
        state = self.automaton.state_of(way.after)
        return state == END or (state == self.table.eventually and name != life_cycle.ADMIT)

    @staticmethod
    def alike(state: State) -> State:
        """Give one state for all that differ only in who is who."""
        return tuple(sorted(state, key=lambda entry: entry or ENDED))

    def faults(self, state: State) -> tuple[str, ...]:
        """Name the properties that a state breaks by itself: more pages held than the pool has."""
        held = sum(entry.pages for entry in state if entry)
        return (properties.POOL,) if held > self.pool.pages else ()


def _put(state: State, index: int, entry: Held) -> State:
    return (*state[:index], entry, *state[index + 1 :])


def move_between(composed: Composition | Interleaving, before: State, after: State) -> Move:
    """Find a move that leads from one state to the next, as a path of the search has it; an unbroken one if any."""
    moves = [move for move in composed.moves(before) if move.after == after and not move.lost]
    return min(moves, key=lambda move: len(move.broken))
