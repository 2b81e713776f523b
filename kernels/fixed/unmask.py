"""The `unmask` operator in fixed shapes; the rules and their sources are in `kernels/unmask.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.fixed.sampling import sample_torch
from fsm_spec.kernels.law import as_real
from fsm_spec.kernels.randomness import Purpose, salted
from fsm_spec.kernels.unmask import MASKED, committed_rows, frozen, require_numbers


def unmask(  # noqa: PLR0913 -- the operator's inputs, one each
    rule: str,
    logits: Tensor,
    tokens: Tensor,
    counts: Tensor,
    sampling: SamplingColumns,
    positions: Tensor,
    turns: Tensor,
    *,
    threshold: float | None = None,
    quota: Tensor | None = None,
    bound: float | None = None,
    last: Tensor | None = None,
    first: Tensor | None = None,
    stop_ids: Tensor | None = None,
    exclude: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Commit some open rows of each request -> (rest int64 [n], filled int64 [n, r]).

    Shapes: logits [n, r, V]; tokens, positions int64 [n, r]; counts, turns, quota, first int64 [n]; last bool [n];
    stop_ids int64 [n, s], filled up with -1. Raises ValueError as the reading does.
    """
    require_numbers(rule, threshold=threshold, quota=quota, bound=bound)
    return _unmask(  # type: ignore[no-any-return]
        rule,
        logits,
        tokens,
        counts,
        *sampling,
        positions,
        turns,
        threshold or 0.0,
        quota,
        bound or 0.0,
        last,
        first,
        stop_ids,
        exclude,
    )


@torch.library.custom_op("fsm_spec::unmask", mutates_args=())
def _unmask(  # noqa: PLR0913, PLR0917 -- an operator of torch takes tensors and numbers, one each
    rule: str,
    logits: Tensor,
    tokens: Tensor,
    counts: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    turns: Tensor,
    threshold: float,
    quota: Tensor | None,
    bound: float,
    last: Tensor | None,
    first: Tensor | None,
    stop_ids: Tensor | None,
    exclude: int | None,
) -> tuple[Tensor, Tensor]:
    """Commit by the fixed form."""
    sampling = SamplingColumns(temperature, top_k, top_p, min_p, seeds)
    names = salted(positions, turns.unsqueeze(1))
    proposed, confidence, entropy = propose_torch(logits, sampling, names, exclude)
    return fill(
        rule, tokens, counts, proposed, confidence, entropy, threshold, quota, bound, last, first, stop_ids
    )


@_unmask.register_kernel("cuda")
def _(rule: str, logits: Tensor, tokens: Tensor, counts: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401 -- as above
    """Commit by the Triton kernels."""
    from fsm_spec.kernels.triton import unmask as kernels  # noqa: PLC0415 -- a CPU needs no Triton

    sampling, others = SamplingColumns(*rest[:5]), rest[5:]
    return kernels.unmask(rule, logits, tokens, counts, sampling, *others)


@_unmask.register_fake
def _(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Give shapes and types."""
    _, _, tokens, counts, *_ = inputs
    return torch.empty_like(counts), torch.empty_like(tokens)


def propose_torch(
    logits: Tensor, sampling: SamplingColumns, names: Tensor, exclude: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a token for each row, in plain torch -> (tokens int64, confidence, entropy float64), [n, r] each.

    `names` int64 [n, r] name the draws. Confidence and entropy are of the law of all tokens at temperature 1.
    """
    proposed, _ = sample_torch(logits, sampling, names, Purpose.DRAFT, "law", exclude=exclude, want_law=False)
    law = as_real(logits).softmax(-1)
    confidence = law.gather(2, proposed.unsqueeze(2)).squeeze(2)
    return proposed, confidence, torch.special.entr(law).sum(-1, dtype=torch.float64)


def fill(  # noqa: PLR0913, PLR0917 -- the operator's inputs, one each
    rule: str,
    tokens: Tensor,
    counts: Tensor,
    proposed: Tensor,
    confidence: Tensor,
    entropy: Tensor,
    threshold: float,
    quota: Tensor | None,
    bound: float,
    last: Tensor | None,
    first: Tensor | None,
    stop_ids: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Fill the rows that the rule commits with what is proposed for them -> (rest int64 [n], filled [n, r])."""
    live = torch.arange(tokens.shape[1], device=tokens.device) < counts.unsqueeze(1)
    masked = (tokens == MASKED) & live
    committed = committed_rows(
        rule,
        masked,
        confidence.masked_fill(~masked, -torch.inf),
        entropy.masked_fill(~masked, torch.inf),
        threshold=threshold,
        quota=quota,
        bound=bound,
        last=last,
    )
    filled = torch.where(committed, proposed, tokens)
    if stop_ids is not None:
        stops = (filled.unsqueeze(2) == stop_ids.unsqueeze(1)).any(2)
        filled = frozen(filled, live, torch.zeros_like(counts) if first is None else first, stops)
    return ((filled == MASKED) & live).sum(1), filled
