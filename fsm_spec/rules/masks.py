"""Masks: blocks that are filled step by step, and that no mask is ever kept, judged or emitted.

A carry may hold masks from where they are set until an unmask operator says that none is left. The rules follow
carries over the whole spec, so they are asked only where every name on the way is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fsm_spec.language import expression
from fsm_spec.language.domain import assignments
from fsm_spec.language.expression import Const, evaluate, substitute
from fsm_spec.language.findings import Path
from fsm_spec.language.operations import Accept, Unmask
from fsm_spec.language.piece import pieces
from fsm_spec.language.scope import Scope, Violation, forward_of, segment_path, sources, sources_of
from fsm_spec.language.spec import Spec, Transition
from fsm_spec.table import ArgPlan

MASK: Final = "mask"


def rules(scope: Scope) -> Iterator[Violation]:
    """Report every place where a mask could be kept, judged or emitted."""
    masked = masked_carries(scope)
    for state in scope.spec.states:
        name = forward_of(scope.spec, state)
        found = list(_read(scope, state, name, masked[state])) if name is not None and masked[state] else []
        yield from found
        # What a state may not read, it need not be told not to emit.
        known = masked[state] if not found else set()
        for number, transition in enumerate(scope.spec.transitions):
            if state not in sources_of(transition):
                continue
            open_ = known | unfilled(scope, transition, state)
            for index, piece in enumerate(transition.emit):
                if piece.name in open_:
                    path: Path = ("transitions", number, "emit", index)
                    rest = _rest(scope.spec)
                    remedy = f"emit it only where {rest} == 0, or fill it first" if rest else "fill it first"
                    yield path, f"{piece} is emitted, but may hold masks; {remedy}"
    yield from _entered(scope, masked)


def _entered(scope: Scope, masked: dict[str, set[str]]) -> Iterator[Violation]:
    """Hold every way into a state that fills masks to bring some: else it would fill, and emit, an old block again."""
    for number, transition in enumerate(scope.spec.transitions):
        name = forward_of(scope.spec, transition.to)
        wanted = (
            {op.block for op in scope.spec.forwards[name].ops if isinstance(op, Unmask)} if name else set()
        )
        for state in sources_of(transition) if wanted else ():
            if not _may_happen(scope, transition, state):
                continue
            whole = wanted - _after(scope, transition, state, masked[state])
            for carry in sorted(whole):
                message = f"{carry} holds no mask here, and the state {transition.to} fills masks"
                yield ("transitions", number, "to"), f"{message}; set {carry} to mask, or enter another state"


def _read(scope: Scope, state: str, name: str, masked: set[str]) -> Iterator[Violation]:
    """Report what a state's forward keeps and judges of carries that may hold masks there."""
    forward = scope.spec.forwards[name]
    for index, segment in enumerate(forward.segments):
        open_ = [piece.name for piece in sources(segment) if piece.name in masked]
        if segment.kv != "scratch" and open_:
            message = f"{segment.name} keeps KV of {open_[0]}, which may hold masks in the state {state}"
            yield (*segment_path(name, forward, index), "kv"), f"{message}; {_remedy(scope.spec, open_[0])}"
            return
    for index, op in enumerate(forward.ops):
        if isinstance(op, Accept) and op.drafts.name in masked:
            message = f"{op.drafts} is judged, but may hold masks in the state {state}"
            path: Path = ("forwards", name, "ops", index, "drafts")
            yield path, f"{message}; {_remedy(scope.spec, op.drafts.name)}"


def _remedy(spec: Spec, name: str) -> str:
    rest = _rest(spec)
    return f"enter it only where {rest} == 0, or fill {name} first" if rest else f"fill {name} first"


def _may_happen(scope: Scope, transition: Transition, state: str) -> bool:
    """Tell whether a guard over the masks left can hold at all: where one pass fills a block, none is ever left."""
    name = forward_of(scope.spec, state)
    ops = scope.spec.forwards[name].ops if name is not None else []
    return all(
        _may_rest(scope, transition, op, name, least=0)
        for op in ops
        if isinstance(op, Unmask) and name is not None
    )


def _rest(spec: Spec) -> str | None:
    """Name the count of masks left, as the spec calls it."""
    rests = (op.out[0] for forward in spec.forwards.values() for op in forward.ops if isinstance(op, Unmask))
    return next(rests, None)


def masked_carries(scope: Scope) -> dict[str, set[str]]:
    """Name the carries that may hold masks in each state."""
    spec = scope.spec
    masked: dict[str, set[str]] = {name: set() for name in spec.states}
    for state in spec.states:
        if spec.states[state].start:
            masked[state] |= {
                name for name, carry in spec.carry.items() if any(p.name == MASK for p in carry.init or ())
            }
    changed = True
    while changed:
        changed = False
        for transition in spec.transitions:
            for state in sources_of(transition):
                if transition.to not in masked:
                    continue
                after = _after(scope, transition, state, masked[state])
                if not after <= masked[transition.to]:
                    masked[transition.to] |= after
                    changed = True
    return masked


def _after(scope: Scope, transition: Transition, state: str, before: set[str]) -> set[str]:
    """Name the carries that may hold masks after a transition."""
    known = before | unfilled(scope, transition, state) | {MASK}
    after = before - set(transition.set)
    for name in set(transition.set) & set(scope.spec.carry):
        if any(piece.name in known for piece in pieces(transition.set[name])):
            after.add(name)
    return after


def unfilled(scope: Scope, transition: Transition, state: str) -> set[str]:
    """Name the results of unmask that may hold masks where a transition's guard holds."""
    name = forward_of(scope.spec, state)
    ops = scope.spec.forwards[name].ops if name is not None else []
    return {
        op.out[1]
        for op in ops
        if isinstance(op, Unmask) and name is not None and _may_rest(scope, transition, op, name)
    }


def _may_rest(scope: Scope, transition: Transition, op: Unmask, forward: str, least: int = 1) -> bool:
    """Tell whether the guard can hold while so many masks are left, or more."""
    most = scope.results_most(forward, op)
    if scope.walks <= 0 or most is None or op.out[0] not in expression.names(transition.when):
        return True
    for params in scope.settings():
        bounds = scope.bounds(params)
        guard, high = substitute(transition.when, params), substitute(most, params)
        if not {*expression.names(guard), *expression.names(high)} <= {*bounds, op.out[0]}:
            return True
        arg = ArgPlan(op.out[0], Const(0), high)
        for values in assignments([guard], bounds, [arg], scope.walks):
            if values.get(op.out[0], 0) >= least and evaluate(guard, values):
                return True
    return False
