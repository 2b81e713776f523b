"""The law of the next token in fixed shapes: `kernels/law.py` with parameters that never leave the device.

No shape depends on data and nothing is read back, so whole rows are sorted where the reading sorts a few candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fsm_spec.kernels.choose import invert
from fsm_spec.kernels.law import GREEDY_BELOW, SamplingParams, as_real, in_nucleus
from fsm_spec.kernels.randomness import uniform


class SamplingColumns(NamedTuple):
    """Hold sampling parameters and seeds of n requests, one tensor each, all on the device of the logits."""

    temperature: Tensor  # float64 [n]; below GREEDY_BELOW: the most probable token
    top_k: Tensor  # int64 [n]; 0: off
    top_p: Tensor  # float64 [n]; 1: off
    min_p: Tensor  # float64 [n]; 0: off
    seeds: Tensor  # int64 [n]

    @classmethod
    def of(
        cls, params: Sequence[SamplingParams], seeds: Sequence[int], device: torch.device | str = "cpu"
    ) -> Self:
        """Gather the parameters of several requests; values are trusted (`SamplingRows.of` validates)."""
        temperature, top_k, top_p, min_p = zip(*params, strict=True)
        return cls(
            torch.tensor(temperature, dtype=torch.float64, device=device),
            torch.tensor(top_k, dtype=torch.int64, device=device),
            torch.tensor(top_p, dtype=torch.float64, device=device),
            torch.tensor(min_p, dtype=torch.float64, device=device),
            torch.tensor(seeds, dtype=torch.int64, device=device),
        )

    def spread(self, rows: int) -> SamplingColumns:
        """Repeat each request's values for its rows: [n] -> [n * rows]."""
        return SamplingColumns(*(column.repeat_interleave(rows) for column in self))

    @property
    def greedy(self) -> Tensor:
        """Tell which requests take the most probable token, bool [n]."""
        return self.temperature < GREEDY_BELOW

    def divisor(self, dtype: torch.dtype) -> Tensor:
        """Return what scores are divided by: the temperature, 1 for greedy rows, [n] of `dtype`."""
        return torch.where(self.greedy, 1.0, self.temperature).to(dtype)


def argmax_tokens(logits: Tensor, exclude: int | None = None) -> Tensor:
    """Return the most probable token of each row, the lowest id on ties: [..., V] -> int64 [...]."""
    return without(logits, exclude).argmax(-1)


def without(logits: Tensor, exclude: int | None) -> Tensor:
    """Return logits [..., V] in which one token is impossible; a copy, unless none is excluded."""
    if exclude is None:
        return logits
    copy = logits.clone()
    copy.select(-1, exclude).fill_(-torch.inf)
    return copy


def law(logits: Tensor, sampling: SamplingColumns, exclude: int | None = None) -> Tensor:
    """Return each row's law: logits [n, V] -> p [n, V], float32 (float64 for float64 logits).

    The same numbers as `kernels.law.law`; rows of NaN give NaN.
    """
    logits = without(as_real(logits), exclude)
    scores = _within_top_k(logits / sampling.divisor(logits.dtype).unsqueeze(1), sampling.top_k)
    p = scores.softmax(-1)
    least = sampling.min_p.to(p.dtype).unsqueeze(1) * p.amax(-1, keepdim=True)
    scores = scores.masked_fill(p < least, -torch.inf)
    # As in the reading, a second softmax: it changes no row that nothing was taken from.
    sampled = scores.masked_fill(~_nucleus(p, sampling.top_p), -torch.inf).softmax(-1)
    surest = torch.zeros_like(sampled).scatter_(1, logits.argmax(-1, keepdim=True), 1.0)
    return torch.where(sampling.greedy.unsqueeze(1), surest, sampled)


def _within_top_k(scores: Tensor, top_k: Tensor) -> Tensor:
    """Return the scores [n, V] with -inf for all below the k-th best of their row, where the row has a k."""
    ordered = scores.sort(dim=-1, descending=True).values
    kth = ordered.gather(1, top_k.clamp(1, scores.shape[1]).unsqueeze(1) - 1)
    return scores.masked_fill((top_k > 0).unsqueeze(1) & (scores < kth), -torch.inf)


def _nucleus(p: Tensor, top_p: Tensor) -> Tensor:
    """Tell which tokens of each law [n, V] top-p keeps, ties to the lower id; all where it is off."""
    values, order = p.sort(dim=-1, stable=True, descending=True)
    mass = values.to(torch.float64).cumsum(-1)
    before = torch.cat([torch.zeros_like(mass[:, :1]), mass[:, :-1]], dim=1)
    kept = torch.zeros_like(before, dtype=torch.bool)
    kept.scatter_(1, order, in_nucleus(before, top_p.unsqueeze(1)))
    return kept | (top_p >= 1).unsqueeze(1)


def best_tokens(scores: Tensor, k: int, exclude: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the k best of each row, best first, the lower id on ties: [..., V] -> (values, tokens) [..., k].

    `exclude` is never among them. Raises ValueError where fewer than k tokens are left.
    """
    left = scores.shape[-1] - (exclude is not None)
    if not 1 <= k <= left:
        raise ValueError(f"the best {k} of {left} tokens are asked for; give a number from 1 to {left}")
    values, tokens = as_real(scores).sort(dim=-1, stable=True, descending=True)
    if exclude is not None:
        # Of one more than k, the excluded token, if it is among them, goes behind all others.
        values, tokens = values[..., : k + 1], tokens[..., : k + 1]
        order = (tokens == exclude).long().sort(dim=-1, stable=True).indices
        values, tokens = values.gather(-1, order), tokens.gather(-1, order)
    return values[..., :k], tokens[..., :k]


def draw(law: Tensor, seeds: Tensor, positions: Tensor, purpose: int) -> Tensor:
    """Draw by law [n, V] the outcome that `CounterChooser` draws; seeds, positions int64 [n] -> int64 [n].

    A row without mass (dead, or of NaN) gives the last outcome, since an error would need the host.
    """
    return invert(law, uniform(seeds, positions, purpose)).clamp(max=law.shape[1] - 1)
