"""Draw the outcomes of many rounds of a request at once; each is keyed by request and round, so order cannot matter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fsm_spec.simulator import draws
from fsm_spec.simulator.outcomes import Law

# Rounds drawn at once: a call of numpy costs as much as about a thousand numbers; 128 bytes a request.
BITS = 6
ROUNDS = 1 << BITS


class Ahead:
    """Hold the outcomes of the present block of rounds of every request.

    Counts are of 0..`most`; fewer live drafts only cap a count, as whether a draft is accepted does not depend on how
    many follow it.
    """

    def __init__(self, law: Law, most: int, requests: int) -> None:
        self._law = law
        self._tail = law.tail(most)
        self._counts = np.zeros((requests, ROUNDS), np.int16)
        self._block = np.full(requests, -1, np.int64)

    def draw(
        self, most: NDArray[np.int32], requests: NDArray[np.int64], rounds: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """Give a count of 0..`most` for each key, int32 [n]."""
        block = rounds >> BITS
        stale = self._block[requests] != block
        if stale.any():
            rows, first = requests[stale], block[stale] << BITS
            keys = rows[:, None], first[:, None] + np.arange(ROUNDS)
            self._counts[rows] = draws.counts(self._tail, self._law.seed, self._law.purpose, *keys)
            self._block[rows] = block[stale]
        capped: NDArray[np.int32] = np.minimum(self._counts[requests, rounds & (ROUNDS - 1)], most)
        return capped
