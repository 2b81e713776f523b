"""Sequence diagrams of counterexamples: who asks whom, pages that move, and the loop of a livelock."""

from __future__ import annotations

from pathlib import Path

from fsm_spec.checker.check import Bounds, check
from fsm_spec.checker.counterexample import Counterexample
from fsm_spec.checker.sequence import mermaid
from fsm_spec.compile import compile_table
from fsm_spec.load import load

MODEL = Path(__file__).resolve().parents[2] / "models" / "kvpool.yaml"


def example(policy: str) -> Counterexample:
    """Give the counterexample of two requests of the common model."""
    loaded = load(MODEL)
    table = compile_table(loaded.spec, check=True, page_size=2, line_of=loaded.line_of)
    (decided,) = check(table, Bounds(2, 6, policies=(policy,))).refuted
    assert decided.counterexample is not None
    return decided.counterexample


def test_a_livelock_is_a_loop() -> None:
    """The moves that repeat stand in a loop; pages taken and given back are messages."""
    expected = """\
  P->>R0: takes 2, 4 of 6 in use
  loop for ever
  S->>R1: admit to draft, line 18
  P->>R1: takes 1, 5 of 6 in use
  S->>R1: preempt to wait, line 18
  R1->>P: gives back 1, 4 of 6 in use
  end
  Note over S,P: livelock: the last 2 moves can repeat for ever without progress
"""
    assert expected in mermaid(example("preempt"))


def test_a_deadlock_has_no_loop() -> None:
    """A path that ends in a deadlock is drawn straight, with the reasons behind it."""
    text = mermaid(example("greedy"))
    assert "loop" not in text
    assert "Note over S,P: request 0 is in draft with" in text


def test_arrivals_come_from_the_client() -> None:
    """A client sends requests; the scheduler admits them."""
    table = compile_table(load("uno_linear").spec, check=True)
    (decided,) = check(table, Bounds(policies=("greedy",))).refuted
    assert decided.counterexample is not None
    text = mermaid(decided.counterexample)
    assert "  C->>R0: arrive(prompt = 2, limit = 8) to wait\n" in text
    assert "  S->>R1: admit to prefill\n" in text
