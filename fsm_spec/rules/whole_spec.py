"""Rules over a whole spec that hold for all parameters: names, declarations, states, events and properties.

Each rule yields `(path, sentence)`. Segments and operators are judged in `rows.py`, their fates in `fates.py`,
transitions in `effects.py`, tokens in `verified.py`, tiered parameters in `resizing.py`, and what is missing or never
read in `flow.py`. Guards, bounds and contracts need concrete parameters; `compile.py` decides them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from fsm_spec.language import expression
from fsm_spec.language.expression import Expr, evaluate, to_text
from fsm_spec.language.findings import MAX_FINDINGS, Path, nearest, quoted
from fsm_spec.language.piece import Piece
from fsm_spec.language.scope import (
    BUILT_IN_COLUMNS,
    LIFE_CYCLE_EVENTS,
    LIFE_CYCLE_STATES,
    OWNED,
    RESERVED,
    Scope,
    Violation,
    listed,
    segment_path,
    shown,
)
from fsm_spec.language.spec import Forward, Spec, State
from fsm_spec.rules import (
    draft_rows,
    effects,
    fates,
    filled,
    flow,
    mask_counts,
    masks,
    resizing,
    rows,
    verified,
)


def violations(
    spec: Spec,
    doubt: Iterable[str] = (),
    hurt: Callable[[Path], bool] = lambda _: False,
    guards: Callable[[], Iterable[Violation]] = tuple,
) -> list[Violation]:
    """List what is wrong with a spec as a whole.

    Words in `doubt` may stand for parts that could not be read; `hurt` tells whether a part has lost something;
    `guards` are asked where all parts are in order, before anything is followed along them.
    """
    scope = Scope(spec, set(doubt), hurt)
    return list(dict.fromkeys(islice(_all(scope, guards), MAX_FINDINGS + 1)))


def _all(scope: Scope, guards: Callable[[], Iterable[Violation]]) -> Iterator[Violation]:
    sized = sound = True
    for violation in _chained(scope, _names, _params, _columns, _carries):
        sized = False
        yield violation
    yield from _check(scope)
    for violation in _chained(
        scope, rows.rules, draft_rows.rules, _states, _events, effects.rules, fates.rules
    ):
        sound = False
        yield violation
    # Whether a token is final depends on every part on its way, so these rules wait until the parts are in order; of
    # a guard that overlaps another, or leaves a gap, they would tell the consequences only.
    for violation in guards() if sound and sized and not scope.doubt else ():
        sound = False
        yield violation
    if sound and not scope.doubt:
        for violation in followed(scope, sized=sized):
            sound = False
            yield violation
        if sound:
            yield from resizing.rules(scope)
    yield from flow.rules(scope)


def followed(scope: Scope, *, sized: bool = True) -> Iterator[Violation]:
    """Judge what is followed over the whole spec under given parameters: tokens, masks, and how much of a carry is set.

    Asked where all parts are in order; how much is set, where carries have a size.
    """
    sound = sized
    for violation in _chained(scope, verified.rules, masks.rules, flow.written):
        sound = False
        yield violation
    # A carry that is never set, or that may hold masks where it must not, is no question of its size.
    if sound:
        yield from _chained(scope, mask_counts.rules, filled.rules)


def _chained(scope: Scope, *rules: Callable[[Scope], Iterator[Violation]]) -> Iterator[Violation]:
    for rule in rules:
        yield from rule(scope)


# Declarations -------------------------------------------------------------------------------------------------


def _names(scope: Scope) -> Iterator[Violation]:
    """Names of one spec mean one thing: params, columns, carries and results share their places."""
    spec = scope.spec
    first: dict[str, str] = {}
    for group, what in (("params", "a parameter"), ("columns", "a column"), ("carry", "a carry")):
        for name in getattr(spec, group):
            yield from _taken(name, (group, name), first)
            first[name] = what
    for name in spec.states:
        yield from _taken(name, ("states", name), first)
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
    for index, segment in enumerate(forward.segments):
        if segment.name in segments:
            yield (
                (*segment_path(name, forward, index), "name"),
                f"a second segment is called {quoted(segment.name)}; names are unique in a forward",
            )
        segments.add(segment.name)
    known = dict(first)
    for index, op in enumerate(forward.ops):
        for result in listed(op.out):
            yield from _taken(result, ("forwards", name, "ops", index, "out"), known)
            known[result] = "a result of this forward"


def _taken(name: str, path: Path, first: Mapping[str, str]) -> Iterator[Violation]:
    if name in LIFE_CYCLE_STATES and path[0] != "states":
        yield path, f"{quoted(name)} is a state of the life cycle; choose another name"
    elif name in RESERVED:
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
    """Hold a column's init to columns above it, and its max to parameters."""
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
        wide = carry.type == "law"
        fits = len(carry.shape) == 2 and carry.shape[1] in vocab if wide else len(carry.shape) == 1
        if not fits or len(sizes) != 1:
            wanted = "[COUNT, vocab]" if wide else "[COUNT]"
            yield path, f"a carry of type {carry.type} has the shape {wanted}"
        for index, piece in enumerate(carry.init or ()):
            fault = _first_value(scope, carry.type, piece)
            if not fault and piece.name == "mask" and index + 1 < len(carry.init or ()):
                fault = f"mask fills what the other pieces leave of {quoted(name)}; put it last"
            if fault:
                yield ("carry", name, "init", index), fault
        if carry.init == [] or (scope.block is not None and carry.init == [Piece("text")]):
            yield (
                ("carry", name, "init"),
                f"{quoted(name)} would start with places that hold nothing; put mask last",
            )
    if scope.block is not None:
        yield from scope.numbers(scope.block, ("contract", "block"), place)


def _first_value(scope: Scope, kind: str, piece: Piece) -> str:
    """Say what is wrong with the value of a carry where a request enters the start state; nothing if it fits."""
    if kind == "real":
        return "" if piece == Piece("certain") else "a carry of numbers starts with certain, chances of 1"
    if kind == "feature":
        fits = piece == Piece("features")
        return (
            "" if fits else "a carry of hidden states starts with features, those of the last prefilled row"
        )
    if kind != "token" or piece not in (Piece("text"), Piece("mask")):
        return "a carry of tokens starts with text (the tokens behind kv), mask, or both"
    if piece.name == "text" and scope.spec.contract == "full":
        return "the contract full leaves no text behind kv; write mask alone"
    return ""


# States and transitions ---------------------------------------------------------------------------------------


def _states(scope: Scope) -> Iterator[Violation]:
    spec = scope.spec
    starts = [name for name, state in spec.states.items() if state.start]
    if (
        not starts
        and "start" not in scope.doubt
        and not any(scope.hurt(("states", name)) for name in spec.states)
    ):
        yield ("states",), "no state is the start; write start: true on one round state"
    for name in starts[1:]:
        yield ("states", name, "start"), f"{starts[0]} is the start already; exactly one state is"
    for name, state in spec.states.items():
        path: Path = ("states", name)
        if state.start and not state.round and not scope.hurt(path):
            yield (*path, "start"), f"the start {name} is no round state; write round: true"
        yield from _runs(scope, name, state, path)
        yield from _holding(scope, name)
        for index, event in enumerate(state.ignore):
            if event not in spec.events:
                yield from scope.unknown(event, "the event", spec.events, (*path, "ignore", index))


def _runs(scope: Scope, name: str, state: State, path: Path) -> Iterator[Violation]:
    """Hold a state to a forward that it runs, or in an abstract model to what it holds."""
    forwards = scope.spec.forwards
    if state.forward is not None:
        scope.used.add(("forwards", state.forward))
        if state.forward not in forwards:
            yield from scope.unknown(state.forward, "the forward", forwards, (*path, "forward"))
    elif scope.hurt(path) or scope.lost(("forwards",)):
        scope.doubt.update(forwards)
    elif forwards:
        scope.doubt.update(forwards)
        yield path, f"the state {name} runs no forward; name one of {', '.join(islice(forwards, 12))}"
    elif state.kv is None:
        yield path, f"the state {name} runs no forward, so it says which slots it holds; add the key kv"


def _holding(scope: Scope, name: str) -> Iterator[Violation]:
    kv = scope.spec.states[name].kv
    for kind in ("committed", "provisional", "scratch") if kv is not None else ():
        yield from scope.numbers(getattr(kv, kind), ("states", name, "kv", kind), scope.place())


def _events(scope: Scope) -> Iterator[Violation]:
    for name, event in scope.spec.events.items():
        for arg, bounds in event.args.items():
            for index, bound in enumerate(bounds.range):
                yield from scope.numbers(bound, ("events", name, "args", arg, "range", index), scope.place())


def _check(scope: Scope) -> Iterator[Violation]:
    """Properties read columns, parameters and `state`, which compares with names of states."""
    spec = scope.spec
    states = dict.fromkeys([*spec.states, *LIFE_CYCLE_STATES, "state"], ("states",))
    pool = {} if spec.forwards else {OWNED: ("pool",)}
    place = scope.place(more=states | pool)
    for group in ("always", "sometimes"):
        for text, condition in getattr(spec.check, group).items():
            yield from scope.numbers(condition, ("check", group, text), place)
    wanted = spec.check.eventually
    if wanted in ("wait", "prefill"):
        yield (
            ("check", "eventually"),
            f"every request passes through {wanted}, so nothing is claimed; write end",
        )
    if wanted not in spec.states and wanted not in LIFE_CYCLE_STATES and wanted not in scope.doubt:
        yield (
            ("check", "eventually"),
            f"the state {quoted(wanted)} is not declared{nearest(wanted, [*spec.states, 'end'])}",
        )
