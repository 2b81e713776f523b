"""Runs of emitted tokens: the accepted drafts in full and in order, then the token behind them, and nothing twice.

That tokens are vouched for does not make a text: these rules hold each run to be what the target's own next tokens are.
They are asked by `verified.py`, where the spec claims something about its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from fsm_spec.language.expression import Const
from fsm_spec.language.findings import Path
from fsm_spec.language.operations import Accept, Walk
from fsm_spec.language.piece import pieces
from fsm_spec.language.scope import PENDING, Scope, Violation, forward_of, sources_of
from fsm_spec.language.spec import Transition
from fsm_spec.rules.fates import judge, judged


def in_order(transition: Transition, accept: Accept | Walk, named: str, path: Path) -> Iterator[Violation]:
    """Hold a run to the accepted drafts, from the first one on, and the token that follows them."""
    places = [index for index, piece in enumerate(transition.emit) if piece.name == named]
    after = accept.out[-1]
    if len(places) != 1:
        yield (
            (*path, "emit"),
            f"the accepted drafts are emitted once and whole; write {named} there once, before {after}",
        )
        return
    piece = transition.emit[places[0]]
    begins = (Const(0), Const(1)) if isinstance(accept, Walk) else (accept.drafts.start or Const(0),)
    if (piece.start or Const(0)) not in begins:
        yield (*path, "emit", places[0]), f"{piece} does not begin with the first draft that is judged"
    behind = [other.name for other in transition.emit[places[0] + 1 :]]
    held = [each.name for each in pieces(transition.set.get(PENDING, []))]
    if behind != [after] and not (not behind and held[-1:] == [after]):
        yield (
            (*path, "emit"),
            f"the token behind the accepted drafts is {after}; emit it there, or keep it as {PENDING}",
        )


def judged_once(scope: Scope) -> Iterator[Violation]:
    """Keep drafts in one carry: a copy could be judged once more, after the first verdict has said something of it."""
    spec = scope.spec
    if not scope.claims or not isinstance(spec.contract, str):
        return
    drafts = {
        judged(op).name
        for name in spec.forwards
        if (op := judge(spec.forwards[name])) is not None and judged(op).name in spec.carry
    }
    for index, transition in enumerate(spec.transitions):
        holders: dict[str, str] = {}
        for target in sorted(drafts & set(transition.set)):
            for piece in pieces(transition.set[target]):
                first = holders.setdefault(piece.name, target)
                copied = piece.name in drafts - {target} - set(transition.set)
                if first != target or copied:
                    other = piece.name if copied else first
                    message = f"{target} takes the drafts that {other} holds, and both are judged"
                    yield ("transitions", index, "set", target), f"{message}; keep drafts in one carry"


def fresh(scope: Scope) -> dict[str, set[str]]:
    """Name the carries that were set on every way from the last round point to each state."""
    spec = scope.spec
    found = {name: set() if state.round else set(spec.carry) for name, state in spec.states.items()}
    changed = True
    while changed:
        changed = False
        for transition in spec.transitions:
            target = spec.states.get(transition.to)
            if target is None or target.round:
                continue
            for state in sources_of(transition):
                after = found[state] | set(transition.set)
                if not found[transition.to] <= after:
                    found[transition.to] &= after
                    changed = True
    return found


def said_once(
    scope: Scope, transition: Transition, set_here: dict[str, set[str]], path: Path
) -> Iterator[Violation]:
    """Hold a run to tokens that were found in this round, each of them once."""
    judges = {
        judged(op).name for state in sources_of(transition) if (op := _judge_of(scope, state)) is not None
    }
    seen: set[str] = set()
    for index, piece in enumerate(transition.emit):
        if piece.name in seen:
            yield (*path, "emit", index), f"{piece.name} stands twice in one run; emit its tokens once"
        seen.add(piece.name)
        if piece.name not in scope.spec.carry or piece.name in judges:
            continue
        old = [state for state in sources_of(transition) if piece.name not in set_here[state]]
        if old:
            message = f"{piece} may be of an earlier round in the state {old[0]}, and would be emitted again"
            yield (*path, "emit", index), f"{message}; set {piece.name} on every way from the round's start"


def _judge_of(scope: Scope, state: str) -> Accept | Walk | None:
    name = forward_of(scope.spec, state)
    return None if name is None else judge(scope.spec.forwards[name])
