"""Acceptance that differs between requests and remembers: profiles by temperature or task, hard and easy requests.

A request belongs to one profile, by the weights. Where a profile has a concentration, each of its rates is
beta-distributed around its mean over requests, and one number places a request in all of them: hard text is hard at
every position. Within a request the rates may depend on the judgement before: as models whose drafts are worse after a
rejection (I-DLM, arXiv 2604.11035) need.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fsm_spec.errors import UserError
from fsm_spec.simulator import draws
from fsm_spec.simulator.places import LASTS
from fsm_spec.wording import counted

# Requests of a profile with a concentration fall into so many classes of equal share.
LEVELS: Final = 64

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TextProfile:
    """Hold the chance of each draft given all before it, for texts of one kind.

    `after_rejection` and `at_start` replace `rates` where they are given. With a `concentration` c the rate r of a
    request is beta(r c, (1 - r) c): its variance over requests is r (1 - r) / (c + 1).
    """

    name: str
    rates: tuple[float, ...]
    after_rejection: tuple[float, ...] = ()
    at_start: tuple[float, ...] = ()
    weight: float = 1.0
    concentration: float | None = None

    def by_last(self) -> tuple[tuple[float, ...], ...]:
        """Give the rates by what the judgement before found, in the order of `places.AT_START` and its neighbours."""
        return self.at_start or self.rates, self.rates, self.after_rejection or self.rates


@dataclass(frozen=True)
class Mixture:
    """Draw accepted counts by profiles; `title` is what a reader knows them by."""

    profiles: tuple[TextProfile, ...]
    title: str
    seed: int = 0
    purpose: ClassVar[int] = draws.ACCEPTANCE

    @property
    def geometric(self) -> bool:
        """Tell that rates are listed by position."""
        return False

    @property
    def levels(self) -> int:
        """Count the classes that the requests of each profile fall into."""
        return LEVELS if any(profile.concentration is not None for profile in self.profiles) else 1

    def spread(self, concentration: float) -> Mixture:
        """Give the same profiles with another concentration."""
        return replace(
            self, profiles=tuple(replace(each, concentration=concentration) for each in self.profiles)
        )

    def check(self, drafts: int, spec: str) -> None:
        """Raise UserError, with both numbers, for a profile that has not one rate for each draft of `spec`."""
        for profile in self.profiles:
            for rates in profile.by_last():
                if len(rates) != drafts:
                    raise UserError(
                        f"{self.title}: the profile {profile.name} has {counted(len(rates), 'rate')}, but"
                        f" {spec} judges {counted(drafts, 'draft')} a round; record it under the same parameters"
                    )

    def kinds(self, requests: ArrayLike) -> NDArray[np.int64]:
        """Give the kind of each request, int64 [n]: its profile times `levels` plus its class within it."""
        weights = np.array([profile.weight for profile in self.profiles])
        ends = np.cumsum(weights / weights.sum())[:-1]
        profile = np.searchsorted(ends, draws.uniform(self.seed, requests, 0, draws.KIND), side="right")
        level = (draws.uniform(self.seed, requests, 0, draws.KIND, 1) * self.levels).astype(np.int64)
        return np.asarray(profile * self.levels + level, np.int64)

    def tails(self, most: int) -> Floats:
        """Give the chance that a count exceeds i, [kinds * LASTS, most], a row a kind and a judgement before."""
        rows = []
        for profile in self.profiles:
            by_last = [self._classes(profile, rates[:most]) for rates in profile.by_last()]
            rows.append(np.stack(by_last, axis=1).reshape(self.levels * LASTS, -1))
        return np.concatenate(rows)

    def describe(self) -> str:
        """Give the profiles and how much of each there is."""
        total = sum(profile.weight for profile in self.profiles)
        parts = [f"{profile.name} {100 * profile.weight / total:.0f} %" for profile in self.profiles]
        spread = {profile.concentration for profile in self.profiles} - {None}
        words = (
            f", concentration {'/'.join(f'{each:g}' for each in sorted(filter(None, spread)))}"
            if spread
            else ""
        )
        return f"{self.title} ({', '.join(parts)}{words})"

    def _classes(self, profile: TextProfile, rates: tuple[float, ...]) -> Floats:
        """Give the survival of each class, [levels, positions]."""
        columns = [class_means(rate, profile.concentration, self.levels) for rate in rates]
        survival: Floats = np.cumprod(np.stack(columns, axis=1), axis=1, dtype=np.float64)
        return survival


def class_means(rate: float, concentration: float | None, levels: int) -> Floats:
    """Give the mean of a beta-distributed rate in each of `levels` classes of equal share; their mean is `rate`."""
    if concentration is None or not 0 < rate < 1:
        return np.full(levels, rate)
    from scipy import special  # noqa: PLC0415 - a tenth of a second, that few runs need

    a, b = rate * concentration, (1 - rate) * concentration
    shares = np.arange(levels + 1) / levels
    low, high = special.betaincinv(a, b, shares), special.betaincinv(b, a, 1 - shares)
    # Up to a quantile x the mean of a beta(a, b) is its mean times the distribution of beta(a + 1, b) at x. Quantiles
    # near 1 are known by what is left to 1 only, so that the mean of that is taken there.
    taken = np.diff(special.betainc(a + 1, b, low)) * levels * rate
    left = -np.diff(special.betainc(b + 1, a, high)) * levels * (1 - rate)
    return np.clip(np.where(low[:-1] < 0.5, taken, 1 - left), 0.0, 1.0)
