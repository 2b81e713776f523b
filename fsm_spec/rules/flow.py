"""Flow through a spec: closed events, reachable states, carries written before they are read, and nothing unused.

These rules speak of what is missing, so they are silent about words that a faulty part may have meant.
"""

from __future__ import annotations

from collections.abc import Iterator

from fsm_spec.language.findings import Path, quoted
from fsm_spec.language.operations import Accept, Walk
from fsm_spec.language.operators import carries_of
from fsm_spec.language.piece import pieces
from fsm_spec.language.scope import (
    Scope,
    Violation,
    forward_of,
    listed,
    segment_path,
    sources,
    sources_of,
)
from fsm_spec.language.spec import Transition


def rules(scope: Scope) -> Iterator[Violation]:
    """Judge what is missing: transitions, ways to states, and uses of what is declared."""
    yield from _closed(scope)
    reached = _reached(scope)
    for name in scope.spec.states:
        if name not in reached | scope.doubt and not scope.lost(("transitions",)):
            yield (
                ("states", name),
                f"the state {name} is never entered; write a transition to it, or remove it",
            )
    yield from _unused(scope)
    yield from _unused_results(scope)


def _closed(scope: Scope) -> Iterator[Violation]:
    """Every state handles or ignores every event; a state with a forward handles its completion."""
    handled = {
        (state, transition.on) for transition in scope.spec.transitions for state in sources_of(transition)
    }
    left = {state for state, _ in handled} | scope.doubt
    for name, state in scope.spec.states.items():
        path: Path = ("states", name)
        if scope.spec.forwards and name not in left and not scope.lost(("transitions",)):
            yield path, f"the state {name} has no transition; say where its forward's completion leads"
        for event in scope.spec.events if not scope.spec.forwards and name not in scope.doubt else ():
            ignored = event in state.ignore
            if (name, event) in handled and ignored:
                yield (
                    (*path, "ignore"),
                    f"the event {event} is both ignored and handled in the state {name}; do one",
                )
            elif not ((name, event) in handled or ignored or event in scope.doubt):
                message = f"the event {event} is neither handled nor ignored in the state {name}"
                yield path, f"{message}; add a transition, or ignore: [{event}]"


def leaving(scope: Scope) -> dict[str, list[Transition]]:
    """List the transitions that leave each state."""
    leaving: dict[str, list[Transition]] = {}
    for transition in scope.spec.transitions:
        for state in sources_of(transition):
            leaving.setdefault(state, []).append(transition)
    return leaving


def _reached(scope: Scope) -> set[str]:
    """Give the states on any way from the start; words in doubt may be entered too."""
    starts = {name for name, state in scope.spec.states.items() if state.start}
    todo = list((starts or set(scope.spec.states)) | scope.doubt & set(scope.spec.states))
    reached = set(todo)
    arrows = leaving(scope)
    while todo:
        state = todo.pop()
        for transition in arrows.get(state, ()):
            if transition.to not in reached:
                reached.add(transition.to)
                todo.append(transition.to)
    return reached


# Carries ------------------------------------------------------------------------------------------------------


def _used_up(scope: Scope, state: str) -> set[str]:
    """Name the drafts that a state's forward judges, with their law: judged once, they are no drafts any more."""
    name = forward_of(scope.spec, state)
    judges = [op for op in scope.spec.forwards[name].ops if isinstance(op, (Accept, Walk))] if name else []
    return {piece.name for op in judges for _, _, piece in carries_of(op)}


def written(scope: Scope) -> Iterator[Violation]:
    """Hold every carry to be set on each way from the start to where it is read; a restart clears all but pending.

    Asked only where every name in the spec is known.
    """
    reached = _reached(scope)
    carries = set(scope.spec.carry)
    starts = {name for name, state in scope.spec.states.items() if state.start}
    begun = {name for name, carry in scope.spec.carry.items() if carry.init is not None}
    held = {name: set(begun) if name in starts else set(carries) for name in scope.spec.states}
    arrows = leaving(scope)
    todo = [state for state in scope.spec.states if state in reached]
    while todo:
        state = todo.pop()
        for transition in arrows.get(state, ()):
            after = (held[state] - _used_up(scope, state)) | set(transition.set) & carries
            if transition.to in held and not held[transition.to] <= after:
                held[transition.to] &= after
                todo.append(transition.to)
    for state in scope.spec.states:
        missing = carries - held[state] if state in reached else set()
        seen: set[str] = set()
        for path, name in reads(scope, state):
            if name in missing and name not in seen:
                seen.add(name)
                told = f"{quoted(name)} is read in the state {state}, but not set on every way from the start to it"
                yield path, f"{told}: {_way_out(scope, state, name, held, reached)}"


def _way_out(scope: Scope, state: str, name: str, held: dict[str, set[str]], reached: set[str]) -> str:
    """Name the first transition into a state after which a carry is not set, and what would set it."""
    if scope.spec.states[state].start:
        return "nothing sets it before the start state; give the carry an init"
    index, source = next(
        (index, source)
        for index, transition in enumerate(scope.spec.transitions)
        if transition.to == state and name not in transition.set
        for source in sources_of(transition)
        if source in reached and name not in held[source] - _used_up(scope, source)
    )
    return f"transitions[{index}], from {source} to {state}, leaves it unset; add it to that set:, or to one before"


def reads(scope: Scope, state: str) -> Iterator[tuple[Path, str]]:
    """Yield every read of a carry in a state, in the order of the file."""
    name = forward_of(scope.spec, state)
    if name is not None:
        forward = scope.spec.forwards[name]
        for index, segment in enumerate(forward.segments):
            for piece in sources(segment):
                yield (*segment_path(name, forward, index), "source"), piece.name
            if segment.features is not None:
                yield (*segment_path(name, forward, index), "features"), segment.features.name
        for index, op in enumerate(forward.ops):
            for key, _, piece in carries_of(op):
                yield ("forwards", name, "ops", index, key), piece.name
    for index, transition in enumerate(scope.spec.transitions):
        if state in sources_of(transition):
            yield from _transition_reads(scope, transition, ("transitions", index))


def _transition_reads(scope: Scope, transition: Transition, path: Path) -> Iterator[tuple[Path, str]]:
    for index, piece in enumerate(transition.emit):
        yield (*path, "emit", index), piece.name
    for target, value in transition.set.items():
        if target in scope.carries:
            for piece in pieces(value):
                yield (*path, "set", target), piece.name


# Unused parts -------------------------------------------------------------------------------------------------


def _unused(scope: Scope) -> Iterator[Violation]:
    """Whatever is declared is read somewhere; what is only written says nothing."""
    for group, what in (
        ("params", "the parameter {} is never read"),
        ("models", "the model {} is run by no forward"),
        ("columns", "the column {} is never read"),
        ("carry", "the carry {} is never read"),
        ("forwards", "the forward {} is run by no state"),
        ("events", "the event {} is never handled"),
    ):
        for name in getattr(scope.spec, group):
            if (group, name) not in scope.used and name not in scope.doubt:
                yield (group, name), f"{what.format(name)}; remove it"
    for name, event in scope.spec.events.items():
        for arg in event.args:
            if ("args", name, arg) not in scope.used and arg not in scope.doubt:
                yield ("events", name, "args", arg), f"the argument {arg} is never read; remove it"


def _unused_results(scope: Scope) -> Iterator[Violation]:
    """Logits are read by an operator, and results by a transition, of every forward that runs."""
    for name, forward in scope.spec.forwards.items():
        if ("forwards", name) not in scope.used or name in scope.doubt:
            continue
        path: Path = ("forwards", name)
        read = {used[-1] for used in scope.used if used[:2] == ("rows", name)} | scope.doubt
        for index, segment in enumerate(forward.segments):
            if segment.logits != "none" and segment.name not in read and not scope.lost((*path, "ops")):
                message = f"no operator reads the logits of {segment.name}"
                yield (*segment_path(name, forward, index), "logits"), f"{message}; write logits: none"
        read = {used[-1] for used in scope.used if used[:2] == ("results", name)} | scope.doubt
        for index, op in enumerate(forward.ops):
            for result in listed(op.out):
                if result not in read and not scope.lost(("transitions",)):
                    yield (*path, "ops", index, "out"), f"the result {result} is never read by a transition"
