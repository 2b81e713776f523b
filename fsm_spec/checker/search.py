"""Search every state that composed requests reach, breadth first, in plain Python.

The reference that `compiled.py` is held to, with the same counts. The moves are in `composition.py`. The first break
of a property is a shortest one, as states are met level by level.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from fsm_spec.checker import properties

if TYPE_CHECKING:
    from fsm_spec.checker.composition import Composition, Move, State
    from fsm_spec.checker.interleaving import Interleaving


class Fault(NamedTuple):
    """Hold how a property breaks: the states from the start on, the move that breaks it if one does, and the reason.

    `loop` is the place in the path that its last state leads back to, where the fault is a cycle.
    """

    path: list[State]
    move: Move | None = None
    why: str = ""
    loop: int | None = None


@dataclass
class Found:
    """Hold what a search covered: counts, the first fault of each broken property, and the sentences shown."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    complete: bool = True
    broken: dict[str, Fault] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)


# What a state breaks by itself, whatever moves follow, and why.
OVER: Final = {
    properties.POOL: "more is held than the pool has",
    properties.FITS: "a request cannot make progress: it may need more than the pool has, even when empty",
}
DEADLOCK: Final = "deadlock: no move changes anything any more"


def livelock(moves: int) -> str:
    """Say that the last moves of a path are a cycle."""
    last = "the last move" if moves == 1 else f"the last {moves} moves"
    return f"livelock: {last} can repeat for ever without progress"


def stuck(path: list[State], *, leaves: bool) -> Fault:
    """Tell of a state that the scheduler can leave as it is: for ever, if no other move `leaves` it."""
    if not leaves:
        return Fault(path, None, DEADLOCK)
    return Fault([*path, path[-1]], None, livelock(1), len(path) - 1)


def search(composed: Composition | Interleaving, most_states: int, *, symmetry: bool = False) -> Found:
    """Search all reachable states breadth first; beyond `most_states` the search is given up and not `complete`.

    With `symmetry`, states that differ only in who is who are one. A broken property ends nothing: the search covers
    all that is reachable, and the first break is a shortest one.
    """
    return _Search(composed, most_states, symmetry=symmetry).run()


class _Search:
    def __init__(self, composed: Composition | Interleaving, most_states: int, *, symmetry: bool) -> None:
        self.composed = composed
        self.most_states = most_states
        self.symmetry = symmetry
        self.numbers: dict[State, int] = {composed.start: 0}
        self.states: list[State] = [composed.start]
        self.parents: list[int] = [-1]
        self.depths: list[int] = [0]
        # Successors by the scheduler: arrivals and aborts happen at most once a request, so no cycle has one, unless an
        # abort does not end a request.
        self.next: list[list[int]] = []
        self.found = Found()
        self.liveness = properties.eventually(composed.table)

    def run(self) -> Found:
        found = self.found
        at = 0
        while at < len(self.states) and found.complete:
            self._expand(at)
            at += 1
            found.complete = len(self.states) <= self.most_states
        found.states = len(self.states)
        found.depth = self.depths[-1]
        if found.complete and self.liveness not in found.broken:
            self._livelock()
        return found

    def _expand(self, at: int) -> None:
        state, found = self.states[at], self.found
        for sentence in self.composed.faults(state):
            found.broken.setdefault(sentence, Fault(self._path(at), None, OVER[sentence]))
        onward: dict[int, None] = {}
        stays, leaves = False, False
        for move in self.composed.moves(state):
            for sentence in move.broken:
                if sentence not in found.broken:
                    found.broken[sentence] = Fault(self._path(at), move)
            found.shown.update(move.shown)
            if move.lost:
                # Something moves, and where it leads nobody knows: the state is no deadlock.
                leaves = leaves or move.by_scheduler
                continue
            found.transitions += 1
            after = self.composed.alike(move.after) if self.symmetry else move.after
            number = self._number(after, at)
            if number != at and not move.by_scheduler and self._aborted(move):
                onward[number] = None
            if move.by_scheduler:
                stays, leaves = stays or number == at, leaves or number != at
                onward[number] = None
        self.next.append(list(onward))
        unfinished = any(entry is not None and entry.columns for entry in state)
        if unfinished and (stays or not leaves) and self.liveness not in found.broken:
            found.broken[self.liveness] = stuck(self._path(at), leaves=leaves)

    @staticmethod
    def _aborted(move: Move) -> bool:
        """Tell of an abort after which a request goes on."""
        part, *_ = move.parts
        entry = move.after[part.request]
        return bool(part.events) and entry is not None and bool(entry.columns)

    def _number(self, state: State, parent: int) -> int:
        number = self.numbers.get(state)
        if number is None:
            number = self.numbers[state] = len(self.states)
            self.states.append(state)
            self.parents.append(parent)
            self.depths.append(self.depths[parent] + 1)
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
                moves = len(cycle) - 1
                self.found.broken[self.liveness] = Fault(path, None, livelock(moves), len(path) - 1 - moves)
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
