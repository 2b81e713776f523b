"""Counterexamples a person can read: one line a step, only what changes, the line of the YAML file, pages in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fsm_spec.automaton import NO_ROW
from fsm_spec.composition import Composition, Interleaving, Move, State, move_between
from fsm_spec.errors import UnhandledEvent
from fsm_spec.oracle import oracle
from fsm_spec.show import columns
from fsm_spec.table import NO_STOP, STOP

if TYPE_CHECKING:
    from fsm_spec.automaton import Automaton, Event
    from fsm_spec.search import Fault


@dataclass(frozen=True)
class StepShown:
    """Hold one step: which request, which event, the states, the spec's line, and what changes."""

    move: int
    request: int
    event: str
    args: Mapping[str, int]
    source: str
    target: str
    line: int
    changes: Mapping[str, tuple[int, int]]
    # Pages of this request before and after.
    pages: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Counterexample:
    """Hold the shortest way to where a property breaks, and why it breaks there."""

    name: str
    setting: str
    steps: tuple[StepShown, ...]
    why: str

    def content(self) -> dict[str, Any]:
        """Give the counterexample as JSON values."""
        steps = [
            {
                **vars(step),
                "args": dict(step.args),
                "changes": {k: list(v) for k, v in step.changes.items()},
                "pages": list(step.pages),
            }
            for step in self.steps
        ]
        return {"setting": self.setting, "steps": steps, "why": self.why}

    def lines(self) -> list[str]:
        """Print the steps, aligned; steps of one move share its number."""
        rows = [["step", "who", "event", "states", "changes", "pages", "spec"]]
        before = 0
        for step in self.steps:
            number = "" if step.move == before else str(step.move)
            before = step.move
            rows.append(
                [number, f"request {step.request}", _event_text(step), _states_text(step), *_effects(step)]
            )
        return [self.setting, *columns(rows), f"  {self.why}"]


def _event_text(step: StepShown) -> str:
    # Without a prefix cache `hit` is always 0 and says nothing.
    args = [
        f"{name} = {value}"
        for name, value in step.args.items()
        if name != STOP and (name, value) != ("hit", 0)
    ]
    stop = step.args.get(STOP, NO_STOP)
    if stop != NO_STOP:
        args.append(f"token {stop + 1} is a stop")
    return f"{step.event}({', '.join(args)})" if args else step.event


def _states_text(step: StepShown) -> str:
    return f"{step.source} -> {step.target}" if step.source else step.target


def _effects(step: StepShown) -> list[str]:
    changes = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in step.changes.items())
    before, after = step.pages
    pages = f"{before} -> {after}" if before != after else str(after) if after else ""
    return [changes, pages, f"line {step.line}" if step.line else ""]


def explain(composed: Composition | Interleaving, name: str, fault: Fault) -> Counterexample:
    """Turn a fault that a search found into steps with reasons."""
    path, last = fault.path, fault.move
    moves = [move_between(composed, before, after) for before, after in pairwise(path)]
    steps: list[StepShown] = []
    for number, move in enumerate([*moves, *([last] if last else [])], start=1):
        steps += _steps(composed, number, move)
    if last is None:
        why = "; ".join([fault.why, *_stuck(composed, path[-1])])
    else:
        why = f"broken in step {len(moves) + 1}: {_reason(composed.automaton, last)}"
    return Counterexample(name, _setting(composed), tuple(steps), why)


def _setting(composed: Composition | Interleaving) -> str:
    requests = f"{composed.requests} request{'s' if composed.requests > 1 else ''}"
    if isinstance(composed, Interleaving):
        return f"{requests}, single events, no pool"
    pool = composed.pool
    return f"{requests}, policy {composed.policy.policy}, {pool.pages} pages of {pool.page_size} slots"


def _steps(composed: Composition | Interleaving, number: int, move: Move) -> list[StepShown]:
    steps = []
    for request, events, (before, during, after) in move.parts:
        if not events:
            entry = move.after[request]
            assert entry is not None
            named = composed.automaton.columns(entry.columns)
            sizes = {name: named[name] for name in ("prompt", "limit")}
            steps.append(
                StepShown(
                    number, request, "arrive", sizes, "", composed.automaton.state_of(entry.columns), 0, {}
                )
            )
        for index, event in enumerate(events):
            pages = (before if index == 0 else during, after if index == len(events) - 1 else during)
            steps.append(_step(composed.automaton, number, request, event, pages))
    return steps


def _step(automaton: Automaton, number: int, request: int, event: Event, pages: tuple[int, int]) -> StepShown:
    before, after = automaton.columns(event.before), automaton.columns(event.after)
    changes = {
        name: (before[name], after[name])
        for name in automaton.names
        if name != "state" and before[name] != after[name]
    }
    line = automaton.table.rows[event.transition // 2].line if event.transition >= 0 else 0
    source, target = automaton.state_of(event.before), automaton.state_of(event.after)
    return StepShown(number, request, event.name, event.args, source, target, line, changes, pages)


def _reason(automaton: Automaton, move: Move) -> str:
    """Give the columns of every request that took part, as the broken property finds them; or what finds no row."""
    texts = []
    for request, events, _ in move.parts:
        if events[-1].transition == NO_ROW:
            texts.append(f"request {request}: {_refusal(automaton, events[-1])}")
        else:
            named = automaton.columns(events[-1].after)
            shown = ", ".join(f"{name} = {value}" for name, value in named.items() if name != "state")
            texts.append(f"request {request}: {shown}" if shown else f"request {request}")
    return "; ".join(texts)


def _refusal(automaton: Automaton, event: Event) -> str:
    try:
        oracle(automaton.table, automaton.columns(event.before), event.name, event.args)
    except UnhandledEvent as error:
        return str(error)
    raise AssertionError(event)  # pragma: no cover - the automaton saw it refused


def _stuck(composed: Composition | Interleaving, state: State) -> list[str]:
    texts = []
    for request, entry in enumerate(state):
        if entry is not None and entry.columns:
            held = f" with {_pages_text(entry.pages)}" if isinstance(composed, Composition) else ""
            texts.append(f"request {request} is in {composed.automaton.state_of(entry.columns)}{held}")
    if isinstance(composed, Composition):
        free = composed.pool.pages - sum(entry.pages for entry in state if entry)
        texts.append(f"{_pages_text(free)} free")
    return texts


def _pages_text(pages: int) -> str:
    return f"{pages} page{'' if pages == 1 else 's'}"
