"""Verify budgets: Algorithm 1 by hand and in plain Python, ties, bounds, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

from fsm_spec.budget import Rate, best_total, grant, share, table_rate

# The paper's counterexample: a dip behind the first draft, and a gain behind the second.
DIP = table_rate([1, 2, 3], [1.0, 0.5, 0.45])


def grant_plain(
    survival: Sequence[Sequence[float]], rate: Callable[[int], float], most: Sequence[int]
) -> list[int]:
    """Do what Algorithm 1 says, one draft at a time."""
    granted = [0] * len(survival)
    batch, expected = len(survival), float(len(survival))
    throughput = expected * rate(batch)
    candidates = [
        (-chance, draft, request)
        for request, row in enumerate(survival)
        for draft, chance in enumerate(row)
        if draft < most[request]
    ]
    for cost, _, request in sorted(candidates):
        batch, expected = batch + 1, expected - cost
        if expected * rate(batch) <= throughput:
            break
        throughput = expected * rate(batch)
        granted[request] += 1
    return granted


def one_rate(rate: Rate, rows: int) -> float:
    """Return the rate of one launch."""
    return float(rate(np.array([rows]))[0])


def random_rate(source: random.Random, rows: int) -> Rate:
    """Return a staircase with dips and rises."""
    return table_rate(range(1, rows + 1), [source.uniform(0.4, 1.0) for _ in range(rows)])


def test_grant_equals_plain() -> None:
    """Sorting, summing and the early stop give what admitting one draft after the other gives."""
    totals = set()
    for trial in range(200):
        source = random.Random(trial)
        count, width = source.randint(1, 5), source.randint(1, 4)
        values = [0.0, 0.5, 1.0] if trial % 3 == 0 else None
        confidence = np.array(
            [
                [source.choice(values) if values else source.random() for _ in range(width)]
                for _ in range(count)
            ]
        )
        survival = np.cumprod(confidence, axis=1)
        most = np.array([source.randint(0, width) for _ in range(count)])
        rate = random_rate(source, count * (width + 1)) if trial % 2 else table_rate([64], [1.0])
        expected = grant_plain(survival.tolist(), partial(one_rate, rate), most.tolist())
        granted = grant(survival, rate, most)
        assert expected == granted.tolist()
        totals.add(int(granted.sum()))
        assert (
            grant_plain(survival.tolist(), lambda _: 1.0, [width] * count)
            == grant(survival, lambda rows: np.ones(len(rows))).tolist()
        )
    assert {0, 1, 2, 3, 4, 5} <= totals


def test_paper_counterexample() -> None:
    """One draft of survival 0.8 does not pay at half the rate; two would, and must not be looked at."""
    survival = np.array([[0.8, 0.8]])
    assert [0] == grant(survival, DIP).tolist()
    assert 2 == best_total(survival, DIP)
    assert [2] == share(survival, 2).tolist()
    assert [2] == grant(survival, table_rate([1, 2, 3], [1.0, 0.9, 0.9])).tolist()


def test_likelier_drafts_come_first() -> None:
    """A budget goes to the request whose drafts survive; ties to the earlier draft, then the earlier request."""
    survival = np.array([[0.5, 0.4], [0.9, 0.7], [0.9, 0.1]])
    assert [[0, 0, 0], [0, 1, 0], [0, 1, 1], [0, 2, 1], [1, 2, 1], [2, 2, 1], [2, 2, 2], [2, 2, 2]] == [
        share(survival, total).tolist() for total in range(8)
    ]
    assert [0, 0, 0] == share(survival, -1).tolist()
    assert [0, 1, 2] == share(survival, 3, np.array([0, 1, 2])).tolist()
    assert [[1, 0], [1, 1], [2, 1]] == [share(np.ones((2, 2)), total).tolist() for total in (1, 2, 3)]


def test_without_cost_table_nothing_is_trimmed() -> None:
    """No cost table, no reason to trim; each request's own bound holds all the same."""
    survival = np.array([[0.1, 0.0], [0.5, 0.5]])
    assert [2, 2] == grant(survival, None).tolist()
    assert [1, 2] == grant(survival, None, np.array([1, 5])).tolist()
    assert 4 == best_total(survival, None)


def test_no_requests_and_no_drafts() -> None:
    """An empty launch and requests without drafts are granted nothing."""
    assert [] == grant(np.zeros((0, 3)), DIP).tolist()
    assert [0, 0] == grant(np.zeros((2, 0)), DIP).tolist()
    assert 0 == best_total(np.zeros((2, 0)), DIP)


def test_steps_between_measured_sizes_take_times_between() -> None:
    """A launch below the first size costs what that costs; beyond the last the time grows with the rows."""
    rate = table_rate([2, 4], [10.0, 5.0])
    assert [0.1, 0.1, 0.15, 0.2, 0.4] == pytest.approx((1 / rate(np.array([1, 2, 3, 4, 8]))).tolist())
    for rows, rates in (([], []), ([2, 1], [1.0, 1.0]), ([1], [0.0]), ([1, 2], [1.0]), ([0], [1.0])):
        with pytest.raises(ValueError, match="a cost table needs ascending"):
            table_rate(rows, rates)


@pytest.mark.parametrize("bad", [-0.1, 1.1, np.nan])
def test_what_is_no_probability_is_refused(bad: float) -> None:
    """A confidence head without weights gives NaN: nothing is granted on it."""
    survival = np.array([[bad, 0.0]])
    for rate in (DIP, None):
        with pytest.raises(ValueError, match="no probability"):
            grant(survival, rate)
        with pytest.raises(ValueError, match="no probability"):
            best_total(survival, rate)
    with pytest.raises(ValueError, match="no probability"):
        share(survival, 1)


def test_confidences_in_place_of_survivals_are_refused() -> None:
    """Confidences by position are no survivals (D17); rounding of the product is let pass, and keeps the order."""
    with pytest.raises(ValueError, match="give the product of the confidences so far"):
        grant(np.array([[0.5, 0.9]]), DIP)
    rounded = np.array([[0.5, np.nextafter(np.float32(0.5), np.float32(1))]])
    assert [1] == share(rounded, 1).tolist()
