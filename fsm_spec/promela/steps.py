"""The steps of an abstract model: a row, for one state it leaves and one value of each argument of its event."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING, Final

from fsm_spec import life_cycle
from fsm_spec.language.domain import column_bounds
from fsm_spec.language.expression import (
    TRUE,
    Const,
    Expr,
    Name,
    Op,
    both,
    evaluate,
    interval,
    names,
    substitute,
    total,
)
from fsm_spec.promela.text import FALSE, all_of, any_of, negated
from fsm_spec.table import END

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fsm_spec.table import EventPlan, Row, Table

# Values walked to see that exactly one guard holds; where there are more, the model itself checks it.
_WALKED: Final = 1 << 14


@dataclass(frozen=True)
class Step:
    """Hold one option of a request: a row, for one state it leaves and one value of each argument.

    `guard`, `sets` and `slots` (held after it) read the columns before it.
    """

    source: str
    event: str
    args: tuple[tuple[str, int], ...]
    row: Row
    guard: Expr
    sets: tuple[tuple[str, Expr], ...]
    slots: Expr

    @property
    def target(self) -> str:
        """Name the state after it."""
        return self.row.target


class Steps:
    """Read the steps of a table: what each state can do, in the order of `Interleaving.events`."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.codes = dict(table.codes)
        self.bounds = column_bounds({column.name: column.max for column in table.columns}, len(table.states))

    def events(self, state: str) -> list[EventPlan]:
        """List the events of a state, its own first."""
        own = [event for event in self.table.events.values() if state in event.states]
        return sorted(own, key=lambda event: event.name in life_cycle.EVENTS)

    def arguments(self, event: EventPlan) -> Iterator[dict[str, int]]:
        """Enumerate every value that the arguments of an event can have in any state."""
        bounds = dict(self.bounds) | {name: (code, code) for name, code in self.codes.items()}
        ranges = []
        for arg in event.args:
            low, high = interval(arg.low, bounds)[0], interval(arg.high, bounds)[1]
            bounds[arg.name] = (low, high)
            ranges.append(range(low, high + 1))
        for values in product(*ranges):
            yield dict(zip((arg.name for arg in event.args), values, strict=True))

    def reads(self, state: str, expr: Expr, args: Mapping[str, int]) -> Expr:
        """Put the state's code and the arguments in place of their names."""
        return substitute(expr, {**self.codes, "state": self.codes[state], **args})

    def in_range(self, state: str, event: EventPlan, args: Mapping[str, int]) -> Expr:
        """Give the condition under which an event can have these arguments."""
        allowed: Expr = TRUE
        for arg in event.args:
            value = Const(args[arg.name])
            for condition in (Op("<=", (arg.low, value)), Op("<=", (value, arg.high))):
                allowed = both(allowed, self.reads(state, condition, args))
        return allowed

    def steps(self, state: str, event: EventPlan) -> list[Step]:
        """List the steps of an event; where one leads to the state that an earlier one leads to, it is no step."""
        found: list[Step] = []
        rows = [row for row in self.table.rows_of(event.name) if state in row.sources]
        for args in self.arguments(event):
            allowed = self.in_range(state, event, args)
            guards = [self.reads(state, row.guard, args) for row in rows]
            exact = self.exactly_one(allowed, guards)
            for row, guard in zip(rows, guards, strict=True):
                others = () if exact else tuple(other for other in guards if other is not guard)
                step = self._step(state, event, args, row, all_of((allowed, guard, *map(negated, others))))
                earlier = [all_of((other.guard, _alike(step, other))) for other in found]
                alone = all_of((step.guard, *map(negated, earlier)))
                if self.possible(alone):
                    found.append(Step(state, event.name, step.args, row, alone, step.sets, step.slots))
        return found

    def _step(self, state: str, event: EventPlan, args: dict[str, int], row: Row, guard: Expr) -> Step:
        sets = tuple((name, self.reads(state, value, args)) for name, value in row.sets)
        held = total([*self.table.state(row.target).holding.values()])
        slots = substitute(self.reads(row.target, held, {}), dict(sets))
        return Step(state, event.name, tuple(args.items()), row, guard, sets, slots)

    def exactly_one(self, allowed: Expr, guards: list[Expr]) -> bool:
        """Tell whether exactly one guard holds for all values of the columns that they read."""
        walked = self._walk((allowed, *guards))
        return walked is not None and all(
            sum(evaluate(guard, values) for guard in guards) == 1
            for values in walked
            if evaluate(allowed, values)
        )

    def possible(self, condition: Expr) -> bool:
        """Tell whether a condition may hold for some values of the columns."""
        walked = self._walk((condition,))
        return walked is None or any(evaluate(condition, values) for values in walked)

    def _walk(self, expressions: Iterable[Expr]) -> list[dict[str, int]] | None:
        """Give all values of the columns that expressions read; None where there are too many."""
        read = sorted({name for expr in expressions for name in names(expr)})
        ranges = [range(self.bounds[name][0], self.bounds[name][1] + 1) for name in read]
        walked = list(islice(product(*ranges), _WALKED + 1))
        return [dict(zip(read, each, strict=True)) for each in walked] if len(walked) <= _WALKED else None

    def unhandled(self, state: str, event: EventPlan) -> list[Expr]:
        """Give the conditions under which no row, or more than one, takes an event."""
        rows = [row for row in self.table.rows_of(event.name) if state in row.sources]
        found = []
        for args in self.arguments(event):
            allowed = self.in_range(state, event, args)
            guards = [self.reads(state, row.guard, args) for row in rows]
            if allowed != FALSE and not self.exactly_one(allowed, guards):
                once = [all_of((g, *(negated(o) for o in guards if o is not g))) for g in guards]
                found.append(all_of((allowed, negated(any_of(once)))))
        return found


def _alike(step: Step, other: Step) -> Expr:
    """Give the condition under which two steps lead to one state."""
    if step.target != other.target:
        return FALSE
    if step.target == END:
        return TRUE
    mine, its = dict(step.sets), dict(other.sets)
    same = []
    for name in sorted(mine.keys() | its.keys()):
        left, right = mine.get(name, Name(name)), its.get(name, Name(name))
        same.append(TRUE if left == right else substitute(Op("==", (left, right)), {}))
    return all_of(same)
