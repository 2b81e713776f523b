"""Acceptance of drafts: how many of a round's drafts the target model takes, drawn or expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fsm_spec.checker.chances import ACCEPT, UNMASK, parse_chances, require_drafts
from fsm_spec.simulator import draws


@dataclass(frozen=True)
class Acceptance:
    """Hold the chance that each draft is accepted given that all before it were.

    `rates` has one entry a draft position; a single entry with `geometric` holds for every position.
    """

    rates: tuple[float, ...]
    geometric: bool = False
    seed: int = 0
    purpose: ClassVar[int] = draws.ACCEPTANCE

    def check(self, drafts: int, spec: str) -> None:
        """Raise UserError, with both numbers, if a list has not one rate for each draft that `spec` judges."""
        if not self.geometric:
            require_drafts(len(self.rates), drafts, spec, ACCEPT.name)

    def conditional(self, drafts: int) -> tuple[float, ...]:
        """Return the chance of each of `drafts` positions given acceptance of all before."""
        return self.rates * drafts if self.geometric else self.rates[:drafts]

    def survival(self, drafts: int) -> NDArray[np.float64]:
        """Return the chance that draft i and all before it are accepted, [drafts] (vLLM's metrics)."""
        return np.cumprod(np.asarray(self.conditional(drafts), dtype=np.float64), dtype=np.float64)

    def tails(self, most: int) -> NDArray[np.float64]:
        """Return the chance that a count of 0..`most` exceeds i, [1, most]: all that a compiled run needs of a law."""
        return self.survival(most)[None]

    def kinds(self, requests: ArrayLike) -> NDArray[np.int64]:
        """Return the kind of each request, int64 [n]: there is one."""
        return np.zeros(np.shape(requests), np.int64)

    def expected(self, drafts: int) -> float:
        """Return the mean number of accepted drafts of one round: the sum of the survival chances."""
        return float(self.survival(drafts).sum())

    def accepted(self, drafts: ArrayLike, requests: ArrayLike, rounds: ArrayLike) -> NDArray[np.int64]:
        """Draw the accepted counts of many rounds at once, int64 [n], each in 0..drafts.

        `drafts` int [n] are the live drafts of each round, `requests` and `rounds` int [n] its key.
        One uniform number a round: position i survives if it lies below the survival chance.
        """
        live = np.asarray(drafts)
        found = draws.counts(
            self.survival(int(live.max(initial=0))), self.seed, self.purpose, requests, rounds
        )
        return np.asarray(np.minimum(found, live), dtype=np.int64)

    def describe(self) -> str:
        """Return the option that gives this acceptance."""
        words = ",".join(f"{rate:g}" for rate in self.rates)
        return f"geometric:{words}" if self.geometric else words


@dataclass(frozen=True)
class Unmasking(Acceptance):
    """Hold the chance that one more mask is filled in a pass, given that so many are: the surest one always is."""

    purpose: ClassVar[int] = draws.UNMASKING


def parse_unmask(text: str, seed: int = 0) -> Unmasking:
    """Read chances as `parse_accept` does: of the second mask filled in a pass, the third, and so on."""
    chances = parse_chances(text, UNMASK)
    return Unmasking(tuple(map(float, chances.rates)), geometric=chances.form == "geometric", seed=seed)


def parse_accept(text: str, seed: int = 0) -> Acceptance:
    """Read `0.8,0.7,0.6` (conditional), `unconditional:0.8,0.56,0.3` (never rising) or `geometric:0.7`.

    Raises UserError for anything else, and for chances outside 0..1.
    """
    chances = parse_chances(text, ACCEPT)
    return Acceptance(tuple(map(float, chances.rates)), geometric=chances.form == "geometric", seed=seed)
