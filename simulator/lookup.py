"""How often a lookup in the request's own text finds drafts: given by the user, as it depends on the text alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fsm_spec.errors import UserError
from fsm_spec.simulator import draws


@dataclass(frozen=True)
class Lookup:
    """Hold the chance that a round's lookup finds a match; one that does gives all the drafts it may.

    Shorter finds happen only where the match ends at the end of the text, which is rare.
    """

    rate: float
    seed: int = 0
    purpose: ClassVar[int] = draws.DRAFT_COUNT

    def __post_init__(self) -> None:
        """Refuse what is no chance."""
        if not 0 <= self.rate <= 1:
            raise UserError(
                f"--lookup {self.rate:g} lies outside 0 to 1; give the chance that a lookup finds drafts"
            )

    def tails(self, most: int) -> NDArray[np.float64]:
        """Return the chance that a count of 0..`most` exceeds i, [1, most]: all that a compiled run needs of a law."""
        return np.full((1, most), self.rate)

    def found(self, size: ArrayLike, requests: ArrayLike, rounds: ArrayLike) -> NDArray[np.int64]:
        """Draw the drafts found, int64: `size` of them or none; `requests` and `rounds` are the key."""
        numbers = draws.uniform(self.seed, requests, rounds, self.purpose)
        return np.where(numbers < self.rate, size, 0).astype(np.int64)
