"""Rows and operators of forwards: what they read, and that as many rows judge as there are drafts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from fsm_spec.language import expression, operators
from fsm_spec.language.expression import Expr, to_text
from fsm_spec.language.findings import Path, quoted
from fsm_spec.language.operations import Accept, Budget, Capture, Grow, Operation, Sample, Unmask, Walk
from fsm_spec.language.piece import Piece
from fsm_spec.language.scope import Scope, Violation, listed, segment_of, segment_path, sources
from fsm_spec.language.spec import Forward, Segment

# Numbers that rules need, and numbers that they read; a rule reads no others.
_NUMBERS: Final = {
    "accept:topk": ("top",),
    "accept:threshold": ("threshold",),
    "unmask:threshold": ("threshold",),
    "unmask:above": ("threshold",),
    "unmask:schedule": ("quota",),
    "unmask:dynamic": ("threshold", "quota"),
    "unmask:sequential": ("quota",),
    "unmask:entropy": ("bound",),
}
_SIZES: Final = ("size", "min", "max", "top", "depth")
_CHOSEN: Final = ("top", "threshold", "bound", "quota")


def rules(scope: Scope) -> Iterator[Violation]:
    """Judge every forward: names, kinds and counts of its rows and operators."""
    spec = scope.spec
    for name, forward in spec.forwards.items():
        path: Path = ("forwards", name)
        emptied = scope.lost((*path, "rows")) or scope.lost((*path, "ops"))
        if not forward.segments and not forward.ops and not emptied:
            yield path, f"the forward {name} has neither rows nor operators; remove it"
        yield from _shape(scope, name, forward, path)
        for index, segment in enumerate(forward.segments):
            yield from _segment(scope, forward, segment, segment_path(name, forward, index))
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


def _shape(scope: Scope, name: str, forward: Forward, path: Path) -> Iterator[Violation]:
    """Hold the attention to the layout of the rows: groups to groups, a tree to the nodes of one tree."""
    if forward.groups is not None:
        if forward.rows:
            yield (*path, "rows"), f"the forward {name} has rows and groups; write its rows under groups"
        yield from scope.numbers(forward.groups.count, (*path, "groups", "count"), scope.place(columns=False))
    if (forward.groups is not None) != (forward.attention == "groups"):
        missing = "attention: groups" if forward.groups is not None else "its rows under groups"
        yield (*path, "attention"), f"rows in groups and attention: groups belong together; write {missing}"
    trees = [
        segment
        for segment in forward.segments
        for piece in sources(segment)
        if piece.name in scope.carries and scope.carries[piece.name].kind == "tree"
    ]
    if trees and forward.attention != "tree":
        yield (*path, "attention"), f"{trees[0].name} holds a tree; write attention: tree"
    elif forward.attention == "tree" and (not trees or len(forward.segments) > 1):
        yield (*path, "attention"), "attention: tree needs one segment, whose source is a carry of type tree"


def _segment(scope: Scope, forward: Forward, segment: Segment, path: Path) -> Iterator[Violation]:
    place = scope.place()
    for key in ("count", "at", "slot"):
        value = getattr(segment, key)
        if value is not None:
            yield from scope.numbers(value, (*path, key), place)
    read = sources(segment)
    if isinstance(segment.source, list) and (
        forward.groups is None or segment.count != expression.Const(1) or not read
    ):
        yield (*path, "source"), "a list of sources gives one token to each group; name one source here"
        return
    whole: list[Expr | None] = []
    for index, source in enumerate(read):
        where = (*path, "source", index) if isinstance(segment.source, list) else (*path, "source")
        if source.name in ("mask", "noise") and source != Piece(source.name):
            yield where, f"{source.name} is one token on every row and takes no slice"
        elif source.name == "text":
            message = "the text of the prompt is fed by prefill, which is built in"
            yield where, f"{message}; name a carry, mask or noise"
        elif source.name not in ("mask", "noise"):
            known = scope.carries.get(source.name)
            tree = known is not None and known.kind == "tree"
            kind: operators.Kind = "tree" if tree else "token" if segment.query else "feature"
            yield from scope.piece(source, where, scope.carries, "", place, kind)
            whole.append(
                source.length(known.length) if known is not None and known.length is not None else None
            )
    if whole and None not in whole and len(whole) == len(read):
        tokens = expression.total(length for length in whole if length is not None)
        grouped = isinstance(segment.source, list) and forward.groups is not None
        wanted = forward.groups.count if grouped and forward.groups is not None else segment.count
        yield from _enough(scope, segment, wanted, tokens, f"tokens of {', '.join(map(str, read))}", path)
    states = None if segment.features is None else scope.carries.get(segment.features.name)
    if segment.features is not None and states is not None and states.length is not None:
        held = segment.features.length(states.length)
        yield from _enough(scope, segment, segment.count, held, f"states of {segment.features}", path)


def _enough(
    scope: Scope, segment: Segment, rows: Expr, held: Expr, what: str, path: Path
) -> Iterator[Violation]:
    """Hold rows to as many tokens or states as they read."""
    off = scope.off_by(rows, held)
    if off is not None and off[0] > 0:
        message = f"{to_text(rows)} rows of {segment.name} read {to_text(held)} {what}"
        yield (*path, "count"), f"{message}: {off[0]} too many{off[1]}"


def _operator(scope: Scope, forward: str, op: Operation, path: Path) -> Iterator[Violation]:
    if isinstance(op, (Accept, Capture, Grow, Sample, Unmask, Walk)):
        yield from _read_rows(scope, forward, op, (*path, "rows"))
    yield from _numbers(scope, op, path)
    for key, kind, piece in operators.carries_of(op):
        yield from scope.piece(piece, (*path, key), scope.carries, "", scope.place(), kind)
    for key, kind, piece in operators.results_of(op):
        yield from _earlier(scope, forward, op, piece, (*path, key), kind)
    if isinstance(op, Accept):
        yield from _accept(scope, forward, op, path)
    elif isinstance(op, Unmask):
        yield from _as_many(scope, forward, op, op.block, path)
        yield from _frozen(scope, op, path)
    elif isinstance(op, Walk):
        yield from _as_many(scope, forward, op, op.tree, path)
    elif isinstance(op, Grow):
        yield from _grow(scope, forward, op, path)
    elif isinstance(op, Budget):
        yield from _budget(op, path)


def _earlier(
    scope: Scope, forward: str, op: Operation, piece: Piece, path: Path, kind: operators.Kind
) -> Iterator[Violation]:
    """Hold what an operator reads of the forward's results to those of the operators before it."""
    ops, known = scope.spec.forwards[forward].ops, scope.results[forward]
    later = {result for other in ops[ops.index(op) :] for result in listed(other.out)}
    if piece.name in later and known[piece.name].kind == kind:
        message = f"{quoted(piece.name)} is given by an operator further down"
        yield path, f"{message}; put that one before {op.op}"
        scope.used.add(("results", forward, piece.name))
    else:
        yield from scope.piece(piece, path, known, forward, scope.place(), kind)


def _grow(scope: Scope, forward: str, op: Grow, path: Path) -> Iterator[Violation]:
    """Hold a grown tree to its root, which is final, or to the levels that it has."""
    if op.rule == "best":
        if op.tree is not None:
            yield (*path, "tree"), "the rule best grows a whole tree; remove tree"
        if op.root is None:
            yield path, 'the rule best starts from the token of a root; add the key "root"'
    elif (op.root is None) == (op.tree is None):
        yield path, "the rule level starts from a root or goes on with a tree; name one of root and tree"
    elif op.root is not None:
        yield from _newest(scope, forward, op, expression.Const(1), "the root", path)
    else:
        yield from _newest(scope, forward, op, op.top, "the newest level", path)


def _newest(scope: Scope, forward: str, op: Grow, nodes: Expr, what: str, path: Path) -> Iterator[Violation]:
    """Hold the rows of a level to the nodes that they stand for."""
    rows = scope.row_count(forward, op.rows)
    off = None if rows is None else scope.off_by(rows, nodes)
    if rows is not None and off is not None:
        message = f"{to_text(rows)} rows stand for {to_text(nodes)} nodes of {what}{off[1]}"
        yield (*path, "rows"), f"{message}; as many are needed"


def _budget(op: Budget, path: Path) -> Iterator[Violation]:
    """Hold a budget to a carry of earlier chances where it looks past a dip."""
    if op.rule == "earlier" and op.earlier is None:
        yield path, 'the rule earlier reads chances of an earlier round; add the key "earlier"'
    elif op.rule != "earlier" and op.earlier is not None:
        yield (*path, "earlier"), f"the rule {op.rule} reads no earlier chances; remove it"


def _read_rows(
    scope: Scope, forward: str, op: Accept | Capture | Grow | Sample | Unmask | Walk, path: Path
) -> Iterator[Violation]:
    """Hold an operator to segments that exist and give logits, which hidden states do without."""
    plan = scope.spec.forwards[forward]
    order = [segment.name for segment in plan.segments]
    places = [order.index(name) for name in listed(op.rows) if name in order]
    if any(after <= before for before, after in pairwise(places)):
        yield path, f"{op.op} names its rows out of order; name each once, as they stand in the block"
    for position, name in enumerate(listed(op.rows)):
        inside = (*path, position) if isinstance(op.rows, list) else path
        segment = segment_of(plan, name)
        if segment is None and scope.hurt(("forwards", forward, *plan.segments_key)):
            scope.doubt.add(name)  # the segment that was left out may be this one
        elif segment is None:
            yield from scope.unknown(name, "the segment", [known.name for known in plan.segments], inside)
        elif isinstance(op, Capture):
            continue
        elif segment.logits == "none" and not scope.hurt(segment_path(forward, plan, segment)):
            yield inside, f"the rows of {name} give no logits; write logits: shifted (or own) on them"
        scope.used.add(("rows", forward, name))


def _numbers(scope: Scope, op: Operation, path: Path) -> Iterator[Violation]:
    """Hold an operator to the numbers that its rule reads."""
    fixed = scope.place(columns=False)
    if not isinstance(op, (Accept, Unmask)):
        for key in _SIZES:
            if hasattr(op, key):
                yield from scope.numbers(getattr(op, key), (*path, key), fixed)
        return
    read = _NUMBERS.get(operators.key_of(op), ())
    for key in _CHOSEN:
        value = getattr(op, key, None)
        if value is None and key in read:
            yield path, f'the rule {op.rule} needs {key}; add the key "{key}"'
        elif value is not None and key not in read:
            yield (*path, key), f"the rule {op.rule} reads no {key}; remove it"
        elif value is not None:
            yield from scope.numbers(value, (*path, key), scope.place() if key == "quota" else fixed)
    for key in ("left", "steps", "start") if isinstance(op, Unmask) else ():
        value = getattr(op, key)
        if value is not None:
            yield from scope.numbers(value, (*path, key), scope.place())


def _as_many(scope: Scope, forward: str, op: Unmask | Walk, name: str, path: Path) -> Iterator[Violation]:
    """Hold an operator's rows to the tokens or nodes of the carry that it reads beside them."""
    rows = scope.row_count(forward, op.rows)
    whole = scope.carries[name].length if name in scope.carries else None
    if rows is None or whole is None:
        return
    off = scope.off_by(rows, whole)
    if off is not None:
        yield (
            (*path, "rows"),
            f"{to_text(rows)} rows stand for {to_text(whole)} of {name}{off[1]}; as many are needed",
        )


def _frozen(scope: Scope, op: Unmask, path: Path) -> Iterator[Violation]:
    """Keep a stop token of the prompt from freezing the masks behind it, where a block begins with text."""
    carry = scope.spec.carry.get(op.block)
    begun = carry.init or [] if carry is not None else []
    if op.freeze is not None and op.start is None and any(piece.name == "text" for piece in begun):
        message = f"{op.block} begins with the end of the prompt, whose stop tokens would freeze the masks behind them"
        yield (*path, "freeze"), f'{message}; add the key "start", the first row that is not of the prompt'


def _accept(scope: Scope, forward: str, op: Accept, path: Path) -> Iterator[Violation]:
    if op.q is not None and op.rule != "rejection":
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
