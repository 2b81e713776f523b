"""The life of a request, built into every table: wait, prefill, first token, preemption, abort, halt, end.

A spec writes rounds only; these rows stand around them, so that no spec can get admission or re-prefill wrong
(docs/language.md, life cycle).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fsm_spec.language.expression import Const, Expr, Name, Op, parse
from fsm_spec.language.piece import Piece
from fsm_spec.table import END, PREFILL, WAIT, ArgPlan, ColumnPlan, EventPlan, Row, StatePlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsm_spec.table import Contract

Carries = tuple[tuple[str, tuple[Piece, ...]], ...]
ADMIT, CHUNK, FIRST, PREEMPT, ABORT, HALT = "admit", "chunk", "first", "preempt", "abort", "halt"
EVENTS = (ADMIT, CHUNK, FIRST, PREEMPT, ABORT, HALT)

# What a prefill gives: the token behind the text, and the hidden states of its last row, as draft models read them.
NEXT, FEATURES = "next", "features"

_NEXT = (Piece(NEXT, Const(0), Const(1)),)
_KV: dict[str, Expr] = {"committed": Name("kv"), "provisional": Const(0), "scratch": Const(0)}
_NOTHING: dict[str, Expr] = dict.fromkeys(_KV, Const(0))

_LENGTH: Expr = parse("prompt + emitted")


def fill(contract: Contract, block: int = 1) -> Expr:
    """Give the committed slots that prefill must reach, by contract.

    After it the newest token alone has no KV (pending), every token has (full), or those of whole blocks (block).
    """
    if contract == "pending":
        # The first prefill emits a token; a second one, after preemption, ends before the newest emitted token.
        return parse("max(prompt + emitted - 1, prompt)")
    return _LENGTH if contract == "full" else parse(f"(prompt + emitted) // {block} * {block}")


def abstract_states() -> tuple[StatePlan, ...]:
    """Give the states built into an abstract model, which has no prefill: it holds what its own states say."""
    return (StatePlan(WAIT, "wait", _NOTHING, built_in=True), StatePlan(END, "end", _NOTHING, built_in=True))


def abstract_events(rounds: Sequence[str]) -> tuple[EventPlan, ...]:
    """Give the events built into an abstract model."""
    return (
        EventPlan(ADMIT, (WAIT,)),
        EventPlan(PREEMPT, tuple(rounds)),
        EventPlan(ABORT, (WAIT, *rounds)),
    )


def abstract_rows(rounds: Sequence[str], start: str) -> list[Row]:
    """Give the rows built into an abstract model; columns keep their values, preempted or not."""
    return [
        Row(-1, (WAIT,), ADMIT, start, built_in=True),
        Row(-1, tuple(rounds), PREEMPT, WAIT, built_in=True),
        Row(-1, (WAIT, *rounds), ABORT, END, built_in=True),
    ]


def states() -> tuple[StatePlan, ...]:
    """Give the built-in states, in the order of their codes."""
    return (
        StatePlan(WAIT, "wait", _NOTHING, built_in=True),
        StatePlan(PREFILL, "prefill", _KV, built_in=True),
        StatePlan(END, "end", _NOTHING, built_in=True),
    )


def events(contract: Contract, fill: Expr, rounds: Sequence[str]) -> tuple[EventPlan, ...]:
    """Give the built-in events; `rounds` are the round states of the spec, `fill` is what prefill must reach."""
    left = Op("-", (fill, Name("kv")))
    live = (PREFILL, *rounds)
    hit: Expr = Op("-", (fill, Const(1)))
    if contract == "block":
        hit = Op("max", (hit, Const(0)))  # a text shorter than a block has nothing to prefill
    return (
        EventPlan(ADMIT, (WAIT,), (ArgPlan("hit", Const(0), hit),)),
        EventPlan(CHUNK, (PREFILL,), (ArgPlan("n", Const(1), Op("-", (left, Const(1)))),)),
        EventPlan(FIRST, (PREFILL,), emits=contract == "pending"),
        EventPlan(PREEMPT, live),
        EventPlan(ABORT, (WAIT, *live)),
        # A stop string may be found in a run that the limit has already ended.
        EventPlan(HALT, (*rounds, END), (ArgPlan("at", Const(0), Name("emitted")),)),
    )


def rows(
    contract: Contract,
    fill: Expr,
    rounds: Sequence[str],
    start: str,
    columns: Sequence[ColumnPlan],
    carries: Carries = (),
) -> list[Row]:
    """Give the built-in rows; indices are assigned by the compiler, `carries` are values on entering the start."""
    rest = Op("-", (fill, Name("kv")))
    entry = tuple((column.name, column.init) for column in columns)
    blank: tuple[tuple[str, Expr], ...] = (("kv", Const(0)), *((column.name, Const(0)) for column in columns))
    live = (PREFILL, *rounds)

    def row(sources: tuple[str, ...], event: str, target: str, **parts: object) -> Row:
        return Row(-1, sources, event, target, built_in=True, **parts)  # type: ignore[arg-type]

    first: list[Row]
    if contract == "pending":
        # After preemption the newest token is known already: it is the last of the text, and nothing is emitted.
        newest = (Piece("text", fill, Op("+", (fill, Const(1)))),)
        first = [
            row(
                (PREFILL,),
                FIRST,
                start,
                guard=parse("emitted == 0", "bool"),
                keep=rest,
                emit=_NEXT,
                sets=entry,
                carries=(("pending", _NEXT), *carries),
            ),
            row(
                (PREFILL,),
                FIRST,
                start,
                guard=parse("emitted > 0", "bool"),
                keep=rest,
                sets=entry,
                carries=(("pending", newest), *carries),
            ),
        ]
    else:
        known: Carries = (("pending", _NEXT),) if contract == "full" else ()
        first = [row((PREFILL,), FIRST, start, keep=rest, sets=entry, carries=(*known, *carries))]
    live_on = parse("limit > emitted", "bool")
    admitted = [row((WAIT,), ADMIT, PREFILL, guard=live_on, sets=(("kv", Name("hit")),))]
    if contract == "block":
        short = Op("==", (fill, Const(0)))
        admitted = [
            replace(admitted[0], guard=Op("and", (live_on, Op(">", (fill, Const(0)))))),
            row((WAIT,), ADMIT, start, guard=Op("and", (live_on, short)), sets=entry, carries=carries),
        ]
    return [
        *admitted,
        row((WAIT,), ADMIT, END, guard=parse("limit <= emitted", "bool")),
        row((PREFILL,), CHUNK, PREFILL, keep=Name("n")),
        *first,
        row(live, PREEMPT, WAIT, sets=blank),
        row((WAIT, *live), ABORT, END),
        row((*rounds, END), HALT, END, sets=(("emitted", Name("at")),)),
    ]
