"""Drawn policies, pools and requests: the three sides agree however unkind they are (`property/hostile_runs.py`).

`.venv/bin/python tests/property/hostile_runs.py 1000 5000` runs as many other cases as there is time for, and with
`--resizing` cases in which a policy changes sizes.
"""

from __future__ import annotations

import hostile_runs
import pytest
from hostile_cases import decoding_specs, draw, draw_resizing
from hostile_runs import run_all, run_case

from fsm_spec import policy
from fsm_spec.errors import FsmSpecError
from fsm_spec.tiers import Tiers

CASES = range(20)
# Drafts that cross a round, a choice of samplers, lookups, trees, and a draft model.
RESIZED = ("isd_strided", "uno_switching", "ngram", "uno_tree", "eagle3")


def test_three_sides_agree_under_hostile_policies() -> None:
    """Chunks, budgets, a late host, odd pages or a crowded pool would show on one side only."""
    _, failures, happened = run_all(draw(seed, decoding_specs()) for seed in CASES)
    assert [] == failures
    # Cases in which nothing of this ever happened would show nothing.
    assert min(happened[each] for each in ("rounds", "preempted", "hits", "accepted")) > 0, happened


def test_three_sides_agree_on_changing_sizes() -> None:
    """A round under another size than the one before would show on one side only, or in a token of greedy output."""
    drawn, failures, happened = run_all(draw_resizing(seed, RESIZED) for seed in CASES)
    assert [] == failures
    assert happened["resized"] > drawn // 3, happened
    assert min(happened[each] for each in ("preempted", "hits", "accepted")) > 0, happened


def test_too_few_pages_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: rounds that get no page above their committed slots do not pass."""
    enough = policy.headroom
    monkeypatch.setattr(policy, "headroom", lambda *chosen: 0 * enough(*chosen))
    case = next(case for seed in CASES if (case := draw(seed, ["linear_spec"])) is not None)
    with pytest.raises((AssertionError, IndexError, FsmSpecError)):
        run_case(case)


def test_another_text_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: an output that is another model's is none of plain decoding."""
    case = next(case for seed in range(7, 40) if (case := draw(seed, ["ar"])) is not None)
    run_case(case)
    text = hostile_runs.expected
    monkeypatch.setattr(hostile_runs, "expected", lambda arrival, seed: text(arrival, seed + 1))
    with pytest.raises(AssertionError, match="greedy output differs"):
        run_case(case)


def test_a_size_taken_from_elsewhere_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a plan that says another size than its rounds run under does not pass."""
    case = next(case for seed in CASES if (case := draw_resizing(seed, ["isd_strided"])).policy.lag == 0)
    run_case(case)
    monkeypatch.setattr(
        Tiers, "size", lambda tiers, _: min(each.params[tiers.param] for each in tiers.tables)
    )
    with pytest.raises((AssertionError, IndexError, FsmSpecError)):
        run_case(case)
