"""Requests interleaved: one event of one of them at a time, in a pool whose pages follow from their states.

So abstract models move, which have no rounds. Requests that move by the scheduler's rounds are in `composition.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fsm_spec import life_cycle
from fsm_spec.checker import properties
from fsm_spec.checker.composition import ENDED, Held, Move, Part, State, put
from fsm_spec.decision import ADMISSIONS, admits
from fsm_spec.oracle import holding
from fsm_spec.policy import Policy, Pool
from fsm_spec.table import END, WAIT

if TYPE_CHECKING:
    from fsm_spec.checker.automaton import Automaton, Values, Way


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
        self.first = self._first()
        self.local = self._reachable()
        self.longest, self.grow = self._sizes()
        self._admission = ADMISSIONS.index(policy.admit)

    def _first(self) -> Values:
        """Give the local state in which every request starts."""
        return self.automaton.values(self.table.new_abstract_request())

    def _sizes(self) -> tuple[int, int]:
        """Give the pages of the longest case of a request, and those by which one grows in a round."""
        held = [holding(self.table, self.automaton.columns(values)) for values in self.local]
        longest = max(int(self.pool.pages_of(sum(slots.values()))) for slots in held)
        return longest, int(
            self.pool.pages_of(max(slots["provisional"] + slots["scratch"] for slots in held))
        )

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

    def automaton_of(self, move: Move) -> Automaton:
        """Give the automaton: a table without rounds has one size."""
        del move
        return self.automaton

    @staticmethod
    def in_common(state: State) -> int:
        """Give no pages: nobody shares any."""
        del state
        return 0

    def sizes(self, move: Move) -> dict[str, int]:
        """Give no sizes, as no scheduler chooses any."""
        del move
        return {}

    def pages(self, values: Values) -> int:
        """Count the pages that a local state holds."""
        return int(self.pool.pages_of(sum(holding(self.table, self.automaton.columns(values)).values())))

    def grows(self, values: Values, name: str, way: Way) -> int:
        """Count the pages that an event takes."""
        del name  # what an abstract model holds is what its states say
        return self.pages(way.after) - self.pages(values)

    def chosen(self, values: Values, way: Way, live: int) -> bool:
        """Tell whether an event may go this way while so many requests live: always, as there are no sizes."""
        del values, way, live
        return True

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
                if not self.chosen(entry.columns, way, len(live)):
                    continue
                grows = self.grows(entry.columns, name, way)
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
        return Move(
            (part,), put(state, index, after), way.broken, way.shown, by_scheduler, way.lost, way.tier
        )

    def is_end(self, name: str, way: Way) -> bool:
        """Tell whether a request is done after an event: it ends, or is back in the state that it must reach."""
        state = self.automaton.state_of(way.after)
        return state == END or (state == self.table.eventually and name != life_cycle.ADMIT)

    @staticmethod
    def alike(state: State) -> State:
        """Give one state for all that differ only in who is who."""
        return tuple(sorted(state, key=lambda entry: entry or ENDED))

    def faults(self, state: State) -> tuple[str, ...]:
        """Name the properties that a state breaks by itself: more pages held, or needed by one, than the pool has."""
        held = sum(entry.pages for entry in state if entry)
        over = (properties.POOL,) if held > self.pool.pages else ()
        return over if self.longest <= self.pool.pages else (*over, properties.FITS)
