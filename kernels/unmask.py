"""The `unmask` operator: which masked rows of a block become tokens in this denoising step, and which tokens.

Every rule is an order of the open rows and a count: the first `count` rows of the order are committed.
A row is open where its token is `MASKED`, never where it equals the mask id, which a text may contain.
The same rules in plain Python are `unmask_plain.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from fsm_spec.kernels.choose import Chooser
from fsm_spec.kernels.law import SamplingRows, as_real
from fsm_spec.kernels.randomness import Purpose, salted
from fsm_spec.kernels.sampling import sample

# The token of a row that is still masked; no id of a vocabulary.
MASKED = -2

# The rules, and the numbers that each needs.
_NEEDED = {
    "threshold": ("threshold",),
    "above": ("threshold",),
    "schedule": ("quota",),
    "dynamic": ("threshold", "quota"),
    "sequential": ("quota",),
    "entropy": ("bound",),
}
UNMASK_RULES = tuple(_NEEDED)


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
    require_numbers(rule, threshold=threshold, quota=quota, bound=bound)
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
    entropy = torch.full(tokens.shape, torch.inf, dtype=torch.float64, device=tokens.device)
    if rule == "entropy":
        entropy[request, row] = torch.special.entr(law).sum(-1, dtype=torch.float64)
    committed = committed_rows(
        rule, masked, confidence, entropy, threshold=threshold, quota=quota, bound=bound, last=last
    )
    choices = torch.full_like(tokens, MASKED)
    choices[request, row] = proposed
    filled = torch.where(committed, choices, tokens)
    if stop_ids is not None:
        begin = torch.zeros_like(counts) if first is None else first
        filled = frozen(filled, live, begin, _stops(filled, stop_ids))
    return ((filled == MASKED) & live).sum(1), filled


def committed_rows(
    rule: str,
    masked: Tensor,
    confidence: Tensor,
    entropy: Tensor,
    *,
    threshold: float | None,
    quota: Tensor | None,
    bound: float | None,
    last: Tensor | None,
) -> Tensor:
    """Tell which open rows a rule commits, bool [n, r]; of fixed shape, without a copy to the host.

    `masked` bool [n, r] marks the open rows; all others have confidence -inf and entropy inf.
    """
    if rule == "sequential":
        assert quota is not None
        rank, count = masked.long().cumsum(1) - 1, quota
    elif rule == "entropy":
        assert bound is not None
        rank, count = _rank(-entropy), _within(entropy, bound)
    else:
        rank, count = _rank(confidence), _confident(rule, confidence, threshold, quota)
    chosen = rank < count.clamp(min=1).unsqueeze(1)
    return masked & (chosen if last is None else chosen | last.unsqueeze(1))


def require_numbers(rule: str, **numbers: object) -> None:
    """Raise ValueError for an unknown rule, and where a number is missing that the rule needs."""
    if rule not in UNMASK_RULES:
        raise ValueError(f"unknown unmask rule {rule!r}; give one of {', '.join(UNMASK_RULES)}")
    for name in _NEEDED[rule]:
        if numbers[name] is None:
            raise ValueError(f"the unmask rule {rule} needs {name}")


def _rank(key: Tensor) -> Tensor:
    """Return the place of each row in descending order of its key, the lower row first: [n, r] -> int64 [n, r]."""
    order = key.sort(dim=1, stable=True, descending=True).indices
    return order.argsort(1)


def _confident(rule: str, confidence: Tensor, threshold: float | None, quota: Tensor | None) -> Tensor:
    """Count the rows that a rule of confidence commits, best first: [n, r] -> int64 [n]."""
    if rule == "schedule":
        assert quota is not None
        return quota
    assert threshold is not None
    if rule == "threshold":
        return (confidence >= threshold).sum(1)
    sure = (confidence > threshold).sum(1)
    # The sure rows are the best ones: either all of them or the quota, whichever is more.
    return sure if quota is None or rule == "above" else torch.maximum(sure, quota)


def _within(entropy: Tensor, bound: float) -> Tensor:
    """Count the rows of least entropy whose entropies add up to at most the bound: [n, r] -> int64 [n]."""
    return (entropy.sort(dim=1).values.cumsum(1) <= bound).sum(1)


def _stops(filled: Tensor, stop_ids: Sequence[Collection[int]]) -> Tensor:
    """Tell which rows hold a stop token of their request, bool [n, r]."""
    stops = torch.zeros_like(filled, dtype=torch.bool)
    for request, ids in enumerate(stop_ids):
        stops[request] = torch.isin(
            filled[request], torch.tensor(list(ids), dtype=filled.dtype).to(filled.device)
        )
    return stops


def frozen(filled: Tensor, live: Tensor, first: Tensor, stops: Tensor) -> Tensor:
    """Return the block with the first stop token of the generated rows on all open rows behind it.

    `stops` bool [n, r] marks the rows that hold a stop token. Of fixed shape, without a copy to the host.
    """
    rows = torch.arange(filled.shape[1], device=filled.device)
    stops = stops & live & (rows >= first.unsqueeze(1))
    earliest = stops.long().argmax(1, keepdim=True)
    behind = stops.any(1, keepdim=True) & (rows > earliest) & live & (filled == MASKED)
    return torch.where(behind, filled.gather(1, earliest), filled)
