"""Percentiles counted in bins: near the exact ones, and the same in whatever order and parts the values come."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fsm_spec.simulator.sketch import ACCURACY, Sketch

SHARES = (50, 90, 95, 99)


def counted(values: NDArray[np.float64], parts: int, most_exact: int = 1_000) -> Sketch:
    """Count values in some parts."""
    sketch = Sketch(most_exact)
    for part in np.array_split(values, parts):
        sketch.add(part)
    return sketch


def test_bins_are_as_near_as_they_say() -> None:
    """Of values over nine decades, each percentile lies within the stated share of the value at its rank."""
    values = np.random.default_rng(1).lognormal(14, 4, 50_000)
    sketch = counted(values, 7)
    assert not sketch.exact
    exact = np.percentile(values, SHARES, method="lower")
    assert (np.abs(np.array(sketch.percentiles(SHARES)) / exact - 1) <= ACCURACY * 1.0001).all()
    assert values.max() == sketch.largest()
    assert values.mean() == pytest.approx(sketch.mean(), rel=1e-9)


def test_order_and_parts_do_not_matter() -> None:
    """Two runs that finish the same requests in another order say the same."""
    values = np.random.default_rng(2).gamma(2, 1e7, 5_000)
    one, other = counted(values, 1), counted(values[::-1], 13)
    assert one.percentiles(SHARES) == other.percentiles(SHARES)
    assert (one.mean(), one.largest(), one.count) == (other.mean(), other.largest(), other.count)


def test_few_values_are_exact() -> None:
    """Up to the limit nothing is counted in bins; without values there is nothing to say."""
    values = np.arange(1_000, dtype=np.float64)
    sketch = counted(values, 3)
    assert sketch.exact
    assert tuple(np.percentile(values, SHARES)) == sketch.percentiles(SHARES)
    assert (499.5, 999.0) == (sketch.mean(), sketch.largest())
    with pytest.raises(ValueError, match="no values"):
        Sketch().percentiles(SHARES)
