"""Rows and operators of forwards: what they read, and that as many rows judge as there are drafts."""

from __future__ import annotations

from collections.abc import Iterator

from fsm_spec import expression
from fsm_spec.expression import Expr, to_text
from fsm_spec.findings import Path
from fsm_spec.piece import Piece
from fsm_spec.scope import Place, Scope, Value, Violation, listed, segment_of
from fsm_spec.spec import Accept, Lookup, Operation, Segment


def rules(scope: Scope) -> Iterator[Violation]:
    """Judge every forward: names, kinds and counts of its rows and operators."""
    spec = scope.spec
    for name, forward in spec.forwards.items():
        path: Path = ("forwards", name)
        emptied = scope.lost((*path, "rows")) or scope.lost((*path, "ops"))
        if not forward.rows and not forward.ops and not emptied:
            yield path, f"the forward {name} has neither rows nor operators; remove it"
        for index, segment in enumerate(forward.rows):
            yield from _segment(scope, segment, (*path, "rows", index))
        for index, op in enumerate(forward.ops):
            yield from _operator(scope, name, op, (*path, "ops", index))
    if spec.forwards:
        for key, why in (
            ("contract", "what holds where a round starts"),
            ("lossless", "what the spec claims about its tokens"),
        ):
            if getattr(spec, key) is None and not scope.hurt(()):
                yield ("forwards",), f'a spec with forwards says {why}; add the key "{key}"'
        if spec.events:
            scope.doubt.update(spec.events)
            yield ("events",), "events belong to abstract models; the completion of a forward is not declared"


def _segment(scope: Scope, segment: Segment, path: Path) -> Iterator[Violation]:
    place = scope.place()
    for key in ("count", "at", "slot"):
        value = getattr(segment, key)
        if value is not None:
            yield from scope.numbers(value, (*path, key), place)
    source = segment.source
    if source.name in ("mask", "noise"):
        if source != Piece(source.name):
            yield (*path, "source"), f"{source.name} is one token on every row and takes no slice"
        return
    if source.name == "text":
        yield (
            (*path, "source"),
            "the text of the prompt is fed by prefill, which is built in; name a carry, mask or noise",
        )
        return
    sources = {**scope.carries, **dict.fromkeys(("mask", "noise"), Value("token"))}
    yield from scope.piece(source, (*path, "source"), sources, "", place, "token")
    whole = scope.carries[source.name].length if source.name in scope.carries else None
    if whole is not None:
        yield from _rows_fit(scope, segment, source.length(whole), path)


def _rows_fit(scope: Scope, segment: Segment, length: Expr, path: Path) -> Iterator[Violation]:
    off = scope.off_by(segment.count, length)
    if off is not None and off[0] > 0:
        read = f"{to_text(segment.count)} rows of {segment.name} read {to_text(length)} tokens of {segment.source}"
        yield (*path, "count"), f"{read}: {off[0]} too many{off[1]}"


def _operator(scope: Scope, forward: str, op: Operation, path: Path) -> Iterator[Violation]:
    place = scope.place()
    if isinstance(op, Lookup):
        for key in ("size", "min", "max"):
            yield from scope.numbers(getattr(op, key), (*path, key), scope.place(columns=False))
        return
    plan = scope.spec.forwards[forward]
    for position, name in enumerate(listed(op.rows)):
        inside = (*path, "rows", position) if isinstance(op.rows, list) else (*path, "rows")
        segment = segment_of(plan, name)
        if segment is None and scope.hurt(("forwards", forward, "rows")):
            scope.doubt.add(name)  # the segment that was left out may be this one
        elif segment is None:
            yield from scope.unknown(name, "the segment", [known.name for known in plan.rows], inside)
        elif segment.logits == "none" and not scope.hurt(
            ("forwards", forward, "rows", plan.rows.index(segment))
        ):
            yield inside, f"the rows of {name} give no logits; write logits: shifted (or own) on them"
        scope.used.add(("rows", forward, name))
    if isinstance(op, Accept):
        yield from _accept(scope, forward, op, path, place)


def _accept(scope: Scope, forward: str, op: Accept, path: Path, place: Place) -> Iterator[Violation]:
    yield from scope.piece(op.drafts, (*path, "drafts"), scope.carries, "", place, "token")
    if op.q is not None:
        yield from scope.piece(Piece(op.q), (*path, "q"), scope.carries, "", place, "law")
        if op.rule != "rejection":
            yield (*path, "q"), f"the rule {op.rule} reads no law of the drafts; remove q, or use rejection"
    rows = scope.row_count(forward, op.rows)
    whole = scope.carries[op.drafts.name].length if op.drafts.name in scope.carries else None
    if rows is None or whole is None:
        return
    wanted = expression.add(op.drafts.length(whole), expression.Const(1))
    off = scope.off_by(rows, wanted)
    if off is not None:
        needed = f"one row more than drafts is needed, {to_text(wanted)}{off[1]}"
        yield (*path, "rows"), f"{to_text(rows)} rows judge {op.drafts}; {needed}"
