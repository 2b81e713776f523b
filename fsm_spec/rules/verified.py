"""Verified tokens: which carries and results are final, and that only such tokens are kept and emitted.

A token is final if it is the newest one, a sample of a clean row, an accept's next, or a draft within the accepted
count. These rules follow tokens over the whole spec, so they are asked only where every name on the way is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fsm_spec.language import expression
from fsm_spec.language.domain import assignments
from fsm_spec.language.expression import Const, Expr, Name, evaluate, substitute, to_text
from fsm_spec.language.findings import Path, quoted
from fsm_spec.language.linear import difference, simplify
from fsm_spec.language.operations import Accept, Grow, Operation, Sample, Walk
from fsm_spec.language.piece import Piece, pieces
from fsm_spec.language.scope import (
    PENDING,
    Scope,
    Violation,
    forward_of,
    listed,
    segment_of,
    segment_path,
    sources,
    sources_of,
)
from fsm_spec.language.spec import Forward, Transition
from fsm_spec.rules import runs
from fsm_spec.rules.fates import judge, judged
from fsm_spec.table import ArgPlan

# Rules of accept that change the output law.
LOSSY: Final = ("topk", "threshold", "always")


def rules(scope: Scope) -> Iterator[Violation]:
    """Judge what is kept and emitted on the whole way of a token, and what pending is set to."""
    yield from _claim(scope)
    final = final_carries(scope)
    carried = set(scope.carries)
    yield from _paired(scope)
    for name, forward in scope.spec.forwards.items():
        for index, segment in enumerate(forward.segments if scope.claims else ()):
            unknown = [piece for piece in sources(segment) if segment.query and piece.name in carried - final]
            if segment.kv == "keep" and unknown:
                message = f"{segment.name} keeps the KV of {unknown[0]}, which no verifier has accepted"
                yield (
                    (*segment_path(name, forward, index), "kv"),
                    f"{message}; write kv: provisional and judge it",
                )
        yield from _kept_twice(name, forward) if scope.claims else ()
        for index, op in enumerate(forward.ops if scope.claims else ()):
            if isinstance(op, Grow) and op.root is not None and op.root not in final | final_results(forward):
                message = f"the tree's root {op.root} is no token that the target vouches for"
                yield ("forwards", name, "ops", index, "root"), f"{message}; sample it from a clean row"
    yield from runs.judged_once(scope)
    fresh = runs.fresh(scope) if scope.claims else {}
    for index, transition in enumerate(scope.spec.transitions):
        path: Path = ("transitions", index)
        yield from _pending(scope, transition, path)
        if scope.claims:
            yield from runs.said_once(scope, transition, fresh, path)
        for forward_name in dict.fromkeys(forward_of(scope.spec, state) for state in sources_of(transition)):
            if forward_name is not None:
                yield from _emitted(scope, transition, forward_name, path, final)
                yield from _captured(scope, transition, forward_name, path)
                yield from _accepted(scope, transition, forward_name, path)


def _kept_twice(name: str, forward: Forward) -> Iterator[Violation]:
    """Report rows whose KV lasts though another row of the block holds the same tokens."""
    seen: set[str] = set()
    for index, segment in enumerate(forward.segments):
        text = ", ".join(map(str, sources(segment)))
        if segment.kv in ("keep", "provisional") and text in seen:
            message = f"{segment.name} keeps the KV of {text}, as another row does; a token has one slot"
            yield (
                (*segment_path(name, forward, index), "source"),
                f"{message}; remove one, or write kv: scratch",
            )
        if segment.kv in ("keep", "provisional"):
            seen.add(text)


def _paired(scope: Scope) -> Iterator[Violation]:
    """Hold drafts and the law that judges them to one operator: they are set together, from the same draw."""
    for name, forward in scope.spec.forwards.items():
        for index, op in enumerate(forward.ops):
            if not isinstance(op, Accept) or op.q is None:
                continue
            for transition in scope.spec.transitions:
                drafts, law = (transition.set.get(carry) for carry in (op.drafts.name, op.q))
                if {op.drafts.name, op.q}.isdisjoint(transition.set) or _one_draw(
                    scope, transition, drafts, law, {op.drafts.name: op.q}
                ):
                    continue
                message = f"{op.q} is not everywhere the law that {op.drafts.name} was drawn from"
                remedy = "set both at once, from the tokens and the law of one sample"
                yield ("forwards", name, "ops", index, "q"), f"{message}; {remedy}"
                break


def _one_draw(
    scope: Scope, transition: Transition, drafts: object, law: object, pairs: dict[str, str]
) -> bool:
    """Tell whether drafts and law are set from the outputs of one sample, over the same rows.

    `pairs` names them: the part that is carried on is a pair as well.
    """
    if drafts is None or law is None:
        return False
    tokens, laws = pieces(drafts), pieces(law)
    for state in sources_of(transition):
        forward = scope.spec.forwards[forward_of(scope.spec, state) or ""]
        known = pairs | {
            op.out[0]: op.out[1]
            for op in forward.ops
            if isinstance(op, Sample) and isinstance(op.out, list) and len(op.out) > 1
        }
        if [(known.get(piece.name), piece.start, piece.stop) for piece in tokens] != [
            (piece.name, piece.start, piece.stop) for piece in laws
        ]:
            return False
    return True


def _claim(scope: Scope) -> Iterator[Violation]:
    """Hold the claim to the operators: what takes the most likely token has not the target's law at a temperature."""
    spec = scope.spec
    sampling = spec.lossless is not None and spec.lossless.claim == "sampling"
    for name, forward in spec.forwards.items() if scope.claims else ():
        for index, op in enumerate(forward.ops):
            path: Path = ("forwards", name, "ops", index, "rule")
            if isinstance(op, Accept) and op.rule in LOSSY:
                message = f"accept by {op.rule} keeps drafts that the target would not have drawn"
                yield path, f"{message}; claim: no, or judge by match"
            greedy = _greedy(forward, op) if sampling else None
            if greedy is not None:
                yield path, f"the spec claims sampling, but {greedy}, or claim: greedy"


def _greedy(forward: Forward, op: Operation) -> str | None:
    """Say what of an operator's result has not the target's law at a temperature, and what to write instead."""
    if isinstance(op, Accept) and op.rule == "greedy":
        return "accept by greedy takes the most likely token at any temperature; judge by match or rejection"
    if not isinstance(op, Sample) or op.rule == "law":
        return None
    token = listed(op.out)[0]
    if op.rule == "argmax_of_law":
        return f"{token} is not drawn from the law beside it; write rule: law"
    if all(_clean(forward, rows) for rows in listed(op.rows)):
        return f"{token} is the most likely token at any temperature; write rule: law"
    return None


def final_results(forward: Forward) -> set[str]:
    """Name the results of a forward whose tokens are final: an accept's next, samples of clean rows."""
    final: set[str] = set()
    for op in forward.ops:
        if isinstance(op, Accept):
            final.add(op.out[1])
        elif isinstance(op, Walk):
            final.update(op.out[2:])
        elif isinstance(op, Sample) and all(_clean(forward, name) for name in listed(op.rows)):
            final.add(listed(op.out)[0])
    return final


def _clean(forward: Forward, name: str) -> bool:
    """Tell whether a segment speaks for the target: causal, base weights, and nothing unverified before it."""
    segment = segment_of(forward, name)
    if forward.model is not None or segment is None or segment.logits != "shifted":
        return False
    if forward.attention not in ("causal", "groups"):
        return False
    before = forward.segments[: forward.segments.index(segment) + 1]
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
        # What is emitted here is verified, as other rules see to.
        emitted = set(map(str, transition.emit)) if scope.claims else set()
        for target in set(transition.set) & final:
            for piece in pieces(transition.set[target]):
                if str(piece) in emitted:
                    continue
                holders.setdefault(piece.name, set()).add(target)
                if piece.name not in final | results:
                    todo.append(target)
    while todo:
        name = todo.pop()
        if name in final:
            final.discard(name)
            todo.extend(holders.get(name, ()))
    return final


def _pending(scope: Scope, transition: Transition, path: Path) -> Iterator[Violation]:
    """Hold a transition that emits to set pending: under the contract pending, to the newest token."""
    if not isinstance(scope.spec.contract, str) or not transition.emit:
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
    vouched = final | final_results(plan) | ({judged(accept).name} if accept is not None else set())
    for index, piece in enumerate(transition.emit if scope.claims else []):
        if piece.name not in vouched:
            message = f"{piece} is emitted before the target has verified it"
            yield (*path, "emit", index), f"{message}; judge it by accept, or claim: no"


def _captured(scope: Scope, transition: Transition, forward: str, path: Path) -> Iterator[Violation]:
    """Hold the target's hidden states that a carry takes to the rows whose KV is kept."""
    plan = scope.spec.forwards[forward]
    results = scope.results[forward]
    for target, value in transition.set.items():
        if plan.model is not None or target not in scope.carries or scope.carries[target].kind != "feature":
            continue
        taken = expression.total(
            piece.length(results[piece.name].length or Const(0))
            for piece in pieces(value)
            if piece.name in results
        )
        if difference(taken, transition.keep) != Const(0):
            message = f"{target} takes the hidden states of {to_text(simplify(taken))} rows"
            yield (
                (*path, "set", target),
                f"{message}, and {to_text(transition.keep)} are kept; take those of the rows that are kept",
            )


def _accepted(scope: Scope, transition: Transition, forward: str, path: Path) -> Iterator[Violation]:
    """Walk the accepted counts under the guard: no row is kept and no draft emitted beyond them."""
    plan = scope.spec.forwards[forward]
    accept = judge(plan)
    if accept is None or scope.results_most(forward, accept) is None:
        return
    kept = expression.total(segment.count for segment in plan.segments if segment.kv == "keep")
    if isinstance(accept, Walk) or _leads(plan):
        kept = expression.add(kept, Const(1))  # the root, or the first head, is final
    count = Name(accept.out[0])
    drafts, whole = (
        expression.add(judged(accept).start or Const(0), count),
        scope.carries[judged(accept).name].length,
    )
    named = judged(accept).name
    if isinstance(accept, Walk):
        named, drafts = accept.out[2], expression.add(count, Const(1))
        whole = scope.results[forward][named].length
    walk = (transition.when, scope.results_most(forward, accept), accept.out[0])
    what = f"keep: {to_text(transition.keep)} keeps {{}} rows where {{}} are verified"
    yield from _exceeds(scope, transition.keep, expression.add(kept, count), walk, (*path, "keep"), what)
    for index, piece in enumerate(transition.emit if scope.claims else []):
        stop = piece.stop or whole
        if piece.name == named and stop is not None:
            inside: Path = (*path, "emit", index)
            what = f"{piece} emits {{}} drafts where {{}} are accepted"
            over = list(_exceeds(scope, stop, drafts, walk, inside, what))
            yield from over
            if not over:
                what = f"{{}} drafts are accepted, and {piece} emits {{}}"
                yield from _exceeds(scope, drafts, stop, walk, inside, what)
            if not _decided(scope, stop, drafts, walk):
                message = f"whether {piece} emits exactly the accepted drafts cannot be decided"
                yield inside, f"{message}; cut it at {accept.out[0]}, under a guard over that count"
    if scope.claims and transition.emit:
        yield from runs.in_order(transition, accept, named, path)


def _decided(scope: Scope, value: Expr, most: Expr, walk: tuple[Expr, Expr | None, str]) -> bool:
    """Tell whether a walk over the count can say that two lengths are equal where the guard holds."""
    guard, highest, count = walk
    if difference(value, most) == Const(0):
        return True
    parts = [part for part in (value, most, guard, highest) if part is not None]
    read = {name for part in parts for name in expression.names(part)}
    return scope.walks > 0 and read <= {*scope.spec.params, *scope.columns, count}


def _leads(forward: Forward) -> bool:
    """Tell whether the first head of groups is the pending token, which is final."""
    return any(
        segment.kv == "provisional" and sources(segment)[0].name == PENDING for segment in forward.segments
    )


def _exceeds(
    scope: Scope, value: Expr, most: Expr, walk: tuple[Expr, Expr | None, str], path: Path, sentence: str
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
    scope: Scope, value: Expr, most: Expr, walk: tuple[Expr, Expr | None, str], params: dict[str, int]
) -> tuple[int, int, dict[str, int]] | None:
    guard, highest, count = walk
    if highest is None or difference(value, most) == Const(0):
        return None  # the usual case: exactly what is verified
    bounds = scope.bounds(params)
    value, most, guard, highest = (substitute(part, params) for part in (value, most, guard, highest))
    read = {name for part in (value, most, guard, highest) for name in expression.names(part)}
    if not read <= {*bounds, count}:
        return None  # other counts decide too; the table looks at each of them
    arg = ArgPlan(count, Const(0), simplify(highest))
    for values in assignments([value, most, guard], bounds, [arg], scope.walks):
        scope.walks -= 1
        found, allowed = evaluate(value, values), evaluate(most, values)
        if found > allowed and evaluate(guard, values):
            return found, allowed, {**params, **values}
    return None
