"""Caches of draft models: that their committed slots are, after every event, what `behind` says they are.

A cache holds `kv - behind` committed slots. A forward of its model adds the rows it keeps, nothing else moves it;
so behind + keep must balance on every transition, and prefill must leave it where `behind` starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from fsm_spec.language import expression
from fsm_spec.language.expression import Const, Expr, Name, Op, to_text
from fsm_spec.language.linear import bounds, difference, simplify
from fsm_spec.life_cycle import FIRST
from fsm_spec.rules.draft_rows import BESIDE
from fsm_spec.wording import counted

if TYPE_CHECKING:
    from fsm_spec.language.expression import Bounds
    from fsm_spec.language.findings import Path
    from fsm_spec.plan import ForwardPlan
    from fsm_spec.table import ModelPlan, Row, Table

Fault = tuple["Path", str]
KV: Final = Name("kv")
# Comparisons that may pin a column, and each with its sides changed.
_MIRRORED: Final = {"==": "==", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def faults_of(
    table: Table,
    columns: Mapping[str, Bounds],
    paths: Mapping[int, Path],
    under: str,
) -> Iterator[Fault]:
    """Yield every transition after which a draft cache is not where its model says."""
    if not table.models:
        return
    known = constants(table, columns)
    for name, model in table.models.items():
        yield from _start(table, name, model.kind, model.behind)
        for row in table.rows:
            if not row.built_in and row.target in table.codes:
                before = known[row.sources[0]] | pinned(row.guard, columns)
                yield from _balance(table, row, model, before, paths[row.index], under)
    for forward, plan in table.forwards.items():
        if plan.model is not None:
            yield from _gap(table, plan, columns, ("forwards", forward, "rows"), under)
    for row in table.rows:
        if not row.built_in and _model_of(table, row) is not None:
            yield from _whole(table, row, paths[row.index])


def committed(behind: Expr) -> Expr:
    """Give the committed slots of a cache."""
    return simplify(expression.subtract(KV, behind))


def constants(table: Table, columns: Mapping[str, Bounds]) -> dict[str, dict[str, Expr]]:
    """Give, by state, the columns that have one value wherever it is entered, as every way in sets or guards them."""
    known: dict[str, dict[str, Expr] | None] = {
        state.name: {} if state.built_in else None for state in table.states
    }
    ways = [row for row in table.rows if not row.built_in or row.event == FIRST]
    moved = True
    while moved:
        moved = False
        for row in ways:
            before = known[row.sources[0]]
            old = known.get(row.target, {})
            if before is None or old == {}:
                continue
            here = before if row.built_in else before | pinned(row.guard, columns)
            after = {name: value for name, value in {**here, **dict(row.sets)}.items() if _fixed(value)}
            new = after if old is None else {n: v for n, v in old.items() if after.get(n) == v}
            if new != old:
                known[row.target], moved = new, True
    return {name: values or {} for name, values in known.items()}


def pinned(guard: Expr, columns: Mapping[str, Bounds]) -> dict[str, Expr]:
    """Give the columns that have one value wherever a guard holds: `late == 0`, or `late < 1` where 0 is the least."""
    if not isinstance(guard, Op):
        return {}
    if guard.op == "and":
        return {name: value for part in guard.args for name, value in pinned(part, columns).items()}
    if guard.op not in _MIRRORED:
        return {}
    op, (left, right) = guard.op, guard.args
    if isinstance(left, Const):
        op, left, right = _MIRRORED[op], right, left
    if not (isinstance(left, Name) and isinstance(right, Const) and left.name in columns):
        return {}
    low, high = columns[left.name]
    if op == "==":
        low = high = right.value
    elif op in ("<", "<="):
        high = min(high, right.value - (op == "<"))
    else:
        low = max(low, right.value + (op == ">"))
    return {left.name: Const(low)} if low == high else {}


def _fixed(value: Expr) -> bool:
    return isinstance(value, Const)


def _model_of(table: Table, row: Row) -> str | None:
    forward = table.state(row.sources[0]).forward
    return table.forwards[forward].model if forward is not None else None


def _start(table: Table, name: str, kind: str, behind: Expr) -> Iterator[Fault]:
    """Hold `behind` to what prefill leaves: a model that reads a token beside the state before it lacks one row."""
    first = {column.name: column.init for column in table.columns}
    lag = Const(1 if kind in BESIDE else 0)
    if difference(expression.substitute(behind, first), lag) != Const(0):
        message = f"prefill leaves the cache of a {kind} {lag.value} rows behind"
        yield ("models", name, "behind"), f"{message}; let {to_text(behind)} start at {lag.value}"


def _balance(
    table: Table, row: Row, model: ModelPlan, known: Mapping[str, Expr], path: Path, under: str
) -> Iterator[Fault]:
    """Hold `behind` to what a cache lacks after a transition: the target's keep more, its own keep less."""
    own = _model_of(table, row) == model.name
    lacks = expression.subtract(expression.add(row.keep, model.behind), row.draft_keep if own else Const(0))
    after = expression.substitute(model.behind, dict(row.sets))
    if simplify(expression.substitute(difference(lacks, after), known)) == Const(0):
        return
    missing, said = (simplify(expression.substitute(each, known)) for each in (lacks, after))
    message = f"the cache of {model.name} {_lacks(missing)} here, and behind comes out as {to_text(said)}"
    ways = []
    if own:
        kept = simplify(
            expression.substitute(difference(expression.add(row.keep, model.behind), after), known)
        )
        ways.append(f"keep: {to_text(kept)}")
    # A forward of its own that keeps nothing shall keep; and no column holds less than 0 rows.
    if not (own and missing == model.behind) and not (isinstance(missing, Const) and missing.value < 0):
        ways.append(f"let set give {to_text(model.behind)} the value {to_text(missing)}")
    yield path, f"{message} ({under}); {' or '.join(ways) or 'keep no more than the target has'}"


def _lacks(count: Expr) -> str:
    """Say how far a cache is behind the target's, or ahead of it."""
    if isinstance(count, Const) and count.value < 0:
        return f"holds {counted(-count.value, 'row')} more than the target's"
    return f"lacks {counted(count.value, 'row') if isinstance(count, Const) else f'{to_text(count)} rows'}"


def _gap(
    table: Table, plan: ForwardPlan, columns: Mapping[str, Bounds], path: Path, under: str
) -> Iterator[Fault]:
    """Hold rows to slots behind the committed ones; only open rows of earlier forwards may lie between."""
    base = committed(table.models[plan.model or ""].behind)
    reuses = any(
        segment.kv == "open"
        for other in table.forwards.values()
        if other.model == plan.model
        for segment in other.segments
    )
    for index, segment in enumerate(plan.segments):
        low = bounds(difference(segment.slot, base), columns)[0]
        if low < 0:
            message = (
                f"{segment.name} would stand at the slot {to_text(segment.slot)}, before {to_text(base)}"
            )
            yield (*path, index, "at"), f"{message} ({under}); committed rows are never written again"
        elif index == 0 and not reuses and difference(segment.slot, base) != Const(0):
            message = f"{segment.name} stands at the slot {to_text(segment.slot)}, and the cache ends at"
            yield (*path, index, "at"), f"{message} {to_text(base)} ({under}); start there, or keep rows open"


def _whole(table: Table, row: Row, path: Path) -> Iterator[Fault]:
    """Hold a transition to keep all rows that its draft forward writes to stay."""
    forward = table.state(row.sources[0]).forward
    assert forward is not None, "only rows with a forward keep"
    segments = table.forwards[forward].segments
    lasting = simplify(expression.total(segment.count for segment in segments if segment.kv == "keep"))
    if difference(lasting, row.draft_keep) != Const(0):
        message = f"{forward} writes {to_text(lasting)} rows to stay, and {to_text(row.draft_keep)} are kept"
        yield (*path, "keep"), f"{message}; write keep: {to_text(lasting)}"
