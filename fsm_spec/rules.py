"""Rules over a whole spec that hold for all parameters: names, scopes, types, and closed states.

Each rule yields `(path, sentence)`. What is kept of KV and what may be emitted is in `fates.py`; what is missing or
never used is in `flow.py`; guards, bounds and contracts need concrete parameters and are decided by `compile.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from fsm_spec import expression, fates, flow
from fsm_spec.expression import Expr, ExpressionError, evaluate, to_text
from fsm_spec.findings import MAX_FINDINGS, Path, nearest, quoted
from fsm_spec.piece import Piece, parse_piece
from fsm_spec.scope import (
    BUILT_IN_COLUMNS,
    LIFE_CYCLE_EVENTS,
    LIFE_CYCLE_STATES,
    RESERVED,
    Place,
    Scope,
    Value,
    Violation,
    forward_of,
    listed,
    segment_of,
    shown,
    sources_of,
)
from fsm_spec.spec import Accept, Forward, Lookup, Operation, Segment, Spec, Transition


def violations(spec: Spec, doubt: set[str] | None = None) -> list[Violation]:
    """List what is wrong with a spec as a whole; words in `doubt` may stand for parts that could not be read."""
    scope = Scope(spec, set(doubt or ()))
    return list(dict.fromkeys(islice(_all(scope), MAX_FINDINGS + 1)))


def _all(scope: Scope) -> Iterator[Violation]:
    sound = True
    for rule in (
        _names,
        _params,
        _columns,
        _carries,
        _forwards,
        _states,
        _events,
        _transitions,
        _check,
        fates.rules,
    ):
        for violation in rule(scope):
            sound = False
            yield violation
    yield from flow.rules(scope, sound=sound and not scope.doubt)


# Declarations -------------------------------------------------------------------------------------------------


def _names(scope: Scope) -> Iterator[Violation]:
    """Names of one spec mean one thing: params, columns, carries and results share their places."""
    spec = scope.spec
    first: dict[str, str] = {}
    for group, what in (
        ("params", "a parameter"),
        ("columns", "a column"),
        ("carry", "a carry"),
        ("states", "a state"),
    ):
        for name in getattr(spec, group):
            yield from _taken(name, (group, name), first)
            if group != "states" or name not in first:
                first[name] = what
    for name in spec.states:
        if name in LIFE_CYCLE_STATES or name in LIFE_CYCLE_EVENTS:
            yield ("states", name), f"{quoted(name)} is built in; give the state another name"
    for name, forward in spec.forwards.items():
        yield from _local_names(name, forward, first)
    for name, event in spec.events.items():
        if name in LIFE_CYCLE_EVENTS or name in spec.states:
            reason = "built in" if name in LIFE_CYCLE_EVENTS else "a state"
            yield ("events", name), f"{quoted(name)} is {reason}; give the event another name"
        for arg in event.args:
            yield from _taken(arg, ("events", name, "args", arg), first)


def _local_names(name: str, forward: Forward, first: Mapping[str, str]) -> Iterator[Violation]:
    segments: set[str] = set()
    for index, segment in enumerate(forward.rows):
        if segment.name in segments:
            yield (
                ("forwards", name, "rows", index, "name"),
                f"a second segment is called {quoted(segment.name)}; names are unique in a forward",
            )
        segments.add(segment.name)
    known = dict(first)
    for index, op in enumerate(forward.ops):
        for result in listed(op.out):
            yield from _taken(result, ("forwards", name, "ops", index, "out"), known)
            known[result] = "a result of this forward"


def _taken(name: str, path: Path, first: Mapping[str, str]) -> Iterator[Violation]:
    if name in RESERVED:
        yield path, f"{quoted(name)} is a word of the language; choose another name"
    elif name in first:
        yield path, f"{quoted(name)} is already {first[name]}; choose another name"


def _params(scope: Scope) -> Iterator[Violation]:
    spec = scope.spec
    ordered = True
    for name, param in spec.params.items():
        low, high = param.range
        if low > high:
            ordered = False
            yield (
                ("params", name, "range"),
                f"the range runs from {low} down to {high}; the smaller value stands first",
            )
            continue
        for key in ("default", "check"):
            value = getattr(param, key)
            if not low <= value <= high:
                ordered = False
                yield (
                    ("params", name, key),
                    f"{key} {value} of {name} is out of range; choose {low} to {high}",
                )
    place = scope.place(columns=False)
    for index, condition in enumerate(spec.require):
        found = list(scope.numbers(condition, ("require", index), place))
        yield from found
        if ordered and not found and set(expression.names(condition)) <= set(spec.params):
            yield from _required(scope, condition, ("require", index))


def _required(scope: Scope, condition: Expr, path: Path) -> Iterator[Violation]:
    for which, values in zip(("default", "check"), scope.settings(), strict=True):
        if not evaluate(condition, values):
            yield path, f"{to_text(condition)} fails for the {which} values{shown(condition, values)}"
            return


def _columns(scope: Scope) -> Iterator[Violation]:
    """A column's init reads columns above it; its max is fixed by the parameters."""
    whole, params = scope.place(), scope.place(columns=False)
    above = set(BUILT_IN_COLUMNS)
    for name, column in scope.spec.columns.items():
        later = [
            read for read in expression.names(column.init) if read in scope.spec.columns and read not in above
        ]
        yield from scope.numbers(column.init, ("columns", name, "init"), whole)
        for read in dict.fromkeys(later):
            yield (
                ("columns", name, "init"),
                f"{quoted(read)} is not declared above {quoted(name)}; put it first",
            )
        yield from scope.numbers(column.max, ("columns", name, "max"), params)
        above.add(name)


def _carries(scope: Scope) -> Iterator[Violation]:
    place = scope.place(columns=False)
    vocab = ("vocab", expression.Name("vocab"))
    for name, carry in scope.spec.carry.items():
        path: Path = ("carry", name, "shape")
        sizes = [size for size in carry.shape if size not in vocab]
        for size in sizes:
            yield from scope.numbers(size, path, place)  # type: ignore[arg-type]
        fits = (
            len(carry.shape) == 1
            if carry.type == "token"
            else len(carry.shape) == 2 and carry.shape[1] in vocab
        )
        if not fits or len(sizes) != 1:
            wanted = "[COUNT]" if carry.type == "token" else "[COUNT, vocab]"
            yield path, f"a carry of type {carry.type} has the shape {wanted}"


# Forwards -----------------------------------------------------------------------------------------------------


def _forwards(scope: Scope) -> Iterator[Violation]:
    spec = scope.spec
    for name, forward in spec.forwards.items():
        path: Path = ("forwards", name)
        if not forward.rows and not forward.ops:
            yield path, f"the forward {name} has neither rows nor operators; remove it"
        for index, segment in enumerate(forward.rows):
            yield from _segment(scope, segment, (*path, "rows", index))
        for index, op in enumerate(forward.ops):
            yield from _operator(scope, name, index, op, (*path, "ops", index))
    if spec.forwards:
        for key, why in (
            ("contract", "what holds where a round starts"),
            ("lossless", "what the spec claims about its tokens"),
        ):
            if getattr(spec, key) is None and key not in scope.doubt:
                yield ("forwards",), f'a spec with forwards says {why}; add the key "{key}"'
        if spec.events:
            yield (
                ("events",),
                "events belong to abstract models without forwards; a forward's completion needs none",
            )


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
        yield (
            (*path, "count"),
            f"{to_text(segment.count)} rows of {segment.name} read {to_text(length)} tokens of {segment.source}: {off[0]} too many{off[1]}",
        )


def _operator(scope: Scope, forward: str, index: int, op: Operation, path: Path) -> Iterator[Violation]:
    place = scope.place()
    if isinstance(op, Lookup):
        for key in ("size", "min", "max"):
            yield from scope.numbers(getattr(op, key), (*path, key), scope.place(columns=False))
        return
    plan = scope.spec.forwards[forward]
    for position, name in enumerate(listed(op.rows)):
        inside = (*path, "rows", position) if isinstance(op.rows, list) else (*path, "rows")
        segment = segment_of(plan, name)
        if segment is None:
            yield from scope.unknown(name, "the segment", [known.name for known in plan.rows], inside)
        elif segment.logits == "none":
            yield inside, f"the rows of {name} give no logits; write logits: shifted (or own) on them"
        scope.used.add(("rows", forward, name))
    if isinstance(op, Accept):
        yield from _accept(scope, plan, op, path, place)


def _accept(scope: Scope, forward: Forward, op: Accept, path: Path, place: Place) -> Iterator[Violation]:
    yield from scope.piece(op.drafts, (*path, "drafts"), scope.carries, "", place, "token")
    if op.q is not None:
        yield from scope.piece(Piece(op.q), (*path, "q"), scope.carries, "", place, "law")
        if op.rule != "rejection":
            yield (
                (*path, "q"),
                f"the rule {op.rule} reads no law of the drafts; remove q, or write rule: rejection",
            )
    rows = scope.row_count(forward, op.rows)
    whole = scope.carries[op.drafts.name].length if op.drafts.name in scope.carries else None
    if rows is None or whole is None:
        return
    wanted = expression.add(op.drafts.length(whole), expression.Const(1))
    off = scope.off_by(rows, wanted)
    if off is not None:
        yield (
            (*path, "rows"),
            f"{to_text(rows)} rows judge {op.drafts}; one row more than drafts is needed, {to_text(wanted)}{off[1]}",
        )


# States and transitions ---------------------------------------------------------------------------------------


def _states(scope: Scope) -> Iterator[Violation]:
    spec = scope.spec
    starts = [name for name, state in spec.states.items() if state.start]
    if not starts and "start" not in scope.doubt:
        yield ("states",), "no state is the start; write start: true on one round state"
    for name in starts[1:]:
        yield ("states", name, "start"), f"{starts[0]} is the start already; exactly one state is"
    for name, state in spec.states.items():
        path: Path = ("states", name)
        if state.start and not state.round and "round" not in scope.doubt:
            yield (*path, "start"), f"the start {name} is no round state; write round: true"
        if state.forward is not None:
            scope.used.add(("forwards", state.forward))
            if state.forward not in spec.forwards:
                yield from scope.unknown(state.forward, "the forward", spec.forwards, (*path, "forward"))
        elif spec.forwards:
            if "forward" not in scope.doubt:
                yield (
                    path,
                    f"the state {name} runs no forward; name one of {', '.join(islice(spec.forwards, 12))}",
                )
        elif state.kv is None and "kv" not in scope.doubt:
            yield path, f"the state {name} runs no forward, so it says which slots it holds; add the key kv"
        yield from _holding(scope, name)
        for index, event in enumerate(state.ignore):
            scope.used.add(("events", event))
            if event not in spec.events:
                yield from scope.unknown(event, "the event", spec.events, (*path, "ignore", index))


def _holding(scope: Scope, name: str) -> Iterator[Violation]:
    kv = scope.spec.states[name].kv
    for kind in ("committed", "provisional", "scratch") if kv is not None else ():
        yield from scope.numbers(getattr(kv, kind), ("states", name, "kv", kind), scope.place())


def _events(scope: Scope) -> Iterator[Violation]:
    for name, event in scope.spec.events.items():
        for arg, bounds in event.args.items():
            for index, bound in enumerate(bounds.range):
                yield from scope.numbers(bound, ("events", name, "args", arg, "range", index), scope.place())


def _transitions(scope: Scope) -> Iterator[Violation]:
    spec = scope.spec
    for index, transition in enumerate(spec.transitions):
        path: Path = ("transitions", index)
        known = []
        for position, state in enumerate(sources_of(transition)):
            inside = (*path, "from", position) if isinstance(transition.from_, list) else (*path, "from")
            if state in spec.states:
                known.append(state)
            elif state in LIFE_CYCLE_STATES:
                yield (
                    inside,
                    f"the state {state} is built in, and so are its transitions; a spec writes rounds only",
                )
            else:
                yield from scope.unknown(state, "the state", spec.states, inside)
        if transition.to in ("wait", "prefill"):
            yield (*path, "to"), f"the state {transition.to} is built in, and only the life cycle enters it"
        elif transition.to not in spec.states and transition.to != "end":
            yield from scope.unknown(transition.to, "the state", [*spec.states, "end"], (*path, "to"))
        yield from _event_of(scope, transition, path)
        for state in known:
            yield from _effects(scope, transition, state, path)


def _event_of(scope: Scope, transition: Transition, path: Path) -> Iterator[Violation]:
    spec = scope.spec
    if transition.on is None:
        if not spec.forwards and "on" not in scope.doubt:
            yield path, 'no forward completes here, so the transition names its event; add the key "on"'
    elif spec.forwards:
        yield (
            (*path, "on"),
            "the event is the completion of the state's forward and is not written; remove on",
        )
    elif transition.on not in spec.events:
        yield from scope.unknown(transition.on, "the event", spec.events, (*path, "on"))
    else:
        scope.used.add(("events", transition.on))


def _effects(scope: Scope, transition: Transition, state: str, path: Path) -> Iterator[Violation]:
    """Check guard, keep, emit and set as one source state sees them."""
    forward = forward_of(scope.spec, state) or ""
    if not forward and scope.spec.forwards:
        return  # the state's own finding says why its results are not known
    results = scope.results.get(forward, {})
    event = scope.spec.events.get(transition.on or "")
    args = dict.fromkeys(event.args, ("args", transition.on or "")) if event is not None else {}
    place = scope.place(results=results, forward=forward, **args)
    yield from scope.numbers(transition.when, (*path, "when"), place)
    yield from scope.numbers(transition.keep, (*path, "keep"), place)
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


def _column_set(scope: Scope, target: str, value: Any, path: Path, place: Place) -> Iterator[Violation]:
    if isinstance(value, list):
        yield path, f"{quoted(target)} is a column and takes one expression, not a list of pieces"
        return
    try:
        parsed = expression.parse(value)
    except ExpressionError as error:
        yield path, str(error)
        return
    yield from scope.numbers(parsed, path, place)


def _carry_set(
    scope: Scope, target: str, value: Any, path: Path, values: Mapping[str, Value], forward: str, place: Place
) -> Iterator[Violation]:
    carry = scope.carries[target]
    pieces: list[Piece] = []
    for text in value if isinstance(value, list) else [value]:
        if not isinstance(text, str):
            yield path, f"{quoted(target)} is a carry and takes pieces such as next or drafts[:a], not {text}"
            return
        try:
            pieces.append(parse_piece(text))
        except ExpressionError as error:
            yield path, str(error)
            return
    filled = any(piece.name == "mask" for piece in pieces)
    for piece in pieces:
        if piece.name != "mask" or carry.kind != "token":
            yield from scope.piece(piece, path, values, forward, place, carry.kind)
    lengths = [values[piece.name].length for piece in pieces if piece.name in values]
    if filled or carry.length is None or None in lengths or len(lengths) < len(pieces):
        return
    total = expression.total(
        piece.length(length) for piece, length in zip(pieces, lengths, strict=True) if length is not None
    )
    off = scope.off_by(total, carry.length)
    if off is not None:
        yield path, f"{quoted(target)} holds {to_text(carry.length)}, and {to_text(total)} are set{off[1]}"


def _check(scope: Scope) -> Iterator[Violation]:
    """Properties read columns, parameters and `state`, which compares with names of states."""
    spec = scope.spec
    states = dict.fromkeys([*spec.states, *LIFE_CYCLE_STATES, "state"], ("states",))
    place = scope.place(**states)
    for group in ("always", "sometimes"):
        for text, condition in getattr(spec.check, group).items():
            yield from scope.numbers(condition, ("check", group, text), place)
    wanted = spec.check.eventually
    if wanted not in spec.states and wanted not in LIFE_CYCLE_STATES and wanted not in scope.doubt:
        yield (
            ("check", "eventually"),
            f"the state {quoted(wanted)} is not declared{nearest(wanted, [*spec.states, 'end'])}",
        )
