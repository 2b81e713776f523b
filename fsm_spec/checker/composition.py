"""Requests composed: the states that a few requests share, and every move that leads from one to the next.

Requests arrive in order and the scheduler is the one that simulator and executor call. A move is an arrival, an abort,
or one iteration: the plan, then every combination of what its requests can do. Requests that move one event at a time
are in `interleaving.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from fsm_spec import life_cycle
from fsm_spec.checker import properties
from fsm_spec.checker.automaton import automaton_of
from fsm_spec.checker.lag import HostView
from fsm_spec.policy import Plan, Policy, Pool, Waiting, longest_pages, plan
from fsm_spec.table import WAIT
from fsm_spec.tiers import tiers_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fsm_spec.checker.automaton import Automaton, Event, Values, Way
    from fsm_spec.checker.interleaving import Interleaving
    from fsm_spec.step import Columns


class Held(NamedTuple):
    """Hold a request that has arrived and not ended: its columns, its pages, and what a late host has seen of it.

    `seen` is empty where the host sees the columns as they are. `shared` pages stand in front of its own `pages` and
    may have other holders (`shared_prefix.py`).
    """

    columns: Values
    pages: int = 0
    seen: Values = ()
    shared: int = 0

    @property
    def visible(self) -> Values:
        """Give the columns as the host sees them."""
        return self.seen or self.columns


# A request that ended holds nothing and moves no more: all of them are one value, which keeps the state space small.
ENDED: Final = Held((), 0)
# A request that has not arrived, where it takes part in moves of its own.
ABSENT: Final = Held((-1,), 0)
ARRIVE: Final = "arrive"
# One entry a request, in order of arrival; None: not arrived yet.
State = tuple[Held | None, ...]


class Part(NamedTuple):
    """Hold what one request does in a move: its events, and its pages before, during and after."""

    request: int
    events: tuple[Event, ...]
    pages: tuple[int, int, int] = (0, 0, 0)


class Option(NamedTuple):
    """Hold one thing a request can do in an iteration; `pages` are its own while it runs, beside `shared` ones."""

    after: Held
    pages: int
    part: Part | None
    broken: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    lost: bool = False
    shared: int = 0


class Move(NamedTuple):
    """Hold one move: what each request does that takes part, the state after, properties broken or shown.

    A `lost` move leads nowhere (see `automaton.Way`); `by_scheduler` tells it from an arrival or an abort. `tier` is
    the size that the plan chose; None without tiers.
    """

    parts: tuple[Part, ...]
    after: State
    broken: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    by_scheduler: bool = False
    lost: bool = False
    tier: int | None = None


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
        self.tiers = tiers_of(self.table, policy)
        self.automata = {
            self.tiers.size(table): automaton_of(table, automaton) for table in self.tiers.tables
        }
        self.policy = policy
        self.pool = pool
        self.requests = requests
        self.abort = abort
        self.arrivals = [automaton.values(self.table.new_request(*sizes)) for sizes in arrivals]
        self._plans: dict[object, Plan] = {}
        self._wait = self.table.codes[WAIT]
        self.view = self._view(policy.lag)

    def _view(self, lag: int) -> HostView:
        """Give what a host sees that is so many rounds late."""
        return HostView(self.automaton, lag)

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

    def automaton_of(self, move: Move) -> Automaton:
        """Give the automaton of the size under which a move was planned."""
        return self.automata.get(move.tier, self.automaton)

    def sizes(self, move: Move) -> dict[str, int]:
        """Give the size of the tiered parameter by its name; nothing without tiers."""
        return {} if move.tier is None or self.tiers.param is None else {self.tiers.param: move.tier}

    def _arrive(self, state: State) -> Iterator[Move]:
        if None not in state:
            return
        index = state.index(None)
        for values in self.arrivals:
            broken = () if self.fits(values) else (properties.FITS,)
            yield Move((Part(index, ()),), put(state, index, Held(values)), broken)

    def fits(self, values: Values) -> bool:
        """Tell whether an empty pool could carry a request to its limit."""
        named = self.automaton.columns(values)
        return self.pool.pages >= longest_pages(
            self.table, self.pool, named["prompt"], named["limit"], self.policy
        )

    def _abort(self, state: State) -> Iterator[Move]:
        landed, gone = self._landed(state)
        for index, entry in enumerate(landed):
            if entry is ENDED and state[index] != ENDED:
                # It has ended before it could be given up.
                yield Move(gone, landed)
            if entry is not None and entry.columns:
                for way in self.automaton.alone(entry.columns, life_cycle.ABORT):
                    after = self.abandoned(way, entry.pages)
                    part = Part(index, way.events, (entry.pages, entry.pages, after.pages))
                    yield Move((part, *gone), put(landed, index, after), way.broken, way.shown, lost=way.lost)

    def _landed(self, state: State) -> tuple[State, tuple[Part, ...]]:
        """Give the state once the host has seen the round in flight, and the parts of those who ended in it."""
        if not self.late(state):
            return state, ()
        gone = tuple(
            Part(index, (), (entry.pages, entry.pages, 0))
            for index, entry in enumerate(state)
            if entry and entry.seen and self.view.done(entry.columns)
        )
        ended = {part.request for part in gone}
        return tuple(
            ENDED if index in ended else entry and entry._replace(seen=())
            for index, entry in enumerate(state)
        ), gone

    @staticmethod
    def late(state: State) -> bool:
        """Tell whether the host has yet to see something."""
        return any(entry and entry.seen for entry in state)

    def abandoned(self, way: Way, pages: int) -> Held:
        """Give what is left of an aborted request: nothing, if the table's rows end it as they should."""
        return self._settled(way.after, 0 if way.after[0] == self._wait else pages)

    def _settled(self, values: Values, pages: int, seen: Values = (), shared: int = 0) -> Held:
        if self.view.done(values) and not seen:
            return ENDED
        return Held(values, pages, seen, shared)

    def _iterate(self, state: State) -> Iterator[Move]:
        """Yield the moves of one iteration; a round in flight ends before another size is chosen."""
        if self.policy.tier is None:
            yield from self._planned(state)
        else:
            yield from self._behind_flight(state)

    def _behind_flight(self, state: State) -> Iterator[Move]:
        """Yield the moves of an iteration that is planned when the host has seen the round in flight."""
        landed, gone = self._landed(state)
        for move in self._planned(landed):
            yield move._replace(parts=(*gone, *move.parts)) if gone else move

    def _planned(self, state: State) -> Iterator[Move]:
        """Yield the moves of every plan that takes nothing away from a round in flight."""
        waits = False
        for hits in self._hits(state):
            if self.late(state) and self._decide(state, hits)[2].preempt:
                waits = True
            else:
                yield from self._iteration(state, hits)
        if waits:
            # Who gives pages back has no round in flight: all is planned once more when that is over.
            yield from self._behind_flight(state)

    def _hits(self, state: State) -> Iterator[Mapping[int, int]]:
        """Yield what waiting requests may find in a prefix cache: nothing."""
        del state
        yield {}

    def _iteration(self, state: State, hits: Mapping[int, int]) -> Iterator[Move]:
        """Yield the plan's moves: every combination of what its requests can do.

        `hits` gives by request the pages that one which is admitted finds already filled.
        """
        live, queue, decision = self._decide(state, hits)
        automaton = self.automata[decision.tier]
        options: list[list[Option]] = []
        chunks, runs = dict(decision.chunks), set(decision.run.tolist())
        for place, index in enumerate(live):
            entry = state[index]
            assert entry is not None
            pages = int(decision.pages[place])
            ways: list[tuple[Way, Values]]
            if place in decision.preempt:
                ways = [(way, ()) for way in self.automaton.alone(entry.columns, life_cycle.PREEMPT)]
                options.append(self._options(index, entry, ways, 0))
            elif self.view.done(entry.columns):
                options.append(self._options(index, entry, [(self.view.dropped(entry.columns), ())], pages))
            elif place in runs:
                ways = self.view.rounds(entry.columns, automaton.round(entry.columns))
                options.append(self._options(index, entry, ways, pages))
            elif place in chunks:
                ways = self.view.firsts(automaton.prefill(entry.columns, chunks[place]))
                options.append(self._options(index, entry, ways, pages))
            else:
                options.append(
                    [Option(Held(entry.columns, pages, (), entry.shared), pages, None, shared=entry.shared)]
                )
        for index, pages, tokens in zip(queue, decision.admit, decision.admit_chunks, strict=False):
            entry = state[index]
            assert entry is not None
            hit = hits.get(index, 0)
            ways = self.view.firsts(automaton.admit(entry.columns, tokens, hit * self.pool.page_size))
            options.append(self._options(index, entry._replace(shared=hit), ways, pages))
        moving = live + queue[: len(decision.admit)]
        for choice in product(*options):
            yield self._move(state, moving, choice, decision.tier)

    def _decide(self, state: State, hits: Mapping[int, int]) -> tuple[list[int], list[int], Plan]:
        """Let the scheduler decide an iteration; gives who lives and who waits, oldest first, and the plan."""
        there = [(index, entry) for index, entry in enumerate(state) if entry and entry.columns]
        live = [(index, entry) for index, entry in there if entry.columns[0] != self._wait]
        queue = [(index, entry) for index, entry in there if entry.columns[0] == self._wait]
        decision = self._plan(
            [entry for _, entry in live], [(entry, hits.get(index, 0)) for index, entry in queue]
        )
        return [index for index, _ in live], [index for index, _ in queue], decision

    def _options(
        self, index: int, entry: Held, ways: Sequence[tuple[Way, Values]], pages: int
    ) -> list[Option]:
        """Join ways that leave a request in one place with as many slots used; the first stands for all."""
        found: dict[tuple[object, ...], Option] = {}
        for way, seen in ways:
            waits = way.after[0] == self._wait
            broken = way.broken
            if not way.lost and not waits and way.used > (pages + entry.shared) * self.pool.page_size:
                broken = (*broken, properties.SLOTS)
            after = self._settled(way.after, 0 if waits else pages, seen, 0 if waits else entry.shared)
            part = Part(index, way.events, (entry.pages, pages, after.pages))
            key = (None if way.lost else after, way.used, frozenset(way.broken))
            known = found.setdefault(
                key, Option(after, pages, part, broken, way.shown, way.lost, entry.shared)
            )
            if set(way.shown) - set(known.shown):
                found[key] = known._replace(shown=(*known.shown, *way.shown))
        return list(found.values())

    def _plan(self, live: list[Held], queue: list[tuple[Held, int]]) -> Plan:
        key = (tuple(live), tuple((entry.columns, hit) for entry, hit in queue))
        if key not in self._plans:
            columns = {
                name: np.array([entry.visible[place] for entry in live], np.int32)
                for place, name in enumerate(self.automaton.names)
            }
            pages = np.array([entry.pages for entry in live], np.int32)
            waiting = [
                Waiting(named["prompt"], named["limit"], named["emitted"], hit, held=hit)
                for named, hit in ((self.automaton.columns(entry.columns), hit) for entry, hit in queue)
            ]
            self._plans[key] = self._decided(live, columns, pages, waiting)
        return self._plans[key]

    def _decided(
        self, live: list[Held], columns: Columns, pages: NDArray[np.int32], waiting: list[Waiting]
    ) -> Plan:
        """Let the scheduler decide."""
        del live  # whose pages nobody shares
        return plan(self.table, self.policy, self.pool, columns, pages, waiting)

    def _move(self, state: State, moving: Sequence[int], choice: Sequence[Option], tier: int | None) -> Move:
        after = list(state)
        broken: list[str] = []
        shown: list[str] = []
        for index, option in zip(moving, choice, strict=True):
            after[index] = option.after
            broken += option.broken
            shown += option.shown
        if sum(option.pages for option in choice) + self.held_in_common(choice) > self.pool.pages:
            broken.append(properties.POOL)
        parts = tuple(option.part for option in choice if option.part is not None)
        lost = any(option.lost for option in choice)
        return Move(
            parts,
            tuple(after),
            tuple(dict.fromkeys(broken)),
            tuple(shown),
            by_scheduler=True,
            lost=lost,
            tier=tier,
        )

    def held_in_common(self, choice: Sequence[Option]) -> int:
        """Count the pages that are held by several or could be while requests do what is chosen: none here."""
        del choice
        return 0

    def in_common(self, state: State) -> int:
        """Count the pages that are held by several or could be: none without a prefix cache."""
        del state
        return 0

    def alike(self, state: State) -> State:
        """Give one state for all that differ only in who has ended: the order of arrival counts, ended ones do not."""
        left = [entry for entry in state if entry != ENDED]
        return (*left, *[ENDED] * (len(state) - len(left)))

    def faults(self, state: State) -> tuple[str, ...]:
        """Name the properties that a state breaks by itself: none, as every iteration's plan is judged."""
        del state
        return ()


def put(state: State, index: int, entry: Held) -> State:
    """Give the state in which one request is as told."""
    return (*state[:index], entry, *state[index + 1 :])


def move_between(composed: Composition | Interleaving, before: State, after: State) -> Move:
    """Find a move that leads from one state to the next, as a path of the search has it; an unbroken one if any."""
    moves = [move for move in composed.moves(before) if move.after == after and not move.lost]
    return min(moves, key=lambda move: len(move.broken))
