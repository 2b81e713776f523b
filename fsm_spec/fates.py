"""Fates of KV and tokens: what may be kept, what may be emitted, and what `pending` must be (rules 3, 5 and 7).

A row's KV may stay only if the row is causal, runs base weights, and its token is final: the newest token, a sample
of a clean row, or a draft within the accepted count. The rule is about rows, not about phases.
"""

from __future__ import annotations

from collections.abc import Iterator

from fsm_spec import expression
from fsm_spec.domain import assignments, column_bounds
from fsm_spec.expression import Const, Expr, evaluate, substitute, to_text
from fsm_spec.findings import Path, quoted
from fsm_spec.linear import simplify
from fsm_spec.piece import Piece, parse_piece
from fsm_spec.scope import PENDING, Scope, Violation, forward_of, listed, segment_of, sources_of
from fsm_spec.spec import Accept, Forward, Sample, Segment, Transition
from fsm_spec.table import ArgPlan

_LASTING = ("keep", "provisional", "scratch")
_WALKED_BOUND = 2**20


def rules(scope: Scope) -> Iterator[Violation]:
    """Judge every forward's rows, and every transition's keep, emit and pending."""
    final = final_carries(scope)
    for name, forward in scope.spec.forwards.items():
        yield from _rows(scope, name, forward, final)
    for index, transition in enumerate(scope.spec.transitions):
        yield from _pending(scope, transition, ("transitions", index))
        for state in sources_of(transition):
            forward_name = forward_of(scope.spec, state)
            if forward_name is not None:
                forward = scope.spec.forwards[forward_name]
                yield from _emitted(scope, transition, forward, ("transitions", index), final)
                yield from _accepted(scope, transition, forward, ("transitions", index))


def judge(forward: Forward) -> Accept | None:
    """Give the forward's first accept operator."""
    return next((op for op in forward.ops if isinstance(op, Accept)), None)


def clean(forward: Forward, name: str) -> bool:
    """Tell whether a segment speaks for the target: causal, base weights, and nothing unverified before it."""
    if forward.attention != "causal":
        return False
    for segment in forward.rows:
        if segment.kv != "keep" or segment.weights != "base":
            return False
        if segment.name == name:
            return True
    return False


def final_results(forward: Forward) -> set[str]:
    """Name the results of a forward whose tokens are final: an accept's next, samples of clean rows."""
    final: set[str] = set()
    for op in forward.ops:
        if isinstance(op, Accept):
            final.add(op.out[1])
        elif isinstance(op, Sample) and all(_foretells(forward, name) for name in listed(op.rows)):
            final.add(listed(op.out)[0])
    return final


def _foretells(forward: Forward, name: str) -> bool:
    segment = segment_of(forward, name)
    return segment is not None and segment.logits == "shifted" and clean(forward, name)


def final_carries(scope: Scope) -> set[str]:
    """Name the carries that only ever hold final tokens; those in doubt count as final."""
    final = {name for name, value in scope.carries.items() if value.kind == "token"} | scope.doubt
    readers: dict[str, set[str]] = {}
    todo: list[str] = []
    for transition in scope.spec.transitions:
        forwards = [forward_of(scope.spec, state) for state in sources_of(transition)]
        known = [final_results(scope.spec.forwards[forward]) for forward in forwards if forward is not None]
        results = set.intersection(*known) if known else set()
        for target in (set(transition.set) & final) - scope.doubt:
            for name in _names_of(transition.set[target]):
                readers.setdefault(name, set()).add(target)
                if name not in final | results:
                    todo.append(target)
    while todo:
        name = todo.pop()
        if name in final:
            final.discard(name)
            todo.extend(readers.get(name, ()))
    return final


def _names_of(value: object) -> Iterator[str]:
    """Yield the names of pieces; texts that are no pieces are reported elsewhere."""
    for text in value if isinstance(value, list) else [value]:
        try:
            yield parse_piece(str(text)).name
        except expression.ExpressionError:
            continue


# Rows ---------------------------------------------------------------------------------------------------------


def _rows(scope: Scope, name: str, forward: Forward, final: set[str]) -> Iterator[Violation]:
    accept = judge(forward)
    reached = 0
    for index, segment in enumerate(forward.rows):
        path: Path = ("forwards", name, "rows", index, "kv")
        rank = _LASTING.index(segment.kv)
        if rank < reached and segment.slot is None:
            yield (
                path,
                f"{segment.kv} rows stand before {_LASTING[reached]} rows; put {segment.name} first, or give its slot",
            )
        reached = max(reached, rank)
        if segment.kv != "scratch":
            yield from _stays(forward, segment, path)
        if segment.kv == "keep" and segment.source.name in scope.carries and segment.source.name not in final:
            yield (
                path,
                f"{segment.name} keeps the KV of {segment.source}, which no verifier has accepted; write kv: provisional and judge it",
            )
        if segment.kv == "provisional":
            yield from _judged(scope, segment, accept, path)
    if accept is not None and scope.claims:
        yield from _judges(forward, accept, ("forwards", name, "ops", forward.ops.index(accept), "rows"))


def _stays(forward: Forward, segment: Segment, path: Path) -> Iterator[Violation]:
    """Rows that may stay are causal, run base weights, and are no masks."""
    fate = f"{segment.name} is {segment.kv}"
    if segment.source.name in ("mask", "noise"):
        yield path, f"{fate}, but KV of {segment.source.name} rows never persists; write kv: scratch"
    elif forward.attention != "causal":
        yield path, f"{fate}, but KV of a bidirectional pass is not the target's; write kv: scratch"
    elif segment.weights != "base":
        yield (
            path,
            f"{fate}, but KV written with the adapter is not the target's; write kv: scratch, or weights: base",
        )


def _judged(scope: Scope, segment: Segment, accept: Accept | None, path: Path) -> Iterator[Violation]:
    if accept is None:
        if "accept" not in scope.doubt:
            yield path, f"{segment.name} is provisional, but no accept operator of this forward judges it"
    elif segment.name not in listed(accept.rows):
        if segment.name not in scope.doubt and not set(listed(accept.rows)) & scope.doubt:
            yield (
                path,
                f"{segment.name} is provisional, but accept judges the rows {', '.join(listed(accept.rows))} only",
            )
    elif (
        segment.source.name != accept.drafts.name
        and not {segment.source.name, accept.drafts.name} & scope.doubt
    ):
        yield (
            path,
            f"{segment.name} holds {segment.source}, but accept judges {accept.drafts}; name one carry in both",
        )


def _judges(forward: Forward, accept: Accept, path: Path) -> Iterator[Violation]:
    for name in listed(accept.rows):
        segment = segment_of(forward, name)
        if segment is not None and (
            segment.weights != "base" or forward.attention != "causal" or segment.logits == "own"
        ):
            yield (
                path,
                f"the rows of {name} may not judge: the target judges with causal rows, base weights and logits: shifted",
            )


# Transitions --------------------------------------------------------------------------------------------------


def _pending(scope: Scope, transition: Transition, path: Path) -> Iterator[Violation]:
    """A transition that emits says which token is pending then; under the contract pending it is the newest."""
    if scope.spec.contract is None or not transition.emit or {"set", PENDING} & scope.doubt:
        return
    last = transition.emit[-1]
    if PENDING not in transition.set:
        wanted = (
            f"set: {{pending: {last.name}}}"
            if scope.spec.contract == "pending"
            else "the token that is known but not emitted"
        )
        yield (*path, "emit"), f"tokens are emitted, but pending is not set; write {wanted}"
        return
    value = transition.set[PENDING]
    text = value[0] if isinstance(value, list) and value else value
    if scope.spec.contract == "pending" and not _is_end_of(text, last) and last.name not in scope.doubt:
        yield (
            (*path, "set", PENDING),
            f"pending is the newest token, but the last one emitted is {quoted(str(last))}",
        )


def _is_end_of(text: object, last: Piece) -> bool:
    try:
        piece = parse_piece(str(text))
    except expression.ExpressionError:
        return True  # reported elsewhere
    return piece.name == last.name and piece.stop == last.stop


def _emitted(
    scope: Scope, transition: Transition, forward: Forward, path: Path, final: set[str]
) -> Iterator[Violation]:
    """Where the spec claims to be lossless, only tokens that the target vouches for are emitted."""
    if not scope.claims:
        return
    accept = judge(forward)
    vouched = (
        final | final_results(forward) | scope.doubt | ({accept.drafts.name} if accept is not None else set())
    )
    known = {*scope.carries, *(name for op in forward.ops for name in scope.outputs(op, forward))}
    for index, piece in enumerate(transition.emit):
        if piece.name in known and piece.name not in vouched:
            yield (
                (*path, "emit", index),
                f"{piece} is emitted before the target has verified it; judge it by accept first",
            )


def _accepted(scope: Scope, transition: Transition, forward: Forward, path: Path) -> Iterator[Violation]:
    """Walk the accepted counts under the guard: no row is kept and no draft emitted beyond them."""
    accept = judge(forward)
    rows = scope.row_count(forward, accept.rows) if accept is not None else None
    if (
        accept is None
        or rows is None
        or set(scope.doubt) & {accept.out[0], *expression.names(transition.when)}
    ):
        return
    verified = expression.total(segment.count for segment in forward.rows if segment.kv == "keep")
    count = expression.Name(accept.out[0])
    limits = [
        (
            (*path, "keep"),
            f"keep: {to_text(transition.keep)} keeps",
            transition.keep,
            expression.add(verified, count),
            "rows",
        )
    ]
    start = accept.drafts.start or Const(0)
    whole = scope.carries[accept.drafts.name].length if accept.drafts.name in scope.carries else None
    for index, piece in enumerate(transition.emit):
        if piece.name == accept.drafts.name and whole is not None:
            stop = piece.stop or whole
            limits.append(
                ((*path, "emit", index), f"{piece} emits", stop, expression.add(start, count), "drafts")
            )
    for where, what, value, most, things in limits:
        yield from _exceeds(
            scope,
            (value, most, transition.when, rows),
            accept.out[0],
            where,
            f"{what} {{}} {things} where {{}} are verified",
        )


def _exceeds(
    scope: Scope, parts: tuple[Expr, Expr, Expr, Expr], count: str, path: Path, sentence: str
) -> Iterator[Violation]:
    """Report the first values for which an expression exceeds what is verified while the guard holds."""
    for params in scope.settings():
        maxima: dict[str, int] = {}
        for name, column in scope.spec.columns.items():
            if set(expression.names(column.max)) <= set(params) and not any(expression.divisors(column.max)):
                maxima[name] = min(max(0, evaluate(column.max, params)), _WALKED_BOUND)
        bounds = column_bounds(maxima, len(scope.spec.states))
        value, most, guard, rows = (substitute(part, params) for part in parts)
        known = {*bounds, count}
        if any(
            set(expression.names(part)) - known or any(expression.divisors(part))
            for part in (value, most, guard, rows)
        ):
            return
        arg = ArgPlan(count, Const(0), simplify(expression.subtract(rows, Const(1))))
        for values in assignments([value, most, guard], bounds, [arg]):
            found, allowed = evaluate(value, values), evaluate(most, values)
            if found > allowed and evaluate(guard, values):
                shown = ", ".join(f"{name} = {number}" for name, number in {**params, **values}.items())
                yield path, f"{sentence.format(found, allowed)} ({shown})"
                return
