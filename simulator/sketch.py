"""Percentiles of many values in little memory: exact up to a number of values, then counted in bins.

The bins are those of DDSketch (Masson, Rim and Lee, VLDB 2019): each is a fixed share wider than the one before, so a
percentile is off by at most `ACCURACY` of itself, whatever the distribution.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

MOST_EXACT = 262_144  # values that are kept as they are: 2 MiB
ACCURACY = 0.005
_RATIO = (1 + ACCURACY) / (1 - ACCURACY)
_BINS = 4_800  # up to 5e20: more nanoseconds than a simulation has


class Sketch:
    """Count non-negative values; the same values give the same percentiles, in whatever order and parts they come.

    `most_exact` values are kept as they are; more give percentiles within `ACCURACY` of the exact ones.
    """

    def __init__(self, most_exact: int = MOST_EXACT) -> None:
        self.count = 0
        self.most_exact = most_exact
        self._parts: list[NDArray[np.float64]] = []
        self._bins: NDArray[np.int64] | None = None
        self._thousandths = 0
        self._largest = 0.0

    @property
    def exact(self) -> bool:
        """Tell whether all values are kept."""
        return self._bins is None

    def add(self, values: NDArray[np.float64]) -> None:
        """Count values."""
        self.count += len(values)
        self._parts.append(values)
        if self._bins is None and self.count > self.most_exact:
            self._bins = np.zeros(_BINS, np.int64)
        if self._bins is not None:
            for part in self._parts:
                self._count(self._bins, part)
            self._parts.clear()

    def _count(self, bins: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        # Sums of whole thousandths do not depend on the order, as those of fractions do.
        self._thousandths += int(np.rint(values * 1000).astype(np.int64).sum())
        self._largest = max(self._largest, float(values.max(initial=0.0)))
        place = np.ceil(np.log(np.maximum(values, 1.0)) / math.log(_RATIO)).astype(np.int64)
        bins += np.bincount(np.minimum(place, _BINS - 1), minlength=_BINS)

    def mean(self) -> float:
        """Give the mean; raises ValueError where there are no values."""
        if self._bins is None:
            return float(self._kept().mean())
        return self._thousandths / 1000 / self.count

    def largest(self) -> float:
        """Give the largest value; raises ValueError where there are none."""
        return float(self._kept().max()) if self._bins is None else self._largest

    def percentiles(self, shares: tuple[float, ...]) -> tuple[float, ...]:
        """Give percentiles of `shares` in 0..100, interpolated where values are kept; raises ValueError without any."""
        if self._bins is None:
            return tuple(float(value) for value in np.percentile(self._kept(), shares))
        ranks = [math.floor(share / 100 * (self.count - 1)) for share in shares]
        places = np.searchsorted(np.cumsum(self._bins), ranks, side="right")
        # The middle of a bin is as far from its low end, as a share, as from its high one.
        middles = 2 * _RATIO ** places.astype(np.float64) / (_RATIO + 1)
        return tuple(float(value) for value in np.minimum(middles, self._largest))

    def _kept(self) -> NDArray[np.float64]:
        if not self.count:
            raise ValueError("there are no values")
        self._parts = [np.concatenate(self._parts)]
        return self._parts[0]
