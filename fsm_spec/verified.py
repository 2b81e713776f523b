"""Verified tokens: which carries and results are final, and that only such tokens are kept and emitted.

A token is final if it is the newest one, a sample of a clean row, an accept's next, or a draft within the accepted
count. These rules follow tokens over the whole spec, so they are asked only where every name on the way is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fsm_spec import expression
from fsm_spec.domain import assignments, column_bounds
from fsm_spec.expression import Const, Expr, Name, evaluate, substitute, to_text
from fsm_spec.fates import judge
from fsm_spec.findings import Path, quoted
from fsm_spec.linear import difference, simplify
from fsm_spec.piece import Piece, parse_piece
from fsm_spec.scope import PENDING, Scope, Violation, forward_of, listed, segment_of, sources_of
from fsm_spec.spec import Accept, Forward, Sample, Transition
from fsm_spec.table import ArgPlan

# Columns are walked by their edges; a larger bound only makes the walk coarser.
_WALKED_BOUND: Final = 2**20


def rules(scope: Scope) -> Iterator[Violation]:
    """Judge what is kept and emitted on the whole way of a token, and what pending is set to."""
    yield from _claim(scope)
    final = final_carries(scope)
    for name, forward in scope.spec.forwards.items():
        for index, segment in enumerate(forward.rows):
            source = segment.source.name
            if segment.kv == "keep" and source in scope.carries and source not in final:
                message = f"{segment.name} keeps the KV of {segment.source}, which no verifier has accepted"
                yield (
                    ("forwards", name, "rows", index, "kv"),
                    f"{message}; write kv: provisional and judge it",
                )
    for index, transition in enumerate(scope.spec.transitions):
        path: Path = ("transitions", index)
        yield from _pending(scope, transition, path)
        for forward_name in dict.fromkeys(forward_of(scope.spec, state) for state in sources_of(transition)):
            if forward_name is not None:
                yield from _emitted(scope, transition, forward_name, path, final)
                yield from _accepted(scope, transition, forward_name, path)


def _claim(scope: Scope) -> Iterator[Violation]:
    """Hold the claim to the operators: what takes the most likely token has not the target's law at a temperature."""
    spec = scope.spec
    if spec.lossless is None or spec.lossless.claim != "sampling":
        return
    emitted = {piece.name for transition in spec.transitions for piece in transition.emit}
    lead = "the spec claims sampling, but"
    for name, forward in spec.forwards.items():
        for index, op in enumerate(forward.ops):
            path: Path = ("forwards", name, "ops", index, "rule")
            if isinstance(op, Accept) and op.rule == "greedy":
                what = "accept by greedy takes the most likely token at any temperature"
                yield path, f"{lead} {what}; judge by match or rejection, or claim: greedy"
            elif isinstance(op, Sample) and op.rule == "argmax":
                token = listed(op.out)[0]
                if token in emitted and all(_clean(forward, rows) for rows in listed(op.rows)):
                    what = f"{token} is the most likely token at any temperature"
                    yield path, f"{lead} {what}; write rule: law, or claim: greedy"


def final_results(forward: Forward) -> set[str]:
    """Name the results of a forward whose tokens are final: an accept's next, samples of clean rows."""
    final: set[str] = set()
    for op in forward.ops:
        if isinstance(op, Accept):
            final.add(op.out[1])
        elif isinstance(op, Sample) and all(_clean(forward, name) for name in listed(op.rows)):
            final.add(listed(op.out)[0])
    return final


def _clean(forward: Forward, name: str) -> bool:
    """Tell whether a segment speaks for the target: causal, base weights, and nothing unverified before it."""
    segment = segment_of(forward, name)
    if segment is None or segment.logits != "shifted" or forward.attention != "causal":
        return False
    before = forward.rows[: forward.rows.index(segment) + 1]
    return all(row.kv == "keep" and row.weights == "base" for row in before)


def final_carries(scope: Scope) -> set[str]:
    """Name the carries that only ever hold final tokens: a piece that is not final spoils those that hold it."""
    final = {name for name, value in scope.carries.items() if value.kind == "token"}
    holders: dict[str, set[str]] = {}
    todo: list[str] = []
    for transition in scope.spec.transitions:
        forwards = [forward_of(scope.spec, state) for state in sources_of(transition)]
        known = [final_results(scope.spec.forwards[forward]) for forward in forwards if forward is not None]
        results = set.intersection(*known) if known else set()
        for target in set(transition.set) & final:
            for piece in pieces(transition.set[target]):
                holders.setdefault(piece.name, set()).add(target)
                if piece.name not in final | results:
                    todo.append(target)
    while todo:
        name = todo.pop()
        if name in final:
            final.discard(name)
            todo.extend(holders.get(name, ()))
    return final


def pieces(value: object) -> list[Piece]:
    """Parse what a carry is set to; the value has been checked."""
    return [parse_piece(str(text)) for text in (value if isinstance(value, list) else [value])]


def _pending(scope: Scope, transition: Transition, path: Path) -> Iterator[Violation]:
    """Hold a transition that emits to set pending: under the contract pending, to the newest token."""
    if scope.spec.contract is None or not transition.emit:
        return
    last = transition.emit[-1]
    newest = scope.spec.contract == "pending"
    if PENDING not in transition.set:
        wanted = (
            f"write set: {{pending: {last.name}}}" if newest else "set it to what is known but not emitted"
        )
        yield (*path, "emit"), f"tokens are emitted, but pending is not set; {wanted}"
        return
    held = pieces(transition.set[PENDING])[-1]
    if not newest:
        yield from _known_first(transition, held, path)
        return
    if not _same_end(scope, transition, held, last):
        yield (
            (*path, "set", PENDING),
            f"pending is the newest token, and the last one emitted is {quoted(str(last))}",
        )


def _known_first(transition: Transition, held: Piece, path: Path) -> Iterator[Violation]:
    """Under the contract full, pending is the next token: a run starts with it, and it is then another one."""
    first = transition.emit[0]
    if first != Piece(PENDING):
        message = f"under the contract full the next token is pending, and this run starts with {quoted(str(first))}"
        yield (*path, "emit", 0), f"{message}; emit pending first"
    elif held.name in {piece.name for piece in transition.emit if piece.stop is None}:
        yield (
            (*path, "set", PENDING),
            f"{quoted(str(held))} is emitted here, so it is not what is known but not emitted",
        )


def _same_end(scope: Scope, transition: Transition, left: Piece, right: Piece) -> bool:
    """Tell whether two pieces end with the same token."""
    values = dict(scope.carries)
    for state in sources_of(transition):
        values |= scope.results.get(forward_of(scope.spec, state) or "", {})
    ends = [piece.stop or values[piece.name].length for piece in (left, right) if piece.name in values]
    first, *others = [end or Const(0) for end in ends]
    return left.name == right.name and all(difference(first, other) == Const(0) for other in others)


def _emitted(
    scope: Scope, transition: Transition, forward: str, path: Path, final: set[str]
) -> Iterator[Violation]:
    """Where the spec claims to be lossless, only tokens that the target vouches for are emitted."""
    plan = scope.spec.forwards[forward]
    accept = judge(plan)
    vouched = final | final_results(plan) | ({accept.drafts.name} if accept is not None else set())
    for index, piece in enumerate(transition.emit if scope.claims else []):
        if piece.name not in vouched:
            message = f"{piece} is emitted before the target has verified it"
            yield (*path, "emit", index), f"{message}; judge it by accept, or claim: no"


def _accepted(scope: Scope, transition: Transition, forward: str, path: Path) -> Iterator[Violation]:
    """Walk the accepted counts under the guard: no row is kept and no draft emitted beyond them."""
    plan = scope.spec.forwards[forward]
    accept = judge(plan)
    rows = scope.row_count(forward, accept.rows) if accept is not None else None
    if accept is None or rows is None:
        return
    kept = expression.total(segment.count for segment in plan.rows if segment.kv == "keep")
    count = Name(accept.out[0])
    guard = transition.when
    drafts = expression.add(accept.drafts.start or Const(0), count)
    whole = scope.carries[accept.drafts.name].length
    walk = (guard, rows, accept.out[0])
    what = f"keep: {to_text(transition.keep)} keeps {{}} rows where {{}} are verified"
    yield from _exceeds(scope, transition.keep, expression.add(kept, count), walk, (*path, "keep"), what)
    for index, piece in enumerate(transition.emit if scope.claims else []):
        stop = piece.stop or whole
        if piece.name == accept.drafts.name and stop is not None:
            what = f"{piece} emits {{}} drafts where {{}} are accepted"
            yield from _exceeds(scope, stop, drafts, walk, (*path, "emit", index), what)


def _exceeds(
    scope: Scope, value: Expr, most: Expr, walk: tuple[Expr, Expr, str], path: Path, sentence: str
) -> Iterator[Violation]:
    """Report the first values for which an expression exceeds what is verified while the guard holds."""
    for params in scope.settings():
        try:
            found = _excess(scope, value, most, walk, params)
        except ZeroDivisionError:
            return  # the divisor has a finding of its own
        if found is not None:
            shown = ", ".join(f"{name} = {number}" for name, number in found[2].items())
            yield path, f"{sentence.format(*found[:2])} ({shown})"
            return


def _excess(
    scope: Scope, value: Expr, most: Expr, walk: tuple[Expr, Expr, str], params: dict[str, int]
) -> tuple[int, int, dict[str, int]] | None:
    guard, rows, count = walk
    if difference(value, most) == Const(0):
        return None  # the usual case: exactly what is verified
    maxima = {
        name: min(max(0, evaluate(column.max, params)), _WALKED_BOUND)
        for name, column in scope.spec.columns.items()
        if set(expression.names(column.max)) <= set(params)
    }
    bounds = column_bounds(maxima, len(scope.spec.states))
    value, most, guard, rows = (substitute(part, params) for part in (value, most, guard, rows))
    read = {name for part in (value, most, guard, rows) for name in expression.names(part)}
    if not read <= {*bounds, count}:
        return None  # other counts decide too; the table looks at each of them
    arg = ArgPlan(count, Const(0), simplify(expression.subtract(rows, Const(1))))
    for values in assignments([value, most, guard], bounds, [arg], scope.walks):
        scope.walks -= 1
        found, allowed = evaluate(value, values), evaluate(most, values)
        if found > allowed and evaluate(guard, values):
            return found, allowed, {**params, **values}
    return None
