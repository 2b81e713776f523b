"""Effects of transitions: states, events, guards, keep, emit and set, as the source state sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fsm_spec.language import expression
from fsm_spec.language.expression import Const, ExpressionError, to_text
from fsm_spec.language.findings import Path, quoted, words
from fsm_spec.language.piece import Piece, parse_piece
from fsm_spec.language.scope import (
    BUILT_IN_COLUMNS,
    LIFE_CYCLE_STATES,
    PENDING,
    Place,
    Scope,
    Value,
    Violation,
    forward_of,
    mentions,
    sources,
    sources_of,
)
from fsm_spec.language.spec import Transition
from fsm_spec.rules.filled import PARTLY


def rules(scope: Scope) -> Iterator[Violation]:
    """Judge every transition: its states, its event, and its effects as each source state sees them."""
    spec = scope.spec
    for index, transition in enumerate(spec.transitions):
        path: Path = ("transitions", index)
        known = []
        for position, state in enumerate(sources_of(transition)):
            inside = (*path, "from", position) if isinstance(transition.from_, list) else (*path, "from")
            if state in spec.states:
                known.append(state)
            elif state in LIFE_CYCLE_STATES:
                yield inside, f"the state {state} is built in with its transitions; a spec writes rounds only"
            else:
                yield from scope.unknown(state, "the state", spec.states, inside)
        if transition.to in ("wait", "prefill"):
            yield (*path, "to"), f"the state {transition.to} is built in, and only the life cycle enters it"
        elif transition.to not in spec.states and transition.to != "end":
            yield from scope.unknown(transition.to, "the state", [*spec.states, "end"], (*path, "to"))
        yield from _event_of(scope, transition, path)
        if len(known) < len(sources_of(transition)):
            scope.doubt |= mentions(transition)  # what it reads is known only with its states
        for forward in dict.fromkeys(forward_of(spec, state) or "" for state in known):
            yield from _effects(scope, transition, forward, path)


def _event_of(scope: Scope, transition: Transition, path: Path) -> Iterator[Violation]:
    spec = scope.spec
    if transition.on is None:
        if not (spec.forwards or scope.hurt(path) or scope.lost(("forwards",))):
            yield path, 'no forward completes here, so the transition names its event; add the key "on"'
    elif spec.forwards:
        yield (*path, "on"), "the event is the completion of the state's forward; remove the key on"
    elif transition.on not in spec.events:
        yield from scope.unknown(transition.on, "the event", spec.events, (*path, "on"))
    else:
        scope.used.add(("events", transition.on))


def _effects(scope: Scope, transition: Transition, forward: str, path: Path) -> Iterator[Violation]:
    """Check guard, keep, emit and set as source states with one forward see them (abstract models have none)."""
    if scope.lost(("forwards", forward, "ops")) or (scope.spec.forwards and not forward):
        scope.doubt |= mentions(transition)  # another finding says why its results are not known
    if scope.spec.forwards and not forward:
        return
    results = scope.results.get(forward, {})
    event = scope.spec.events.get(transition.on or "")
    args = dict.fromkeys(event.args, ("args", transition.on or "")) if event is not None else {}
    place = scope.place(results=results, forward=forward, more=args)
    yield from scope.numbers(transition.when, (*path, "when"), place)
    yield from scope.numbers(transition.keep, (*path, "keep"), place)
    yield from _moved(scope, transition, forward, path)
    values = {**scope.carries, **results}
    for position, piece in enumerate(transition.emit):
        if piece.name == "mask":
            yield (
                (*path, "emit", position),
                "the mask token is never emitted; name a carry or an operator's tokens",
            )
        else:
            yield from scope.piece(piece, (*path, "emit", position), values, forward, place, "token")
    for target, value in transition.set.items():
        yield from _assignment(scope, target, value, (*path, "set", target), values, forward, place)


def _moved(scope: Scope, transition: Transition, forward: str, path: Path) -> Iterator[Violation]:
    """Hold kept rows that are not the first ones to a walk's path, or to one row of each group."""
    if transition.keep_stride is not None:
        yield from scope.numbers(transition.keep_stride, (*path, "keep_stride"), scope.place(columns=False))
    if transition.keep_rows is not None:
        yield from scope.piece(
            Piece(transition.keep_rows),
            (*path, "keep_rows"),
            {**scope.carries, **scope.results.get(forward, {})},
            forward,
            scope.place(),
            "index",
        )
    plan = scope.spec.forwards.get(forward)
    if plan is None:
        return
    prefix = transition.keep_stride is None and transition.keep_rows is None
    nodes = [piece.name for segment in plan.segments for piece in sources(segment)]
    if (
        plan.attention == "tree"
        and any(name in scope.carries and scope.carries[name].kind == "tree" for name in nodes)
        and transition.keep_rows is None
        and transition.keep not in (Const(0), Const(1))
    ):
        yield (*path, "keep"), "rows of a tree are kept along a path; write keep_rows with the walk's path"
    elif plan.groups is not None and plan.groups.count != Const(1) and not scope.maimed(forward):
        width = expression.total(segment.count for segment in plan.segments)
        if prefix and transition.keep not in (Const(0), Const(1)):
            yield (*path, "keep"), f"heads of groups are kept; write keep_stride: {to_text(width)}"
        elif transition.keep_stride is not None and scope.off_by(transition.keep_stride, width) is not None:
            yield (
                (*path, "keep_stride"),
                f"a group has {to_text(width)} rows; write keep_stride: {to_text(width)}",
            )


def _assignment(
    scope: Scope, target: str, value: Any, path: Path, values: Mapping[str, Value], forward: str, place: Place
) -> Iterator[Violation]:
    if target in scope.carries:
        yield from _carry_set(scope, target, value, path, values, forward, place)
    elif target in scope.spec.columns:
        yield from _column_set(scope, target, value, path, place)
    elif target in (*BUILT_IN_COLUMNS, "state"):
        movers = {"kv": "keep", "emitted": "emit", "state": "to"}
        yield (
            path,
            f"{quoted(target)} is built in; it is moved by {movers.get(target, 'nothing')}, never by set",
        )
    elif target in scope.spec.params:
        yield path, f"{quoted(target)} is a parameter, fixed for the run; set takes columns and carries"
    else:
        yield from scope.unknown(target, "the column or carry", [*scope.spec.columns, *scope.carries], path)
        scope.doubt.update(words(value))


def _column_set(scope: Scope, target: str, value: Any, path: Path, place: Place) -> Iterator[Violation]:
    if isinstance(value, list):
        yield path, f"{quoted(target)} is a column and takes one expression, not a list of pieces"
        return
    try:
        parsed = expression.parse(value)
    except ExpressionError as error:
        scope.doubt.update(words(value))
        cut = isinstance(value, str) and value.count("(") > value.count(")")
        yield (
            path,
            f"{error}; a comma ends a value inside braces, so put quotes around the expression"
            if cut
            else str(error),
        )
        return
    yield from scope.numbers(parsed, path, place)


def _carry_set(
    scope: Scope, target: str, value: Any, path: Path, values: Mapping[str, Value], forward: str, place: Place
) -> Iterator[Violation]:
    carry = scope.carries[target]
    try:
        pieces = [_carried(target, text) for text in (value if isinstance(value, list) else [value])]
    except ExpressionError as error:
        scope.doubt.update(words(value))
        yield path, str(error)
        return
    for piece in pieces:
        if piece.name == "mask" and carry.kind == "token" and piece is not pieces[-1]:
            yield path, f"mask fills what the other pieces leave of {quoted(target)}; put it last"
        elif piece.name != "mask" or carry.kind != "token":
            yield from scope.piece(piece, path, values, forward, place, carry.kind)
    lengths = [
        piece.length(values[piece.name].length or Const(0)) for piece in pieces if piece.name in values
    ]
    fixed = all(piece.name in values and values[piece.name].length is not None for piece in pieces)
    if not fixed or carry.length is None:
        return  # masks fill a carry to its end, and other findings say what is unknown
    total = expression.total(lengths)
    off = scope.off_by(total, carry.length)
    # Fewer are followed to where they are read: `filled.py`.
    fewer = bool(pieces) and target != PENDING and carry.kind in PARTLY
    if off is not None and not (off[0] < 0 and fewer):
        yield path, f"{quoted(target)} holds {to_text(carry.length)}, and {to_text(total)} are set{off[1]}"


def _carried(target: str, text: object) -> Piece:
    if not isinstance(text, str):
        raise ExpressionError(
            f"{quoted(target)} is a carry and takes pieces such as next or drafts[:a], not {text}", 0
        )
    return parse_piece(text)
