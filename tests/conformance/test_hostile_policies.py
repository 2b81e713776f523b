"""Drawn policies, pools and requests: the three sides agree however unkind they are (`property/hostile_runs.py`).

`.venv/bin/python tests/property/hostile_runs.py 1000 5000` runs as many other cases as there is time for.
"""

from __future__ import annotations

from collections import Counter

import hostile_runs
import pytest
from hostile_runs import decoding_specs, draw, run_case

from fsm_spec import policy
from fsm_spec.errors import FsmSpecError

CASES = range(40)


def test_three_sides_agree_under_hostile_policies() -> None:
    """Tiers, chunks, budgets, a late host, odd pages or a crowded pool would show on one side only."""
    happened: Counter[str] = Counter()
    for seed in CASES:
        case = draw(seed, decoding_specs())
        if case is None:
            continue
        try:
            happened.update(run_case(case))
        except (AssertionError, FsmSpecError, IndexError, ValueError) as error:
            raise AssertionError(case.describe()) from error
    # Cases in which nothing of this ever happened would show nothing.
    assert min(happened[each] for each in ("rounds", "preempted", "hits", "sizes", "accepted")) > 0, happened


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
