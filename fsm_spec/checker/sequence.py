"""Counterexamples as Mermaid sequence diagrams: a line of life a request, one for the scheduler, one for the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsm_spec.checker.composition import ARRIVE
from fsm_spec.checker.counterexample import event_text
from fsm_spec.life_cycle import ABORT, ADMIT, PREEMPT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsm_spec.checker.counterexample import Counterexample, StepShown


def mermaid(example: Counterexample) -> str:
    """Draw a counterexample; pages taken and given back are messages between a request and the pool."""
    requests = sorted({step.request for step in example.steps})
    lines = ["sequenceDiagram", f"  %% {example.name}: {example.setting}"]
    lines += ["  participant C as client", "  participant S as scheduler"]
    lines += [f"  participant R{request} as request {request}" for request in requests]
    lines.append(f"  participant P as pool of {example.setting.pool.pages} pages")
    number = 0
    for step in example.steps:
        if step.move != number:
            if example.loop is not None and number == example.loop:
                lines.append("  loop for ever")
            number = step.move
        lines += _step(step, example.setting.pool.pages)
    if example.loop is not None:
        lines.append("  end")
    texts = [example.why, *example.reasons]
    lines += [f"  Note over S,P: {_text(text)}" for text in texts]
    return "\n".join(lines) + "\n"


def _step(step: StepShown, pool: int) -> Iterator[str]:
    sender = {ARRIVE: "C", ABORT: "C", ADMIT: "S", PREEMPT: "S"}.get(step.event, f"R{step.request}")
    line = f", line {step.line}" if step.line else ""
    yield f"  {sender}->>R{step.request}: {_text(event_text(step))} to {step.target}{line}"
    before, after = step.pages
    if after > before:
        yield f"  P->>R{step.request}: takes {after - before}, {step.in_use} of {pool} in use"
    if after < before:
        yield f"  R{step.request}->>P: gives back {before - after}, {step.in_use} of {pool} in use"
    changes = ", ".join(f"{name} {old} to {new}" for name, (old, new) in step.changes.items())
    if changes:
        yield f"  Note over R{step.request}: {changes}"


def _text(text: str) -> str:
    """Spell a text without the characters that end a statement or start an entity."""
    return text.replace(";", ",").replace("#", "no. ")
