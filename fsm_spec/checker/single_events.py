"""Requests of a spec with forwards that move one event at a time, instead of by the scheduler's rounds.

Forwards of different requests then end in any order. Pages are taken where a round starts, for all of it; what a
state holds between two events follows from the state alone: its committed slots at a round point, the rest of the
round inside it. A request that lacks pages may give all of its own back, as in an abstract model. Arrivals come in any
order, and admission counts with the longest case of any request.

Where a policy has tiers, each request's round runs under the size for as many requests as live when it starts, whatever
size others run under: inside the round it stands behind the columns, as a stamp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsm_spec import life_cycle
from fsm_spec.checker import properties
from fsm_spec.checker.automaton import Way, automaton_of
from fsm_spec.checker.composition import ABSENT, ARRIVE
from fsm_spec.checker.interleaving import Interleaving
from fsm_spec.peaks import extents
from fsm_spec.policy import fill_slots, longest_pages, most_headroom
from fsm_spec.table import END, PREFILL, WAIT
from fsm_spec.tiers import tiers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsm_spec.checker.automaton import Automaton, Values
    from fsm_spec.checker.composition import Move
    from fsm_spec.policy import Policy, Pool

# The order in which the events of a state are tried: a request gives its pages back only where it is blocked.
_LAST: Final = (life_cycle.PREEMPT, life_cycle.ABORT)


class SingleEvents(Interleaving):
    """Give the moves of requests of a spec with forwards, one event of one of them at a time.

    `arrivals` are prompts and limits; with `chunks`, prompts are prefilled in parts of any size.
    """

    def __init__(
        self,
        automaton: Automaton,
        policy: Policy,
        pool: Pool,
        requests: int,
        arrivals: Sequence[tuple[int, int]],
        *,
        abort: bool = True,
        chunks: bool = False,
    ) -> None:
        self.arrivals = [automaton.values(automaton.table.new_request(*sizes)) for sizes in arrivals]
        self.chunks = chunks
        self.tiers = tiers_of(automaton.table, policy)
        self.automata = {
            self.tiers.size(table): automaton_of(table, automaton) for table in self.tiers.tables
        }
        self._extents = {size: extents(each.table) for size, each in self.automata.items()}
        # By requests that live, the size of a round that starts then.
        self._size_of = [self.tiers.size(self.tiers.table(live)) for live in range(requests + 1)]
        self._width = len(automaton.names)
        self._longest = max(longest_pages(automaton.table, pool, *sizes, policy) for sizes in arrivals)
        super().__init__(automaton, policy, pool, requests, abort=abort)

    def _first(self) -> Values:
        return ABSENT.columns

    def _sizes(self) -> tuple[int, int]:
        return self._longest, int(self.pool.pages_of(most_headroom(self.table, self.policy)))

    def events(self, values: Values) -> list[tuple[str, Way]]:
        """List the events of a local state with the ways they go."""
        if values == ABSENT.columns:
            return [(ARRIVE, Way(arrived, (), 0)) for arrived in self.arrivals]
        state = self.automaton.state_of(values)
        if state == WAIT:
            found = [(life_cycle.ADMIT, way) for way in self.automaton.admit(values, 0)]
        elif state == PREFILL:
            found = self._prefills(values)
        else:
            found = [
                (state, way) for size in self._sizes_at(values) for way in self._own(values, state, size)
            ]
        for name in _LAST:
            if state in self.table.events[name].states and (name != life_cycle.ABORT or self.abort):
                found += [(name, way) for way in self.automaton.alone(values[: self._width], name)]
        return found

    def _starts(self, values: Values) -> bool:
        """Tell whether a round would start here."""
        return values != ABSENT.columns and self.table.states[values[0]].round

    def _sizes_at(self, values: Values) -> Sequence[int | None]:
        """List the sizes under which a state's forward can run: all of the policy's, or the one of its round."""
        if self._starts(values):
            return list(dict.fromkeys(self._size_of[1:]))
        return values[self._width :] or (None,)

    def _own(self, values: Values, event: str, size: int | None) -> Iterator[Way]:
        """Yield the ways of a forward under a size; inside a round the size goes along."""
        for way in self.automata[size].alone(values[: self._width], event):
            state = self.table.states[way.after[0]]
            stamp = () if size is None or state.round or state.built_in else (size,)
            yield self._judged(values, way._replace(after=(*way.after, *stamp), tier=size))

    def chosen(self, values: Values, way: Way, live: int) -> bool:
        """Tell whether an event may go this way while so many requests live: they choose the size of a new round."""
        return way.tier is None or not self._starts(values) or way.tier == self._size_of[live]

    def automaton_of(self, move: Move) -> Automaton:
        """Give the automaton of the size under which a request moves."""
        return self.automata.get(move.tier, self.automaton)

    def sizes(self, move: Move) -> dict[str, int]:
        """Give the size of the tiered parameter by its name; nothing without tiers."""
        return {} if move.tier is None or self.tiers.param is None else {self.tiers.param: move.tier}

    def _prefills(self, values: Values) -> list[tuple[str, Way]]:
        """List the ways of the rest of a prompt at once, and of every smaller chunk where these are on."""
        columns = self.automaton.columns(values)
        left = fill_slots(self.table, columns["prompt"], columns["emitted"]) - columns["kv"]
        counts = range(1, left + 1) if self.chunks else (left,)
        return [
            (life_cycle.CHUNK if count < left else life_cycle.FIRST, way)
            for count in counts
            for way in self.automaton.prefill(values, count)
        ]

    def _judged(self, values: Values, way: Way) -> Way:
        """Hold the slots that an event uses to the pages owned while it runs."""
        if way.lost or way.used <= self.during(values, way.tier) * self.pool.page_size:
            return way
        return way._replace(broken=(*way.broken, properties.SLOTS))

    def pages(self, values: Values) -> int:
        """Count the pages that a local state holds."""
        if values == ABSENT.columns:
            return 0
        columns = self.automaton.columns(values)
        state = self.table.states[values[0]]
        if state.name in (WAIT, END):
            return 0
        if state.name == PREFILL:
            return int(self.pool.pages_of(fill_slots(self.table, columns["prompt"], columns["emitted"])))
        ahead = 0 if state.round else self._extents[self._sizes_at(values)[0]][state.name]
        return int(self.pool.pages_of(columns["kv"] + ahead))

    def during(self, values: Values, size: int | None) -> int:
        """Count the pages that a request owns while the forward of its state runs under a size."""
        if not self._starts(values):
            return self.pages(values)
        peak = self.automata[size].table.states[values[0]].peak
        return int(self.pool.pages_of(self.automaton.columns(values)["kv"] + peak))

    def grows(self, values: Values, name: str, way: Way) -> int:
        """Count the pages that an event takes: those of its whole round where one starts."""
        if values != ABSENT.columns and name == self.automaton.state_of(values):
            return self.during(values, way.tier) - self.pages(values)
        return super().grows(values, name, way)

    def lives(self, values: Values) -> bool:
        """Tell whether a request has been admitted."""
        return values != ABSENT.columns and super().lives(values)
