"""The one way to draw from a law: every operator draws through a chooser and nothing else.

`CounterChooser` draws with counter-based random numbers; `enumeration.py` tries all outcomes instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fsm_spec.kernels.randomness import Purpose, uniform, uniform_plain

# Columns that are summed as one block before the block itself is searched: a running sum over a whole
# vocabulary costs 15 ms for 40 rows of 49,152 in float64, one over block sums 2 ms (one thread).
_BLOCK = 256


class Key(NamedTuple):
    """Name one draw: the request's seed, the predicted position, and what the draw is for."""

    seed: int
    position: int
    purpose: Purpose


class Chooser(Protocol):
    """Draw one outcome from each row's law."""

    def choose(self, law: Tensor, seed: Tensor, position: Tensor, purpose: Purpose) -> Tensor:
        """Draw by law [n, V] (mass not below 0, sum above 0, not necessarily 1) -> int64 [n]."""
        ...


class PlainChooser(Protocol):
    """Draw one outcome from one law."""

    def choose_one(self, law: Sequence[float], key: Key) -> int:
        """Draw by the law (mass not below 0, sum above 0, not necessarily 1)."""
        ...


class CounterChooser:
    """Draw by inverting the cumulated law in float64 with one uniform number a row, named by the row's key.

    Nothing is consumed: a draw that is not made changes no other draw.
    """

    def choose(self, law: Tensor, seed: Tensor, position: Tensor, purpose: Purpose) -> Tensor:
        """Draw by law [n, V]; `seed`, `position` int64 [n] -> int64 [n]; ValueError for a law of zeros."""
        u = uniform(seed, position, purpose)
        outcome = invert(law, u)
        _require_mass(outcome, law)
        return outcome

    def choose_one(self, law: Sequence[float], key: Key) -> int:
        """Draw the outcome that `choose` draws for one row."""
        cumulated = list(accumulate(law))  # not `sum`, which compensates rounding from Python 3.12 on
        target = uniform_plain(*key) * cumulated[-1]
        for outcome, mass in enumerate(cumulated):
            if mass > target:
                return outcome
        raise ValueError(f"the law at position {key.position} has no mass; its logits are NaN or all -inf")


def _require_mass(outcome: Tensor, law: Tensor) -> None:
    """Raise ValueError where the search ran past the end: only a law of zeros or NaN makes it do so."""
    if bool((outcome >= law.shape[1]).any()):
        row = int((outcome >= law.shape[1]).nonzero()[0])
        raise ValueError(f"the law of row {row} has no mass; its logits are NaN or all -inf")


def invert(law: Tensor, u: Tensor) -> Tensor:
    """Return the outcome at the share `u` of each law's mass: [n, V], float64 [n] -> int64 [n]; V without mass.

    Neither copies to the host nor makes a shape from data.
    """
    return _search(law, u) if law.shape[1] <= _BLOCK else _search_blocks(law, u)


def _search(law: Tensor, u: Tensor) -> Tensor:
    """Return the first outcome whose cumulated mass exceeds the share `u` of the whole."""
    cumulated = law.cumsum(-1, dtype=torch.float64)
    # u < 1 keeps the product below the whole, also after rounding; so an outcome without mass is never hit.
    return _first_above(cumulated, u * cumulated[:, -1])


def _first_above(cumulated: Tensor, target: Tensor) -> Tensor:
    """Return the first index of each row whose value exceeds the row's target."""
    return torch.searchsorted(cumulated, target.unsqueeze(1), right=True).squeeze(1)


def _search_blocks(law: Tensor, u: Tensor) -> Tensor:
    """Return what `_search` returns, up to rounding of the sums, for a wide law."""
    width = law.shape[1]
    whole = width - width % _BLOCK
    sums = law[:, :whole].reshape(-1, whole // _BLOCK, _BLOCK).sum(-1, dtype=torch.float64)
    if whole < width:
        sums = torch.cat([sums, law[:, whole:].sum(-1, keepdim=True, dtype=torch.float64)], dim=1)
    cumulated = sums.cumsum(-1)
    target = u * cumulated[:, -1]
    block = _first_above(cumulated, target)
    missing = block >= sums.shape[1]
    block = block.clamp(max=sums.shape[1] - 1)
    before = (
        torch.cat([torch.zeros_like(sums[:, :1]), cumulated], dim=1).gather(1, block.unsqueeze(1)).squeeze(1)
    )
    columns = block.unsqueeze(1) * _BLOCK + torch.arange(_BLOCK, device=law.device)
    mass = law.gather(1, columns.clamp(max=width - 1)).to(torch.float64)
    inside = mass.masked_fill(columns >= width, 0.0).cumsum(-1)
    # The block's sum and its running sum may differ in the last bit: stay below the latter.
    below = torch.nextafter(inside[:, -1], torch.zeros_like(target))
    found = block * _BLOCK + _first_above(inside, torch.minimum(target - before, below))
    return torch.where(missing, width, found)
