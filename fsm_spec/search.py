"""Search every state that a few requests reach together, breadth first, in plain Python.

Requests arrive in order and the scheduler is the one that simulator and executor call. A move is an arrival, an abort,
or one iteration: the plan, then every combination of the ways its requests can go. Requests of abstract models, which
have no scheduler, move one event at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from fsm_spec import life_cycle, properties
from fsm_spec.policy import Plan, Policy, Pool, Waiting, plan
from fsm_spec.table import END, WAIT

if TYPE_CHECKING:
    from fsm_spec.automaton import Automaton, Event, Values, Way


class Held(NamedTuple):
    """Hold a request that has arrived and not ended: its columns and the pages it owns."""

    columns: Values
    pages: int = 0


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


class Move(NamedTuple):
    """Hold one move: what each request does that takes part, the state after, properties broken or shown."""

    parts: tuple[Part, ...]
    after: State
    broken: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    by_scheduler: bool = False


@dataclass
class Found:
    """Hold what a search covered: counts, a state before each broken property, sentences shown, and whether all was seen."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = True
    # By sentence: the states from the start to the one before the move, and the move that breaks it.
    broken: dict[str, tuple[list[State], Move | None, str]] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)


class Composition:
    """Give the moves of `requests` requests under a policy and a pool; `arrivals` are their possible sizes."""

    def __init__(
        self,
        automaton: Automaton,
        policy: Policy,
        pool: Pool,
        requests: int,
        arrivals: Sequence[tuple[int, int]],
    ) -> None:
        self.automaton = automaton
        self.table = automaton.table
        self.policy = policy
        self.pool = pool
        self.requests = requests
        self.arrivals = [automaton.values(self.table.new_request(*sizes)) for sizes in arrivals]
        self._plans: dict[object, Plan] = {}
        self._wait, self._end = self.table.codes[WAIT], self.table.codes[END]

    @property
    def start(self) -> State:
        """Give the state before any arrival."""
        return (None,) * self.requests

    def moves(self, state: State) -> Iterator[Move]:
        """Yield every move from a state; the scheduler's come last."""
        yield from self._arrive(state)
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
                for way in self.automaton.alone(entry.columns, life_cycle.ABORT):
                    after = _put(state, index, self._settled(way.after, 0))
                    yield Move((Part(index, way.events, (entry.pages, entry.pages, 0)),), after, way.broken)

    def _settled(self, values: Values, pages: int) -> Held:
        if values[0] == self._end:
            return ENDED
        return Held(values, pages)

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
            if place in decision.preempt:
                options.append(
                    self._options(index, entry, self.automaton.alone(entry.columns, life_cycle.PREEMPT), 0)
                )
            elif place in runs:
                options.append(self._options(index, entry, self.automaton.round(entry.columns), pages))
            elif place in chunks:
                options.append(
                    self._options(index, entry, self.automaton.prefill(entry.columns, chunks[place]), pages)
                )
            else:
                options.append([_Option(Held(entry.columns, pages), pages, None)])
        for index, pages, tokens in zip(queue, decision.admit, decision.admit_chunks, strict=False):
            entry = state[index]
            assert entry is not None
            options.append(self._options(index, entry, self.automaton.admit(entry.columns, tokens), pages))
        moving = live + queue[: len(decision.admit)]
        for choice in product(*options):
            yield self._move(state, moving, choice)

    def _options(self, index: int, entry: Held, ways: Sequence[Way], pages: int) -> list[_Option]:
        """Join ways that leave a request in one place; the first stands for all."""
        found: dict[tuple[Held, tuple[str, ...]], _Option] = {}
        for way in ways:
            waits = way.after[0] == self._wait
            broken = way.broken
            if not broken and not waits and way.used > pages * self.pool.page_size:
                broken = (properties.SLOTS,)
            after = self._settled(way.after, pages)
            option = _Option(
                after, pages, Part(index, way.events, (entry.pages, pages, after.pages)), broken, way.shown
            )
            known = found.setdefault((after, broken), option)
            if set(way.shown) - set(known.shown):
                found[after, broken] = known._replace(shown=(*known.shown, *way.shown))
        return list(found.values())

    def _plan(self, live: list[Held], queue: list[Held]) -> Plan:
        key = (tuple(live), tuple(entry.columns for entry in queue))
        if key not in self._plans:
            columns = {
                name: np.array([entry.columns[place] for entry in live], np.int32)
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
        return Move(parts, tuple(after), tuple(dict.fromkeys(broken)), tuple(shown), by_scheduler=True)


class Interleaving:
    """Give the moves of requests of an abstract model: any event of any of them, no pool and no scheduler."""

    def __init__(self, automaton: Automaton, requests: int) -> None:
        self.automaton = automaton
        self.table = automaton.table
        self.requests = requests

    @property
    def start(self) -> State:
        """Give the state in which every request is in the start state."""
        values = {"state": self.table.codes[self.table.start.name]}
        for column in self.table.columns:
            values[column.name] = properties.evaluate(column.init, {**values, **self.table.codes})
        return (Held(self.automaton.values(values)),) * self.requests

    def moves(self, state: State) -> Iterator[Move]:
        """Yield every move from a state."""
        for index, entry in enumerate(state):
            assert entry is not None
            if not entry.columns:
                continue
            here = self.automaton.state_of(entry.columns)
            for event in self.table.events.values():
                if here in event.states:
                    for way in self.automaton.alone(entry.columns, event.name):
                        done = self.automaton.state_of(way.after) == self.table.eventually
                        after = _put(state, index, ENDED if done else Held(way.after))
                        yield Move(
                            (Part(index, way.events),), after, way.broken, way.shown, by_scheduler=True
                        )


def _put(state: State, index: int, entry: Held) -> State:
    return (*state[:index], entry, *state[index + 1 :])


def search(
    composed: Composition | Interleaving, most_states: int, tick: Callable[[int], None] | None = None
) -> Found:
    """Search all reachable states breadth first; `tick` hears the number of states now and then.

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
        self.found = Found()
        self.liveness = properties.eventually(composed.table)

    def run(self) -> Found:
        started = time.perf_counter()
        found = self.found
        at = 0
        while at < len(self.states) and found.complete:
            self._expand(at)
            at += 1
            if self.tick and at % 1024 == 0:
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
        scheduled = stuck = False
        for move in self.composed.moves(state):
            for sentence in move.broken:
                if sentence not in found.broken:
                    found.broken[sentence] = (self._path(at), move, "")
            if move.by_scheduler:
                scheduled = True
                stuck = stuck or move.after == state
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
        if unfinished and (stuck or not scheduled) and self.liveness not in found.broken:
            found.broken[self.liveness] = (self._path(at), None, "deadlock: nothing can move any more")

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
                self.found.broken[self.liveness] = (path, None, back)
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
                        way = [start]
                        while number >= 0:
                            way.append(number)
                            number = parents[number]
                        return way[::-1]
                    if successor in within and successor not in parents:
                        parents[successor] = number
                        deeper.append(successor)
            level = deeper
        return []


def move_between(composed: Composition | Interleaving, before: State, after: State) -> Move:
    """Find a move that leads from one state to the next, as a path of the search has it."""
    return next(move for move in composed.moves(before) if move.after == after and not move.broken)


__all__ = ["Composition", "Found", "Held", "Interleaving", "Move", "State", "move_between", "search"]
