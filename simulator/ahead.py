"""Draw the numbers of many rounds of a request at once; each is keyed by request and round, so order cannot matter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fsm_spec.simulator import draws
from fsm_spec.simulator.outcomes import Law

# Rounds drawn at once: a call of numpy costs as much as about a thousand numbers; 512 bytes a request.
BITS = 6
ROUNDS = 1 << BITS


class Ahead:
    """Hold the numbers of the present block of rounds of every request, and read counts from them.

    Counts are of 0..`most`; fewer live drafts only cap a count, as whether a draft is accepted does not depend on how
    many follow it.
    """

    def __init__(self, law: Law, most: int, requests: int) -> None:
        self._law = law
        self._tails = law.tails(most)
        self._numbers = np.zeros((requests, ROUNDS))
        self._block = np.full(requests, -1, np.int64)

    def draw(
        self,
        most: NDArray[np.int32],
        requests: NDArray[np.int64],
        rounds: NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> NDArray[np.int32]:
        """Give a count of 0..`most` for each key, int32 [n]; `rows` are those of a law that has several."""
        block = rounds >> BITS
        stale = self._block[requests] != block
        if stale.any():
            fresh, first = requests[stale], block[stale] << BITS
            keys = fresh[:, None], first[:, None] + np.arange(ROUNDS)
            self._numbers[fresh] = draws.uniform(self._law.seed, *keys, self._law.purpose)
            self._block[fresh] = block[stale]
        numbers = self._numbers[requests, rounds & (ROUNDS - 1)]
        tails = self._tails[rows] if len(self._tails) > 1 else self._tails
        found = (tails > numbers[:, None]).sum(axis=1)
        capped: NDArray[np.int32] = np.minimum(found, most).astype(np.int32)
        return capped
