"""Peaks and advances: the slots that a round needs above `kv`, and the tokens whose KV it commits at most.

They are what the scheduler takes pages for at a round point (docs/language.md, life cycle).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fsm_spec.language import expression
from fsm_spec.language.domain import arg_bounds, column_bounds
from fsm_spec.language.expression import Name
from fsm_spec.language.linear import bounds, difference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsm_spec.language.expression import Bounds
    from fsm_spec.table import StatePlan, Table


def with_peaks(table: Table, columns: Mapping[str, Bounds]) -> Table:
    """Give the table with the peak and advance of every round state filled in; `columns` bounds the columns."""
    walk = _Peaks(table, columns)
    states = tuple(
        replace(state, peak=walk.extent(state), advance=walk.advance(state)) if state.round else state
        for state in table.states
    )
    return replace(table, states=states, cache={})


def extents(table: Table) -> dict[str, int]:
    """Give by state with a forward the slots above `kv` that it and the way to the next round point use at most."""
    columns = column_bounds({column.name: column.max for column in table.columns}, len(table.states))
    walk = _Peaks(table, columns)
    return {state.name: walk.extent(state) for state in table.states if state.forward is not None}


class _Peaks:
    """Walk rounds from each round state; a state met again on its own way adds nothing."""

    def __init__(self, table: Table, columns: Mapping[str, Bounds]) -> None:
        self.table = table
        self.columns = columns
        self._known: dict[tuple[str, str], int] = {}
        self.kept = [
            max(0, bounds(row.keep, {**columns, **arg_bounds(table.events[row.event].args, columns)})[1])
            for row in table.rows
        ]

    def extent(self, state: StatePlan) -> int:
        """Give the most slots above the present `kv` that the way to the next round point uses."""
        own = 0
        if state.forward is not None:
            for segment in self.table.forwards[state.forward].segments:
                end = difference(expression.add(segment.slot, segment.count), Name("kv"))
                own = max(own, bounds(end, self.columns)[1])
        return max([own, *self._onward("extent", state)])

    def advance(self, state: StatePlan) -> int:
        """Give the most tokens whose KV is committed on the way to the next round point."""
        last = (
            self.kept[row.index] for row in self.table.rows if not row.built_in and state.name in row.sources
        )
        return max([0, *last, *self._onward("advance", state)])

    def _onward(self, what: str, state: StatePlan) -> list[int]:
        """Give what is kept on each way to a state inside the round, plus what follows there."""
        values = []
        for row in self.table.rows:
            if row.built_in or state.name not in row.sources or row.target not in self.table.codes:
                continue
            target = self.table.state(row.target)
            if target.round or target.built_in:
                continue
            key = (what, target.name)
            if key not in self._known:
                self._known[key] = 0
                self._known[key] = getattr(self, what)(target)
            values.append(self.kept[row.index] + self._known[key])
        return values
