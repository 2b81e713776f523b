"""The `accept` operator in fixed shapes; the rules and their sources are in `kernels/acceptance.py`.

Every row of every request is computed, dead ones too; which of them count is decided by masks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fsm_spec.kernels.acceptance import leading, refuse_rule, residual
from fsm_spec.kernels.choose import invert
from fsm_spec.kernels.fixed.law import SamplingColumns, argmax_tokens, best_tokens, draw, law, without
from fsm_spec.kernels.fixed.sampling import sample_torch
from fsm_spec.kernels.law import as_real
from fsm_spec.kernels.randomness import Purpose, uniform


def accept(  # noqa: PLR0913 -- the operator's inputs, one each
    rule: str,
    logits: Tensor,
    drafts: Tensor,
    count: Tensor,
    sampling: SamplingColumns,
    positions: Tensor,
    *,
    q: Tensor | None = None,
    top: int | None = None,
    threshold: float | None = None,
    exclude: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Apply the rule of that name -> (accepted int64 [n], next int64 [n]).

    Shapes: logits [n, r, V]; drafts int64 [n, r - 1], live up to `count` int64 [n]; positions int64 [n, r];
    q [n, r - 1, V] or None. Dead drafts may hold anything. Raises ValueError as the reading does.
    """
    refuse_rule(rule, top, threshold)
    return _accept(  # type: ignore[no-any-return]
        rule, logits, drafts, count, *sampling, positions, q, top or 0, threshold or 0.0, exclude
    )


@torch.library.custom_op("fsm_spec::accept", mutates_args=())
def _accept(  # noqa: PLR0913, PLR0917 -- an operator of torch takes tensors and numbers, one each
    rule: str,
    logits: Tensor,
    drafts: Tensor,
    count: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    q: Tensor | None,
    top: int,
    threshold: float,
    exclude: int | None,
) -> tuple[Tensor, Tensor]:
    """Judge by the fixed form."""
    sampling = SamplingColumns(temperature, top_k, top_p, min_p, seeds)
    return accept_torch(rule, logits, drafts, count, sampling, positions, q, top, threshold, exclude)


@_accept.register_kernel("cuda")
def _(rule: str, logits: Tensor, drafts: Tensor, count: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401 -- as above
    """Judge by the Triton kernels."""
    from fsm_spec.kernels.triton import acceptance as kernels  # noqa: PLC0415 -- a CPU needs no Triton

    sampling, others = SamplingColumns(*rest[:5]), rest[5:]
    return kernels.accept(rule, logits, drafts, count, sampling, *others)


@_accept.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401 -- as above
    """Give shapes and types."""
    count: Tensor = inputs[3]
    return torch.empty_like(count), torch.empty_like(count)


def accept_torch(  # noqa: PLR0913, PLR0917 -- the operator's inputs, one each
    rule: str,
    logits: Tensor,
    drafts: Tensor,
    count: Tensor,
    sampling: SamplingColumns,
    positions: Tensor,
    q: Tensor | None,
    top: int,
    threshold: float,
    exclude: int | None,
) -> tuple[Tensor, Tensor]:
    """Judge in plain torch, as `accept` says."""
    n, r, width = logits.shape
    if rule == "greedy":
        return _by_equality(argmax_tokens(logits, exclude), drafts, count)
    if rule == "match":
        picks, _ = sample_torch(
            logits, sampling, positions, Purpose.TARGET, "law", exclude=exclude, want_law=False
        )
        return _by_equality(picks, drafts, count)
    if rule == "topk":
        return _by_rank(logits, drafts, count, top, exclude)
    p = law(logits.reshape(n * r, width), sampling.spread(r), exclude).view(n, r, width)
    if rule == "always":
        accepted = count.clone()
    else:
        mass = _of_tokens(p[:, :-1], drafts)
        chosen = mass >= threshold if rule == "threshold" else _verdicts(mass, drafts, sampling, positions, q)
        accepted = leading(chosen, count)
    if rule == "rejection":
        return accepted, _corrected(p, drafts, accepted, count, sampling, positions, q)
    return accepted, draw(_row(p, accepted), sampling.seeds, _row(positions, accepted), Purpose.TARGET)


def _row(values: Tensor, at: Tensor) -> Tensor:
    """Return one row of each request: [n, r, ...], int64 [n] -> [n, ...]."""
    return values[torch.arange(len(at), device=at.device), at]


def _of_tokens(values: Tensor, drafts: Tensor) -> Tensor:
    """Return each draft's value: [n, r, V], int64 [n, r] -> [n, r]; any for an id that is none."""
    index = drafts.clamp(0, values.shape[2] - 1).unsqueeze(2)
    return values.gather(2, index).squeeze(2)


def _by_equality(picks: Tensor, drafts: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Accept the drafts that equal the verifier's own tokens [n, r]."""
    accepted = leading(picks[:, :-1] == drafts, count)
    return accepted, _row(picks, accepted)


def _by_rank(
    logits: Tensor, drafts: Tensor, count: Tensor, top: int, exclude: int | None
) -> tuple[Tensor, Tensor]:
    """Accept the drafts whose logit reaches the `top`-th best of their row."""
    known = logits.shape[2] - (exclude is not None)
    scores = without(as_real(logits), exclude)
    values, _ = best_tokens(scores, min(top, known), exclude)
    score = _of_tokens(scores[:, :-1], drafts)
    accepted = leading((score >= values[:, :-1, -1]) & (score > -torch.inf), count)
    return accepted, argmax_tokens(_row(scores, accepted))


def _verdicts(
    mass: Tensor, drafts: Tensor, sampling: SamplingColumns, positions: Tensor, q: Tensor | None
) -> Tensor:
    """Draw the verdict on every draft from the law (accept, reject) -> bool [n, r - 1]; `mass` is p's of them."""
    target = mass.to(torch.float64)
    proposed = torch.ones_like(target) if q is None else _of_tokens(q, drafts).to(torch.float64)
    chance = torch.where(target > 0, target / proposed, 0.0).clamp(max=1.0)
    seeds = sampling.seeds.unsqueeze(1).expand_as(drafts)
    u = uniform(seeds, positions[:, :-1], Purpose.ACCEPT)
    return (invert(torch.stack([chance, 1 - chance], dim=2).flatten(0, 1), u.flatten()) == 0).view(u.shape)


def _corrected(
    p: Tensor,
    drafts: Tensor,
    accepted: Tensor,
    count: Tensor,
    sampling: SamplingColumns,
    positions: Tensor,
    q: Tensor | None,
) -> Tensor:
    """Draw the next tokens: the bonus after all drafts, else the correction of the first that fell -> int64 [n]."""
    final, where, bonus = _row(p, accepted), _row(positions, accepted), accepted == count
    if not drafts.shape[1]:
        return draw(final, sampling.seeds, where, Purpose.TARGET)
    # A request whose drafts all stand has no rejected one; its residual is computed and not read.
    cut = accepted.clamp(max=drafts.shape[1] - 1)
    left = residual(final, _row(drafts, cut).clamp(0, p.shape[2] - 1), None if q is None else _row(q, cut))
    u = torch.where(
        bonus,
        uniform(sampling.seeds, where, Purpose.TARGET),
        uniform(sampling.seeds, where, Purpose.RESIDUAL),
    )
    outcome = invert(torch.where(bonus.unsqueeze(1), final, left), u)
    return outcome.clamp(max=p.shape[2] - 1)
