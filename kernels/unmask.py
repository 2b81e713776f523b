"""The `unmask` operator: which masked rows of a block become tokens in this denoising step, and which tokens.

Every rule is an order of the open rows and a count: the first `count` rows of the order are committed.
A row is open where its token is `MASKED`, never where it equals the mask id, which a text may contain.
The same rules in plain Python are `unmask_plain.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from fsm_spec.kernels.choose import Chooser
from fsm_spec.kernels.law import SamplingRows, as_real
from fsm_spec.kernels.randomness import Purpose, salted
from fsm_spec.kernels.sampling import sample

T = TypeVar("T")

# The token of a row that is still masked; no id of a vocabulary.
MASKED = -2

UNMASK_RULES = ("threshold", "above", "schedule", "dynamic", "sequential", "entropy")


def unmask(  # noqa: PLR0913, PLR0917 -- the operator's inputs, one each
    rule: str,
    logits: Tensor,
    tokens: Tensor,
    counts: Tensor,
    sampling: SamplingRows,
    seeds: Tensor,
    positions: Tensor,
    turns: Tensor,
    chooser: Chooser,
    *,
    threshold: float | None = None,
    quota: Tensor | None = None,
    bound: float | None = None,
    last: Tensor | None = None,
    first: Tensor | None = None,
    stop_ids: Sequence[Collection[int]] | None = None,
    exclude: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Commit some open rows of each request -> (rest int64 [n], filled int64 [n, r]).

    Shapes: logits [n, r, V]; tokens, positions int64 [n, r]; counts (live rows), seeds, turns int64 [n].
    `filled` is `tokens` with the committed ones; `rest` counts the rows that stay open. Rows past the count and
    rows that are not open are neither read nor changed. While a row is open, at least one is committed.

    A row's token is the argmax at temperature 0, else a draw from its law; draws are named by position and turn, so
    a turn (0..2**31-1) must be new in each step whose results matter. Its confidence is the probability of that
    token at temperature 1 in the law over all tokens: `exclude` is never predicted but stays in the denominator.
    Ties go to the lower row. The rules commit

    - `threshold`: the rows with confidence >= threshold, and the best one (Fast-dLLM; FastDiffuser);
    - `above`: the rows with confidence > threshold, or else the best one (SGLang's LowConfidence);
    - `schedule`: the `quota` (int64 [n]) best by confidence (SDAR's static rule);
    - `dynamic`: the rows with confidence > threshold if at least `quota` are, or else the `quota` best (SDAR);
    - `sequential`: the first `quota` open rows, left to right (SDAR);
    - `entropy`: rows of least entropy while the sum of the entropies is <= bound (nats), at least one (SDAR); the
      entropy is that of the whole law at temperature 1.

    `last` (bool [n]) commits all open rows. `stop_ids`, one collection a request, freezes: the open rows behind
    the first stop token at or after row `first` (int64 [n], 0 if not given) become that stop token.
    Raises ValueError for an unknown rule and for a rule without its number.
    """
    if rule not in UNMASK_RULES:
        raise ValueError(f"unknown unmask rule {rule!r}; give one of {', '.join(UNMASK_RULES)}")
    live = torch.arange(tokens.shape[1], device=tokens.device) < counts.unsqueeze(1)
    masked = (tokens == MASKED) & live
    request, row = masked.nonzero(as_tuple=True)
    scores = logits[request, row]
    names = salted(positions[request, row], turns[request])
    proposed, _ = sample(
        scores, sampling.take(request), seeds[request], names, Purpose.DRAFT, chooser, exclude=exclude
    )
    law = as_real(scores).softmax(-1)
    confidence = law.new_full(tokens.shape, -torch.inf)
    confidence[request, row] = law.gather(1, proposed.unsqueeze(1)).squeeze(1)
    if rule == "sequential":
        rank, count = masked.long().cumsum(1) - 1, _given(rule, "quota", quota)
    elif rule == "entropy":
        entropy = torch.full(tokens.shape, torch.inf, dtype=torch.float64, device=tokens.device)
        entropy[request, row] = torch.special.entr(law).sum(-1, dtype=torch.float64)
        rank, count = _rank(-entropy), _within(entropy, _given(rule, "bound", bound))
    else:
        rank, count = _rank(confidence), _confident(rule, confidence, threshold, quota)
    committed = masked & (rank < count.clamp(min=1).unsqueeze(1))
    if last is not None:
        committed |= masked & last.unsqueeze(1)
    choices = torch.full_like(tokens, MASKED)
    choices[request, row] = proposed
    filled = torch.where(committed, choices, tokens)
    if stop_ids is not None:
        _freeze(filled, live, torch.zeros_like(counts) if first is None else first, stop_ids)
    return ((filled == MASKED) & live).sum(1), filled


def _given(rule: str, name: str, value: T | None) -> T:
    """Return the value; ValueError where the rule's number is missing."""
    if value is None:
        raise ValueError(f"the unmask rule {rule} needs {name}")
    return value


def _rank(key: Tensor) -> Tensor:
    """Return the place of each row in descending order of its key, the lower row first: [n, r] -> int64 [n, r]."""
    order = key.sort(dim=1, stable=True, descending=True).indices
    return order.argsort(1)


def _confident(rule: str, confidence: Tensor, threshold: float | None, quota: Tensor | None) -> Tensor:
    """Count the rows that a rule of confidence commits, best first: [n, r] -> int64 [n]."""
    if rule == "schedule":
        return _given(rule, "quota", quota)
    least = _given(rule, "threshold", threshold)
    if rule == "threshold":
        return (confidence >= least).sum(1)
    sure = (confidence > least).sum(1)
    # The sure rows are the best ones: either all of them or the quota, whichever is more.
    return torch.maximum(sure, _given(rule, "quota", quota)) if rule == "dynamic" else sure


def _within(entropy: Tensor, bound: float) -> Tensor:
    """Count the rows of least entropy whose entropies add up to at most the bound: [n, r] -> int64 [n]."""
    return (entropy.sort(dim=1).values.cumsum(1) <= bound).sum(1)


def _freeze(filled: Tensor, live: Tensor, first: Tensor, stop_ids: Sequence[Collection[int]]) -> None:
    """Put the first stop token of the generated rows on all open rows behind it, in place."""
    rows = torch.arange(filled.shape[1], device=filled.device)
    stops = torch.zeros_like(live)
    for request, ids in enumerate(stop_ids):
        stops[request] = torch.isin(
            filled[request], torch.tensor(list(ids), dtype=filled.dtype).to(filled.device)
        )
    stops &= live & (rows >= first.unsqueeze(1))
    earliest = stops.long().argmax(1, keepdim=True)
    behind = stops.any(1, keepdim=True) & (rows > earliest) & live & (filled == MASKED)
    filled.copy_(torch.where(behind, filled.gather(1, earliest), filled))
