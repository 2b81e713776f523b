"""Efficiency curves: the share of a peak that kernels reach, as a function of how much work they get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fsm_spec.simulator import roofline

Below = Literal["hold", "latency"]


@dataclass(frozen=True)
class Curve:
    """Hold (amount, share) points; between them the share is a power law, that is, linear on two log axes.

    Power laws keep the time amount / share non-decreasing wherever it is so between the points; linear shares
    would not. Shares are clipped to 1 (micro-benchmarks that fit in a cache exceed it), and lowered where a
    larger amount would otherwise take less time. Above the last point the last share holds. Below the first
    point `hold` keeps its share (compute: memory binds there anyhow), `latency` keeps its time (a kernel that
    is too short to fill the machine).
    """

    amounts: tuple[float, ...]
    shares: tuple[float, ...]
    below: Below = "hold"

    @classmethod
    def of(cls, points: Sequence[tuple[float, float]], *, below: Below = "hold", power: float = 1.0) -> Curve:
        """Build a curve whose time grows with the amount; the work grows with its `power`.

        Raises ValueError for amounts that do not ascend or shares that are not positive.
        """
        amounts = tuple(float(amount) for amount, _ in points)
        shares = [min(1.0, float(share)) for _, share in points]
        ascending = all(left < right for left, right in pairwise(amounts))
        if not points or not ascending or amounts[0] <= 0 or min(shares) <= 0:
            raise ValueError("a curve needs points with ascending positive amounts and positive shares")
        for i in range(1, len(shares)):
            shares[i] = min(shares[i], shares[i - 1] * (amounts[i] / amounts[i - 1]) ** power)
        return cls(amounts, tuple(shares), below)

    @classmethod
    def constant(cls, share: float) -> Curve:
        """Build the curve of one share at every amount."""
        return cls.of([(1.0, share)])

    def falling(self) -> Curve:
        """Return this curve without rises, for work of a fixed size (weights read once)."""
        shares = tuple(min(self.shares[: i + 1]) for i in range(len(self.shares)))
        return Curve(self.amounts, shares, self.below)

    def share(self, amount: float) -> float:
        """Return the share of the peak reached with `amount` of work, in (0, 1]."""
        return float(roofline.share(self.packed(len(self.amounts)), float(amount)))

    def packed(self, points: int) -> NDArray[np.float64]:
        """Return the curve as `roofline.py` reads it, float64 [3, points]; the last point is repeated."""
        last = points - len(self.amounts)
        amounts, shares = (values + values[-1:] * last for values in (self.amounts, self.shares))
        return np.array([amounts, shares, [float(self.below == "latency")] * points])
