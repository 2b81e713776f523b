"""Flow through a spec: closed events, reachable states, carries written before they are read, and nothing unused.

These rules speak of what is missing, so they are silent about words that a faulty part may have meant.
"""

from __future__ import annotations

from collections.abc import Iterator

from fsm_spec.findings import Path, quoted
from fsm_spec.piece import parse_piece
from fsm_spec.scope import PENDING, Scope, Violation, forward_of, listed, sources_of
from fsm_spec.spec import Accept, Transition


def rules(scope: Scope, *, sound: bool) -> Iterator[Violation]:
    """Judge the graph of states; `sound` tells that every name in it is known."""
    yield from _closed(scope)
    reached = _reached(scope)
    for name in scope.spec.states:
        if name not in reached and name not in scope.doubt:
            yield (
                ("states", name),
                f"the state {name} is never entered; write a transition to it, or remove it",
            )
    if sound:
        yield from _written(scope, reached)
    yield from _unused(scope)


def _closed(scope: Scope) -> Iterator[Violation]:
    """Every state handles or ignores every event; a state with a forward handles its completion."""
    handled = {(state, t.on) for t in scope.spec.transitions for state in sources_of(t)}
    if scope.spec.forwards:
        for name in scope.spec.states:
            if (
                (name, None) not in handled
                and not any(state == name for state, _ in handled)
                and name not in scope.doubt
            ):
                yield (
                    ("states", name),
                    f"the state {name} has no transition; say where its forward's completion leads",
                )
        return
    for name, state in scope.spec.states.items():
        for event in scope.spec.events:
            if {name, event} & scope.doubt:
                continue
            both = (name, event) in handled, event in state.ignore
            if both == (True, True):
                yield (
                    ("states", name, "ignore"),
                    f"the event {event} is ignored and handled in the state {name}; do one",
                )
            elif both == (False, False):
                yield (
                    ("states", name),
                    f"the event {event} is neither handled nor ignored in the state {name}; add a transition, or ignore: [{event}]",
                )


def _reached(scope: Scope) -> set[str]:
    """Give the states on any way from the start; words in doubt may be entered too."""
    starts = {name for name, state in scope.spec.states.items() if state.start}
    todo = list((starts or set(scope.spec.states)) | scope.doubt & set(scope.spec.states))
    reached = set(todo)
    while todo:
        state = todo.pop()
        for transition in scope.spec.transitions:
            if state in sources_of(transition) and transition.to not in reached:
                reached.add(transition.to)
                todo.append(transition.to)
    return reached


# Carries ------------------------------------------------------------------------------------------------------


def _written(scope: Scope, reached: set[str]) -> Iterator[Violation]:
    """A carry that a state reads is written on every way from the start to it; a restart clears all but pending."""
    carries = set(scope.spec.carry)
    starts = {name for name, state in scope.spec.states.items() if state.start}
    held = {name: set() if name in starts else set(carries) for name in scope.spec.states}
    leaving: dict[str, list[Transition]] = {}
    for transition in scope.spec.transitions:
        for state in sources_of(transition):
            leaving.setdefault(state, []).append(transition)
    todo = [state for state in scope.spec.states if state in reached]
    while todo:
        state = todo.pop()
        for transition in leaving.get(state, ()):
            after = held[state] | set(transition.set) & carries
            if transition.to in held and not held[transition.to] <= after:
                held[transition.to] &= after
                todo.append(transition.to)
    for state in scope.spec.states:
        missing = carries - held[state] if state in reached else set()
        seen: set[str] = set()
        for path, name in _reads(scope, state):
            if name in missing and name not in seen:
                seen.add(name)
                yield (
                    path,
                    f"{quoted(name)} is read in the state {state}, but not set on every way from the start to it",
                )


def _reads(scope: Scope, state: str) -> Iterator[tuple[Path, str]]:
    """Yield every read of a carry in a state, in the order of the file."""
    name = forward_of(scope.spec, state)
    if name is not None:
        forward = scope.spec.forwards[name]
        for index, segment in enumerate(forward.rows):
            yield ("forwards", name, "rows", index, "source"), segment.source.name
        for index, op in enumerate(forward.ops):
            if isinstance(op, Accept):
                yield ("forwards", name, "ops", index, "drafts"), op.drafts.name
                yield ("forwards", name, "ops", index, "q"), op.q or PENDING
    for index, transition in enumerate(scope.spec.transitions):
        if state in sources_of(transition):
            yield from _transition_reads(scope, transition, ("transitions", index))


def _transition_reads(scope: Scope, transition: Transition, path: Path) -> Iterator[tuple[Path, str]]:
    for index, piece in enumerate(transition.emit):
        yield (*path, "emit", index), piece.name
    for target, value in transition.set.items():
        if target in scope.carries:
            for text in value if isinstance(value, list) else [value]:
                yield (*path, "set", target), parse_piece(str(text)).name


# Unused parts -------------------------------------------------------------------------------------------------


def _unused(scope: Scope) -> Iterator[Violation]:
    spec = scope.spec
    groups = (
        ("params", "the parameter"),
        ("columns", "the column"),
        ("carry", "the carry"),
        ("forwards", "the forward"),
        ("events", "the event"),
    )
    for group, what in groups:
        for name in getattr(spec, group):
            if (group, name) not in scope.used and name not in scope.doubt:
                yield (group, name), f"{what} {name} is never used; remove it"
    for name, forward in spec.forwards.items():
        if ("forwards", name) not in scope.used:
            continue  # its parts are unused with it
        for index, segment in enumerate(forward.rows):
            if segment.logits != "none" and ("rows", name, segment.name) not in scope.used | {
                ("rows", name, word) for word in scope.doubt
            }:
                yield (
                    ("forwards", name, "rows", index, "logits"),
                    f"no operator reads the logits of {segment.name}; write logits: none",
                )
        for index, op in enumerate(forward.ops):
            for result in listed(op.out):
                if ("results", name, result) not in scope.used and result not in scope.doubt:
                    yield (
                        ("forwards", name, "ops", index, "out"),
                        f"the result {result} is never used; read it in a transition",
                    )
    for name, event in spec.events.items():
        for arg in event.args:
            if ("args", name, arg) not in scope.used and arg not in scope.doubt:
                yield ("events", name, "args", arg), f"the argument {arg} is never used; remove it"
