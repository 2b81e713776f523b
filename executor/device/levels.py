"""The launches of one round that the host plans without knowing how it goes: by level, the states that may be met.

A round is walked over intervals of the columns: a loop that counts up from a constant ends after as many launches as
it does on the device, and what a result decides goes both ways, each request taking its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from fsm_spec.errors import UserError
from fsm_spec.language.domain import arg_bounds, column_bounds
from fsm_spec.language.expression import Bounds, interval
from fsm_spec.table import Row, Table

# No round of a sensible algorithm has more launches.
MOST_LAUNCHES = 256
_Met = tuple[str, tuple[tuple[str, Bounds], ...]]


def levels_of(table: Table) -> list[list[tuple[str, ...]]]:
    """Give, by launch of a round, the phases that run: the states that may be met, parted by the model they run.

    Raises UserError for a table whose rounds have no bound that their columns show.
    """
    top = {column.name: column.max for column in table.columns}
    columns = column_bounds(top, len(table.states))
    unknown = tuple((name, (0, most)) for name, most in top.items())
    met: set[_Met] = {(state.name, unknown) for state in table.states if state.round}
    levels: list[list[tuple[str, ...]]] = []
    while met:
        if len(levels) == MOST_LAUNCHES:
            raise UserError(
                f"{table.name}: no bound on the launches of a round shows in its columns, which a host that plans "
                "ahead needs; use a policy without lag"
            )
        levels.append(_phases(table, {name for name, _ in met}))
        met = {
            after for state, known in met for after in _after(table, state, {**columns, **dict(known)}, top)
        }
    return levels


def _phases(table: Table, names: set[str]) -> list[tuple[str, ...]]:
    """Part states by the model of their forwards: the target's run together, those of draft models each alone."""
    target: list[str] = []
    phases: list[tuple[str, ...]] = []
    for state in table.states:
        if state.name in names:
            plan = table.forwards[state.forward or ""]
            if plan.model is None:
                target.append(state.name)
            else:
                phases.append((state.name,))
    return [*phases, *([tuple(target)] if target else [])]


def _after(table: Table, state: str, known: Mapping[str, Bounds], top: Mapping[str, int]) -> list[_Met]:
    """Give what may be met behind a state within its round."""
    bounds = {**known, **arg_bounds(table.events[state].args, known), **_codes(table)}
    found = []
    for row in table.rows_of(state):
        target = table.codes.get(row.target)
        if target is None or table.states[target].round or table.states[target].built_in:
            continue
        if interval(row.guard, bounds)[1]:
            found.append((row.target, _moved(row, bounds, top)))
    return found


def _codes(table: Table) -> dict[str, Bounds]:
    """Bound the names of states by their codes."""
    return {name: (code, code) for name, code in table.codes.items()}


def _moved(row: Row, bounds: Mapping[str, Bounds], top: Mapping[str, int]) -> tuple[tuple[str, Bounds], ...]:
    """Bound the columns behind a row."""
    sets = dict(row.sets)
    moved = []
    for name, most in top.items():
        low, high = interval(sets[name], bounds) if name in sets else bounds[name]
        moved.append((name, (max(low, 0), min(high, most))))
    return tuple(moved)
