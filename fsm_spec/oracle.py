"""The scalar oracle: what a table means, for one request, said in the most obvious way.

`step.py` is held to this by property tests; `replay` and the checker use it where one request moves at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fsm_spec.errors import UnhandledEvent
from fsm_spec.language.expression import evaluate
from fsm_spec.table import END, STOP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsm_spec.table import Row, Table


class Outcome(NamedTuple):
    """Hold what one event did: columns after, transition code (-1: ignored), tokens emitted after the cut."""

    columns: dict[str, int]
    transition: int
    emitted: int


def oracle(table: Table, columns: Mapping[str, int], event: str, args: Mapping[str, int]) -> Outcome:
    """Apply one event to one request.

    `args` are the event's arguments and, for an event that emits, `stop` (tokens before the first stop token).
    Raises UnhandledEvent where the state has no row for the event, an argument is out of range, or not exactly one
    guard holds.
    """
    state = table.states[columns["state"]].name
    rows = [row for row in table.rows_of(event) if state in row.sources]
    plan = table.events[event]
    if state in plan.ignored:
        return Outcome(dict(columns), -1, 0)
    if not rows:
        raise UnhandledEvent(
            f"{table.name}: state {state} has no row for the event {event}, which these have: {', '.join(plan.states)}"
        )
    values = {**columns, **table.codes, **args}
    for arg in plan.args:
        low, high = evaluate(arg.low, values), evaluate(arg.high, values)
        if arg.name not in args:
            raise UnhandledEvent(
                f"{table.name}: the event {event} needs the argument {arg.name} ({low} to {high})"
            )
        if not low <= args[arg.name] <= high:
            raise UnhandledEvent(
                f"{table.name}: {event} in state {state} takes {arg.name} from {low} to {high}, not {args[arg.name]}"
            )
    true = [row for row in rows if evaluate(row.guard, values)]
    if len(true) != 1:
        raise UnhandledEvent(
            f"{table.name}: {len(true)} guards hold for the event {event} in state {state}; exactly one must"
        )
    return _apply(table, columns, true[0], values)


def _apply(table: Table, columns: Mapping[str, int], row: Row, values: Mapping[str, int]) -> Outcome:
    after = dict(columns)
    after["state"] = table.codes[row.target]
    run = evaluate(row.emit_count, values)
    kept = run
    cut = False
    if table.contract:
        after["kv"] = columns["kv"] + evaluate(row.keep, values)
        if row.emit:
            # The first stop token is the last one emitted; the limit counts tokens; the earlier of both cuts.
            allowed = min(values[STOP] + 1, columns["limit"] - columns["emitted"])
            kept = min(run, allowed)
            cut = allowed <= run
            after["emitted"] = columns["emitted"] + kept
            # KV stays for the tokens kept: what lies behind the cut is never kept.
            after["kv"] -= run - kept
    for name, value in row.sets:
        after[name] = evaluate(value, values)
    if cut:
        after["state"] = table.codes[END]
    return Outcome(after, 2 * row.index + int(cut), kept)


def holding(table: Table, columns: Mapping[str, int]) -> dict[str, int]:
    """Count the slots a request holds by kind while its state's forward is in flight."""
    plan = table.states[columns["state"]].holding
    return {kind: evaluate(slots, columns) for kind, slots in plan.items()}


def next_event(table: Table, columns: Mapping[str, int]) -> str | None:
    """Name the completion event of the state's forward; None where no forward runs."""
    state = table.states[columns["state"]]
    return state.name if state.forward is not None else None
