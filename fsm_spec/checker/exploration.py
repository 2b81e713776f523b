"""Explore what a composition reaches with the compiled search, and turn what it finds back into paths of states."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from fsm_spec.checker.composition import ENDED, Composition
from fsm_spec.checker.packed_actions import ActionsPacking
from fsm_spec.checker.packed_rounds import RoundsPacking
from fsm_spec.checker.ranks import ranks_of
from fsm_spec.checker.search import OVER, Fault, livelock, stuck

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fsm_spec.checker.composition import Move, State
    from fsm_spec.checker.interleaving import Interleaving

# Bytes that a search needs a state, at worst: its word, the hash set where it has just grown, and the array before.
STATE_BYTES: Final = 120
# Beyond so many moves a livelock is told by the first cycle found, as finding the nearest takes 16 bytes a move.
MOST_EDGES: Final = 30_000_000
# Sizes of the first search, and how they grow, where it is to end soon after the first fault.
SMALL: Final = 1 << 10
GROWTH: Final = 16


@dataclass(frozen=True)
class Limits:
    """Say where a search gives up: states known, and bytes; and which properties end it when they break."""

    states: int
    bytes: int
    stop_at: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Reached:
    """Hold what the compiled search gives; `first` has by property the first state that breaks it, or -1."""

    states: NDArray[np.int64]
    moves: int
    levels: NDArray[np.int64]
    first: NDArray[np.int64]
    shown: int
    stuck: int
    complete: bool


class _Functions(NamedTuple):
    """Hold the compiled functions of one kind of moves."""

    search: Callable[..., Any]
    cycle: Callable[..., Any]
    parent: Callable[..., Any]
    edges: Callable[..., Any]
    index: Callable[..., Any]


def _functions(*, rounds: bool) -> _Functions:
    # numba takes a third of a second to load, which a faulty file need not wait for.
    from fsm_spec.checker import compiled, hash_set, paths  # noqa: PLC0415

    if rounds:
        return _Functions(
            compiled.search_rounds,
            compiled.cycle_of_rounds,
            paths.parent_of_rounds,
            paths.edges_of_rounds,
            hash_set.index_of,
        )
    return _Functions(
        compiled.search_actions,
        compiled.cycle_of_actions,
        paths.parent_of_actions,
        paths.edges_of_actions,
        hash_set.index_of,
    )


class Exploration:
    """Search a composition; `seconds` are from the first state to the last, compile time is apart."""

    def __init__(
        self, composed: Composition | Interleaving, limits: Limits, *, symmetry: bool = True
    ) -> None:
        self.composed = composed
        self.symmetry = symmetry
        self.packing: RoundsPacking | ActionsPacking
        if isinstance(composed, Composition):
            self.packing = RoundsPacking(
                composed.automaton,
                composed.policy,
                composed.pool,
                composed.requests,
                composed.arrivals,
                symmetry=symmetry,
                abort=composed.abort,
            )
        else:
            self.packing = ActionsPacking(composed, symmetry=symmetry)
        self.compile_seconds = self._compile()
        started = time.perf_counter()
        self.reached = self._search(limits)
        self.seconds = time.perf_counter() - started
        started = time.perf_counter()
        self.cycle = self._cycle() if self.reached.complete and self._stopped() < 0 else None
        self.liveness_seconds = time.perf_counter() - started

    def _compile(self) -> float:
        """Run everything on the state in which all requests have ended: it has no moves, and is done at once."""
        started = time.perf_counter()
        self._run = _functions(rounds=isinstance(self.composed, Composition))
        ended = self.packing.word((ENDED,) * self.composed.requests)
        states = np.array([ended], np.int64)
        self._run.search(ended, *self.packing.model, 1)
        ranks = np.zeros(len(self.packing.values), np.int64)
        self._run.cycle(states, *self._run.index(states), ranks, *self.packing.model)
        return time.perf_counter() - started

    def _search(self, limits: Limits) -> Reached:
        most = max(1, min(limits.states, limits.bytes // STATE_BYTES))
        size = min(SMALL, most) if limits.stop_at else most
        while True:
            try:
                reached = Reached(*self._run.search(0, *self.packing.model, size))
            except MemoryError:  # pragma: no cover - only where the machine has less than it says
                size = most = size // 8
                continue
            if reached.complete or size == most or self._faulty(reached, limits.stop_at):
                return reached
            size = min(size * GROWTH, most)

    def _faulty(self, reached: Reached, names: frozenset[str]) -> bool:
        """Tell whether one of these properties is broken."""
        *_, liveness = self.packing.sentences
        broken = {
            name
            for name, place in zip(self.packing.sentences, reached.first.tolist(), strict=False)
            if place >= 0
        }
        return bool(names & broken) or (reached.stuck >= 0 and liveness in names)

    def _stopped(self) -> int:
        """Give the first state from which a request need not go on, without a longer cycle; -1 if there is none."""
        bit = len(self.packing.sentences) - 1
        found = [place for place in (self.reached.stuck, int(self.reached.first[bit])) if place >= 0]
        return min(found, default=-1)

    def _cycle(self) -> list[int]:
        ranks = ranks_of(self.packing.model, rounds=isinstance(self.composed, Composition))
        if ranks is None:
            return []
        words = self._run.index(self.reached.states)
        cycle: list[int] = self._run.cycle(self.reached.states, *words, ranks, *self.packing.model).tolist()
        if cycle and self.reached.moves <= MOST_EDGES:
            edges = self._run.edges(self.reached.states, *words, self.reached.moves, *self.packing.model)
            return nearest_cycle(*edges)
        first = cycle.index(min(cycle)) if cycle else 0
        return cycle[first:] + cycle[:first]

    @property
    def states(self) -> int:
        """Count the states."""
        return len(self.reached.states)

    @property
    def moves(self) -> int:
        """Count the moves."""
        return int(self.reached.moves)

    @property
    def complete(self) -> bool:
        """Tell whether all reachable states were searched."""
        return bool(self.reached.complete)

    @property
    def depth(self) -> int:
        """Give the most moves that any state is away from the start."""
        return len(self.reached.levels) - 1

    @cached_property
    def shown(self) -> frozenset[str]:
        """Name the `sometimes` properties that were seen to hold."""
        return frozenset(name for bit, name in enumerate(self.packing.shows) if self.reached.shown >> bit & 1)

    @cached_property
    def broken(self) -> dict[str, int]:
        """Give the moves to where each broken property breaks."""
        found = {}
        liveness = self.packing.sentences[-1]
        for bit, name in enumerate(self.packing.sentences):
            place = self._stopped() if name == liveness else int(self.reached.first[bit])
            if place >= 0:
                found[name] = self._level(place)
            elif name == liveness and self.cycle:
                found[name] = self._level(self.cycle[0])
        return found

    def _level(self, place: int) -> int:
        return int(np.searchsorted(self.reached.levels, place, side="right")) - 1

    def fault(self, name: str) -> Fault:
        """Show how a broken property breaks, on a shortest path."""
        if name == self.packing.sentences[-1]:
            return self._stop()
        place = int(self.reached.first[self.packing.sentences.index(name)])
        path = self._path(self._places(place))
        for move in self.composed.moves(path[-1]):
            if name in move.broken:
                return Fault(path, move)
        return Fault(path, None, OVER[name])

    def _stop(self) -> Fault:
        if self.cycle:
            places = [*self._places(self.cycle[0]), *self.cycle[1:], self.cycle[0]]
            return Fault(
                self._path(places), None, livelock(len(self.cycle)), len(places) - 1 - len(self.cycle)
            )
        place = self._stopped()
        path = self._path(self._places(place))
        leaves = False
        for move in self.composed.moves(path[-1]):
            if move.lost and self.packing.sentences[-1] in move.broken:
                return Fault(path, move)
            leaves = leaves or (move.by_scheduler and (move.lost or move.after != path[-1]))
        return stuck(path, leaves=leaves)

    def _places(self, place: int) -> list[int]:
        """Walk the levels back from a state to the start; gives the places from the start on."""
        states, levels = self.reached.states, self.reached.levels
        places = [place]
        while place:
            level = self._level(place)
            place = self._run.parent(
                states, levels[level - 1], levels[level], states[place], *self.packing.model
            )
            assert place >= 0, "a state without a way to it"
            places.append(place)
        return places[::-1]

    def _path(self, places: list[int]) -> list[State]:
        """Follow words by moves of the composition: with symmetry, one of several states stands behind a word."""
        path = [self.composed.start]
        for place in places[1:]:
            path.append(self._move(path[-1], int(self.reached.states[place])).after)
        return path

    def _move(self, state: State, word: int) -> Move:
        moves = [
            move
            for move in self.composed.moves(state)
            if not move.lost and self.packing.word(move.after) == word
        ]
        return min(moves, key=lambda move: len(move.broken))


def nearest_cycle(starts: NDArray[np.int64], targets: NDArray[np.int32]) -> list[int]:
    """Give the shortest cycle through the first state that is on one, from that state on; nothing if there is none.

    The moves of state `k` lead to `targets[starts[k] : starts[k + 1]]`; a move to the state itself is no cycle here.
    """
    size = len(starts) - 1
    graph = csr_matrix((np.ones(len(targets), np.int8), targets, starts), (size, size))
    _, labels = connected_components(graph, connection="strong")
    cyclic = np.bincount(labels)[labels] > 1
    if not cyclic.any():
        return []
    first = int(np.argmax(cyclic))
    parents = {first: first}
    queue = [first]
    for node in queue:
        for successor in targets[starts[node] : starts[node + 1]].tolist():
            if successor == first and node != first:
                way = [node]
                while way[-1] != first:
                    way.append(parents[way[-1]])
                return way[::-1]
            if labels[successor] == labels[first] and successor not in parents:
                parents[successor] = node
                queue.append(successor)
    raise AssertionError(first)  # pragma: no cover - a state of a strong component has a way back


__all__ = ["Exploration", "Limits", "Reached", "nearest_cycle"]
