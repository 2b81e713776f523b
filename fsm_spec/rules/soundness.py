"""Faults that show for concrete parameters only: guards that overlap or leave a gap, bounds, contract, progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsm_spec import life_cycle
from fsm_spec.language import expression
from fsm_spec.language.domain import arg_bounds, assignments
from fsm_spec.language.expression import Const, Expr, Name, evaluate, to_text
from fsm_spec.language.linear import bounds, difference, simplify

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fsm_spec.language.expression import Bounds
    from fsm_spec.language.findings import Path
    from fsm_spec.plan import ForwardPlan
    from fsm_spec.table import EventPlan, Row, Table

Fault = tuple["Path", str]
# Evaluations spent on one table, so that an absurd file is answered within a second.
_BUDGET: Final = 60_000
# Ways through a round that are followed to their end; a real round has a handful.
_MOST_WAYS: Final = 2_000
# Steps of one round that are followed; one that repeats with an ever larger debt has no end.
_MOST_STEPS: Final = 100


def shown_params(params: Mapping[str, int]) -> str:
    """Print the parameters that a fault was found under."""
    return ", ".join(f"{name}={value}" for name, value in params.items()) or "this spec"


def faults_of(table: Table, columns: Mapping[str, Bounds], paths: Mapping[int, Path]) -> list[Fault]:
    """List the faults of a table; `columns` bounds its columns, `paths` leads from rows to the file."""
    return list(_Judge(table, columns, paths).faults())


class _Judge:
    def __init__(self, table: Table, columns: Mapping[str, Bounds], paths: Mapping[int, Path]) -> None:
        self.table = table
        self.columns = columns
        self.paths = paths
        self.under = shown_params(table.params)
        self.most = max(50, _BUDGET // max(1, len(paths)))
        self.ways = 0

    def faults(self) -> Iterator[Fault]:
        for event in self.table.events.values():
            if event.name in life_cycle.EVENTS:
                continue
            for state in event.states:
                rows = [row for row in self.table.rows if row.event == event.name and state in row.sources]
                yield from self._guards(rows, event, state)
                for row in rows:
                    yield from self._bounds(row, event)
        for forward, plan in self.table.forwards.items():
            yield from self._slots(plan, ("forwards", forward, "rows"), behind=plan.model is None)
            yield from self._lookups(plan, ("forwards", forward, "ops"))
        if self.table.contract in ("pending", "full"):
            for start in self.table.states:
                if start.round:
                    yield from self._round(start.name, Const(0), 0, set())
        if self.table.contract:
            yield from self._progress()

    def _walked(self, expressions: Iterable[Expr], event: EventPlan) -> Iterator[dict[str, int]]:
        return assignments(expressions, self.columns, event.args, self.most)

    def _guards(self, rows: list[Row], event: EventPlan, state: str) -> Iterator[Fault]:
        # A state without transitions has a finding of its own.
        for values in self._walked([row.guard for row in rows], event) if rows else ():
            true = [row for row in rows if evaluate(row.guard, values)]
            if len(true) == 1:
                continue
            shown = ", ".join(f"{name} = {value}" for name, value in values.items())
            if true:
                message = f"two guards of state {state} hold at once where {shown} ({self.under})"
                yield (*self.paths[true[1].index], "when"), message
            else:
                message = (
                    f"no guard of state {state} holds where {shown} ({self.under}); the guards leave a gap"
                )
                yield (*self.paths[rows[-1].index], "when"), message
            return

    def _bounds(self, row: Row, event: EventPlan) -> Iterator[Fault]:
        """Hold columns to 0 .. max and keep to the rows whose KV may stay, wherever the guard holds."""
        path = self.paths[row.index]
        columns = {**self.columns, **arg_bounds(event.args, self.columns)}
        for where, what, value, top in self._limits(row, path):
            low, high = bounds(value, columns)
            if low >= 0 and high <= top:
                continue
            for values in self._walked([value, row.guard], event):
                result = evaluate(value, values)
                if evaluate(row.guard, values) and not 0 <= result <= top:
                    shown = ", ".join(f"{name} = {number}" for name, number in values.items()) or "always"
                    yield (
                        where,
                        f"{what} would be {result} where {shown} ({self.under}); 0 to {top} is allowed",
                    )
                    break

    def _limits(self, row: Row, path: Path) -> Iterator[tuple[Path, str, Expr, int]]:
        maxima = {column.name: column.max for column in self.table.columns}
        for name, value in row.sets:
            yield (*path, "set", name), f"column {name}", value, maxima[name]
        forward = self.table.state(row.sources[0]).forward
        if forward is not None:
            segments = self.table.forwards[forward].segments
            lasting = expression.total(
                segment.count for segment in segments if segment.kv in ("keep", "provisional")
            )
            what = f"keep leaves {to_text(lasting)} lasting rows, minus {to_text(row.keep)},"
            yield (*path, "keep"), what, difference(lasting, row.keep), 2**30
        for index, piece in enumerate(row.emit):
            yield (*path, "emit", index), f"the length of {piece}", piece.length(Const(1)), 2**30

    def _slots(self, plan: ForwardPlan, path: Path, *, behind: bool) -> Iterator[Fault]:
        """Hold every row to slots `behind` the target's committed ones, and rows of one forward to their own."""
        kv = Name("kv")
        for index, segment in enumerate(plan.segments):
            for what, place in (("position", segment.at), ("slot", segment.slot)) if behind else ():
                low = bounds(difference(place, kv), self.columns)[0]
                if low < 0:
                    key = "slot" if what == "slot" and segment.slot != segment.at else "at"
                    message = (
                        f"{segment.name} would stand at the {what} {to_text(place)}, before kv ({self.under})"
                    )
                    yield (*path, index, key), f"{message}; committed KV is never written again"
                    break
            if segment.kv in ("keep", "provisional") and plan.attention != "tree" and segment.group < 0:
                # A wrong slot is what the search shows; a wrong position would look right to it.
                before = expression.total(other.count for other in plan.segments[:index])
                usual = difference(segment.at, expression.add(kv, before)) == Const(0)
                if difference(segment.at, segment.slot) != Const(0) and not usual:
                    where = f"at the slot {to_text(segment.slot)}, but stands at {to_text(segment.at)}"
                    message = f"{segment.name} keeps KV {where}"
                    yield (
                        (*path, index, "at"),
                        f"{message} ({self.under}); KV that lasts lies where its token stands",
                    )
            for other in plan.segments[:index]:
                after = difference(segment.slot, expression.add(other.slot, other.count))
                before = difference(other.slot, expression.add(segment.slot, segment.count))
                if bounds(after, self.columns)[0] < 0 and bounds(before, self.columns)[0] < 0:
                    message = f"{segment.name} and {other.name} may share slots ({self.under})"
                    yield (*path, index, "slot"), f"{message}; rows of one forward have slots of their own"

    def _lookups(self, plan: ForwardPlan, path: Path) -> Iterator[Fault]:
        """Hold the longest run that is looked up to be no shorter than the shortest."""
        for index, op in enumerate(plan.operators):
            if op.op == "lookup":
                shortest, longest = op.numbers["min"], op.numbers["max"]
                if bounds(difference(longest, shortest), self.columns)[0] < 0:
                    message = f"runs of {to_text(shortest)} to {to_text(longest)} tokens would be looked up"
                    yield (*path, index, "min"), f"{message} ({self.under}); the shortest is tried last"

    def _round(self, state: str, debt: Expr, depth: int, met: set[tuple[str, str]]) -> Iterator[Fault]:
        """Follow a round along its states; `debt` is KV kept minus tokens emitted so far, which must end at 0."""
        key = (state, to_text(debt))
        if key in met or self.ways > _MOST_WAYS or depth > _MOST_STEPS:
            return
        met.add(key)
        self.ways += 1
        for row in self.table.rows:
            if row.built_in or state not in row.sources or row.target not in self.table.codes:
                continue
            # Arguments of earlier events of the round are other values under the same names.
            args = self.table.events[row.event].args
            fresh = {arg.name: Name(f"{arg.name}'{depth}") for arg in args}
            step = difference(row.keep, row.emit_count)
            after = simplify(expression.add(debt, expression.substitute(step, fresh)))
            target = self.table.state(row.target)
            if target.round and after != Const(0) and not self._settled(row, step, debt):
                off = to_text(expression.substitute(after, {f"{name}'{depth}": Name(name) for name in fresh}))
                broken = f"breaks the contract {self.table.contract}"
                if off.startswith("-") and off[1:].isdigit():
                    message = f"{broken}: the round emits {off[1:]} more tokens than it keeps KV slots"
                else:
                    message = f"{broken}: the round keeps {off} more KV slots than it emits tokens"
                yield self.paths[row.index], message
            elif not target.round and not target.built_in:
                yield from self._round(row.target, after, depth + 1, met)

    def _settled(self, row: Row, step: Expr, debt: Expr) -> bool:
        """Decide under the guard what the linear form left open."""
        if not isinstance(debt, Const):
            return False
        walked = self._walked([step, row.guard], self.table.events[row.event])
        return all(
            evaluate(step, values) + debt.value == 0 for values in walked if evaluate(row.guard, values)
        )

    def _progress(self) -> Iterator[Fault]:
        """Find ways that can repeat without a token and without a column that moves."""
        idle = {
            (row.sources[0], row.target): row
            for row in self.table.rows
            if not row.built_in and not self._progresses(row)
        }
        for cycle in _cycles(set(idle)):
            row = idle[cycle[0], cycle[1]]
            way = " -> ".join(cycle)
            message = f"the way {way} can repeat for ever without emitting a token or moving a column"
            yield self.paths[row.index], message

    def _progresses(self, row: Row) -> bool:
        args = self.table.events[row.event].args
        columns = {**self.columns, **arg_bounds(args, self.columns)}
        if bounds(row.emit_count, columns)[0] >= 1:
            return True
        # A count that a column is set to may be bounded by that very column, as the masks left are.
        most = {arg.name: arg.high for arg in args}
        for name, value in row.sets:
            low, high = bounds(difference(value, Name(name)), columns)
            if isinstance(value, Name) and value.name in most:
                high = min(high, bounds(difference(most[value.name], Name(name)), self.columns)[1])
            if low >= 1 or high <= -1 or self._moves(row, name, value):
                return True
        return False

    def _moves(self, row: Row, name: str, value: Expr) -> bool:
        """Decide under the guard what intervals leave open: that a column strictly rises, or strictly falls.

        A row whose guard never holds repeats nothing.
        """
        walked = self._walked([value, row.guard, Name(name)], self.table.events[row.event])
        steps = {evaluate(value, each) - each[name] for each in walked if evaluate(row.guard, each)}
        return not steps or min(steps) >= 1 or max(steps) <= -1


def _cycles(edges: set[tuple[str, str]]) -> list[list[str]]:
    """Give one cycle of each knot of a small graph, as node lists that end where they start."""
    left = set(edges)
    while True:
        sources = {source for source, _ in left}
        onward = {edge for edge in left if edge[1] in sources}
        if onward == left:
            break
        left = onward
    if not left:
        return []
    import networkx as nx  # noqa: PLC0415 - a quarter of a second, spent on a faulty spec only

    graph = nx.DiGraph(sorted(left))
    found = []
    for knot in nx.strongly_connected_components(graph):
        part = graph.subgraph(knot)
        if part.number_of_edges():
            cycle = nx.find_cycle(part)
            found.append([edge[0] for edge in cycle] + [cycle[0][0]])
    return found
