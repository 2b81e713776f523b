"""Counterexamples a person can read: one line a step, only what changes, the line of the YAML file, pages in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fsm_spec import life_cycle
from fsm_spec.checker import properties
from fsm_spec.checker.automaton import NO_ROW
from fsm_spec.checker.composition import ABSENT, ARRIVE, Composition, Move, State, move_between
from fsm_spec.checker.interleaving import Interleaving
from fsm_spec.checker.shared_prefix import SharedPrefix
from fsm_spec.checker.single_events import SingleEvents
from fsm_spec.checker.stuck import hopeless, stuck_reasons
from fsm_spec.drawing.show import columns
from fsm_spec.errors import UnhandledEvent
from fsm_spec.oracle import oracle
from fsm_spec.table import NO_STOP, STOP
from fsm_spec.wording import counted

if TYPE_CHECKING:
    from fsm_spec.checker.automaton import Automaton, Event
    from fsm_spec.checker.search import Fault
    from fsm_spec.policy import Policy, Pool


@dataclass(frozen=True)
class StepShown:
    """Hold one step: which request, which event, the states, the spec's line, and what changes.

    `columns` are all columns after the step, `pages` those of this request before and after, `in_use` those of all
    requests after it. `transition` is -1 where the request arrives, or no row takes the event.
    """

    move: int
    request: int
    event: str
    args: Mapping[str, int]
    source: str
    target: str
    line: int
    changes: Mapping[str, tuple[int, int]]
    columns: Mapping[str, int]
    transition: int = NO_ROW
    pages: tuple[int, int] = (0, 0)
    in_use: int = 0
    # The size of the tiered parameter under which the event happened, if the policy has tiers.
    sizes: Mapping[str, int] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """Give the step as JSON values."""
        changes = {name: list(both) for name, both in self.changes.items()}
        own = {
            "args": dict(self.args),
            "columns": dict(self.columns),
            "pages": list(self.pages),
        }
        content = {**vars(self), **own, "changes": changes}
        if not content.pop("sizes"):
            return content
        return {**content, "sizes": dict(self.sizes)}


@dataclass(frozen=True)
class Setting:
    """Hold what a counterexample needs to be met again: requests, policy, pool, and what may happen to requests."""

    requests: int
    policy: Policy
    pool: Pool
    abort: bool
    # One event at a time, though the spec has rounds.
    single: bool = False
    # Prompts start alike, and their full pages may have several holders.
    prefix: bool = False

    def __str__(self) -> str:
        """Say it in one line."""
        requests, slots = counted(self.requests, "request"), counted(self.pool.page_size, "slot")
        pages = counted(self.pool.pages, "page")
        single = ", one event at a time" if self.single else ", prefix cache" if self.prefix else ""
        return f"{requests}, policy {self.policy.policy}, {pages} of {slots}{single}"


@dataclass(frozen=True)
class Counterexample:
    """Hold the shortest way to where a property breaks, and why it breaks there.

    `loop`: for a livelock, the move after which the rest repeats.
    """

    name: str
    setting: Setting
    steps: tuple[StepShown, ...]
    why: str
    reasons: tuple[str, ...] = ()
    loop: int | None = None

    @property
    def depth(self) -> int:
        """Count the moves."""
        return max((step.move for step in self.steps), default=0)

    def content(self) -> dict[str, Any]:
        """Give the counterexample as JSON values."""
        return {
            "setting": str(self.setting),
            "depth": self.depth,
            "steps": [step.content() for step in self.steps],
            "loop": self.loop,
            "why": self.why,
            "reasons": list(self.reasons),
        }

    def lines(self) -> list[str]:
        """Print the steps, aligned; steps of one move share its number."""
        rows = [["step", "who", "event", "states", "changes", "in use", "spec"]]
        before = 0
        for step in self.steps:
            number = "" if step.move == before else str(step.move)
            before = step.move
            rows.append([number, f"request {step.request}", *step_texts(step, self.setting.pool.pages)])
        reasons = [f"    {reason}" for reason in self.reasons]
        return [str(self.setting), *columns(rows), f"  {self.why}", *reasons]


def step_texts(step: StepShown, pages: int) -> list[str]:
    """Print a step in five cells: the event, the states, the changes, pages in use of all, and the line."""
    states = f"{step.source} -> {step.target}" if step.source else step.target
    changes = [f"{name} {old} -> {new}" for name, (old, new) in step.changes.items()]
    if step.pages[0] != step.pages[1]:
        changes.append(f"pages {step.pages[0]} -> {step.pages[1]}")
    line = f"line {step.line}" if step.line else ""
    return [event_text(step), states, ", ".join(changes), f"{step.in_use} of {pages}", line]


def event_text(step: StepShown) -> str:
    """Print an event with its arguments."""
    # Without a prefix cache `hit` is always 0 and says nothing.
    args = [
        f"{name} = {value}"
        for name, value in (*step.sizes.items(), *step.args.items())
        if name != STOP and (name, value) != ("hit", 0)
    ]
    stop = step.args.get(STOP, NO_STOP)
    if stop != NO_STOP:
        args.append(f"token {stop + 1} is a stop")
    return f"{step.event}({', '.join(args)})" if args else step.event


def explain(composed: Composition | Interleaving, name: str, fault: Fault) -> Counterexample:
    """Turn a fault that a search found into steps with reasons."""
    path, last = fault.path, fault.move
    moves = [move_between(composed, before, after) for before, after in pairwise(path)]
    reasons: tuple[str, ...] = ()
    if last is None:
        why = fault.why
        repeated = [] if fault.loop is None else moves[fault.loop :]
        looping = {part.request for move in repeated for part in move.parts}
        reasons = tuple(stuck_reasons(composed, path[-1], looping))
    else:
        automaton = composed.automaton_of(last)
        last = _up_to(automaton, last, name)
        if name == properties.FITS:
            request = last.parts[0].request
            reason = f"request {request} {hopeless(composed, last.after[request])}"
        else:
            reason = _reason(automaton, last)
        why = f"broken in step {len(moves) + 1}: {reason}"
        moves.append(last)
    setting = Setting(
        composed.requests,
        composed.policy,
        composed.pool,
        composed.abort,
        single=isinstance(composed, SingleEvents),
        prefix=isinstance(composed, SharedPrefix),
    )
    return Counterexample(name, setting, tuple(_steps(composed, path, moves)), why, reasons, fault.loop)


def _up_to(automaton: Automaton, move: Move, name: str) -> Move:
    """Cut a request's events behind the first that breaks the property."""
    parts = []
    for part in move.parts:
        kept = len(part.events)
        for index, event in enumerate(part.events):
            if event.transition == NO_ROW:
                break
            before = automaton.columns(event.before)
            outcome = oracle(automaton.table, before, event.name, event.args)
            if name in automaton.judge.broken(before, event.args, outcome):
                kept = index + 1
                break
        parts.append(part._replace(events=part.events[:kept]))
    return move._replace(parts=tuple(parts))


def _steps(composed: Composition | Interleaving, path: list[State], moves: list[Move]) -> list[StepShown]:
    steps = []
    for number, (state, move) in enumerate(zip(path, moves, strict=False), start=1):
        owned = [entry.pages if entry else 0 for entry in state]
        common = composed.in_common(state)
        for request, events, (before, during, after) in move.parts:
            if not events and state[request] in (None, ABSENT):
                steps.append(_arrival(composed.automaton, number, move, request, common + sum(owned)))
            if not events:
                # Nothing happens to a request whose end a late host sees now, but that its pages return.
                owned[request] = after
            for index, event in enumerate(events):
                pages = (before if index == 0 else during, after if index == len(events) - 1 else during)
                owned[request] = pages[1]
                step = _step(composed.automaton_of(move), number, request, event, pages, common + sum(owned))
                own = event.name not in life_cycle.EVENTS
                steps.append(replace(step, sizes=composed.sizes(move) if own else {}))
    return steps


def _arrival(automaton: Automaton, number: int, move: Move, request: int, in_use: int) -> StepShown:
    entry = move.after[request]
    assert entry is not None
    named = automaton.columns(entry.columns)
    sizes = {name: named[name] for name in ("prompt", "limit")}
    state = automaton.state_of(entry.columns)
    return StepShown(number, request, ARRIVE, sizes, "", state, 0, {}, named, in_use=in_use)


def _step(
    automaton: Automaton, number: int, request: int, event: Event, pages: tuple[int, int], in_use: int
) -> StepShown:
    before, after = automaton.columns(event.before), automaton.columns(event.after)
    changes = {
        name: (before[name], after[name])
        for name in automaton.names
        if name != "state" and before[name] != after[name]
    }
    line = automaton.table.rows[event.transition // 2].line if event.transition >= 0 else 0
    source, target = automaton.state_of(event.before), automaton.state_of(event.after)
    return StepShown(
        number,
        request,
        event.name,
        event.args,
        source,
        target,
        line,
        changes,
        after,
        event.transition,
        pages,
        in_use,
    )


def _reason(automaton: Automaton, move: Move) -> str:
    """Give the columns of every request that took part, as the broken property finds them; or what finds no row."""
    texts = []
    for request, events, _ in move.parts:
        if not events:
            # It only goes, as a late host sees its end now.
            continue
        if events[-1].transition == NO_ROW:
            texts.append(f"request {request}: {refusal(automaton, events[-1])}")
        else:
            named = automaton.columns(events[-1].after)
            shown = ", ".join(f"{name} = {value}" for name, value in named.items() if name != "state")
            texts.append(f"request {request}: {shown}" if shown else f"request {request}")
    return "; ".join(texts)


def refusal(automaton: Automaton, event: Event) -> str:
    """Give the sentence with which the oracle refuses an event that finds no row."""
    try:
        oracle(automaton.table, automaton.columns(event.before), event.name, event.args)
    except UnhandledEvent as error:
        return str(error)
    raise AssertionError(event)  # pragma: no cover - the automaton saw it refused
