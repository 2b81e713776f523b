"""The `accept` operator: how many drafts of each request stand, and the token after them.

Row i of a request judges its draft i; the row after the last accepted draft gives the next token.
So a request with k live drafts has k + 1 live rows; what lies past them is dead and never read.
All rules take logits [B, R, V], or those of the live rows alone, request after request: [n, V].
The same rules in plain Python are `acceptance_plain.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fsm_spec.kernels.choose import Chooser
from fsm_spec.kernels.law import SamplingRows, argmax_tokens, as_real, best_tokens, law
from fsm_spec.kernels.randomness import Purpose
from fsm_spec.kernels.sampling import sample


@dataclass(frozen=True)
class _Live:
    """Hold the live rows of a batch, gathered, with the way there and back."""

    logits: Tensor  # [n, V]
    index: Tensor  # [n], b * R + r of each live row
    request: Tensor  # [n], b of each live row
    row_of: Tensor  # [B, R], place in 0..n-1; any for dead rows

    @classmethod
    def gather(cls, logits: Tensor, drafts: Tensor, count: Tensor) -> _Live:
        """Take the live rows out of logits [B, R, V]; a view where all rows are live, or no other ones are given."""
        batch, depth = len(drafts), drafts.shape[1] + 1
        alive = torch.arange(depth, device=logits.device) <= count.unsqueeze(1)
        index = alive.flatten().nonzero().squeeze(1)
        flat = logits.reshape(-1, logits.shape[-1])
        row_of = (alive.flatten().cumsum(0) - 1).clamp(min=0).view(batch, depth)
        return cls(flat if len(index) == len(flat) else flat[index], index, index // depth, row_of)


def leading(stands: Tensor, count: Tensor) -> Tensor:
    """Count the live drafts before the first that does not stand: [B, R-1], [B] -> int64 [B]."""
    alive = torch.arange(stands.shape[1], device=stands.device) < count.unsqueeze(1)
    return (stands & alive).long().cumprod(1).sum(1)


def _alive(drafts: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Find the live drafts of [B, R-1] -> (request [m], depth [m])."""
    request, depth = (torch.arange(drafts.shape[1], device=drafts.device) < count.unsqueeze(1)).nonzero(
        as_tuple=True
    )
    return request, depth


def _judge_by_equality(picks: Tensor, live: _Live, drafts: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Accept the drafts that equal the verifier's own tokens -> (accepted [B], next [B])."""
    tokens = picks[live.row_of]
    accepted = leading(tokens[:, :-1] == drafts, count)
    return accepted, tokens.gather(1, accepted.unsqueeze(1)).squeeze(1)


def accept_greedy(
    logits: Tensor,
    drafts: Tensor,
    count: Tensor,
    *,
    exclude: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Accept drafts that equal the verifier's argmax, whatever the temperature -> (accepted, next).

    Shapes: logits [B, R, V]; drafts [B, R-1]; count, and both results, int64 [B].
    """
    live = _Live.gather(logits, drafts, count)
    return _judge_by_equality(argmax_tokens(live.logits, exclude), live, drafts, count)


def accept_match(
    logits: Tensor,
    drafts: Tensor,
    count: Tensor,
    rows: SamplingRows,
    seed: Tensor,
    position: Tensor,
    chooser: Chooser,
    *,
    exclude: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Accept drafts that equal the verifier's own sample, and emit that very sample -> (accepted, next).

    Shapes: logits [B, R, V]; drafts [B, R-1]; position [B, R] of the tokens that the rows predict;
    count, seed, and both results, int64 [B].
    The sample at a position is the one plain decoding draws there, so the output is that of plain decoding.
    """
    live = _Live.gather(logits, drafts, count)
    positions = position.flatten()[live.index]
    picks, _ = sample(
        live.logits,
        rows.take(live.request),
        seed[live.request],
        positions,
        Purpose.TARGET,
        chooser,
        exclude=exclude,
    )
    return _judge_by_equality(picks, live, drafts, count)


def accept_rejection(  # noqa: PLR0913 -- the operator's inputs, one each
    logits: Tensor,
    drafts: Tensor,
    count: Tensor,
    rows: SamplingRows,
    seed: Tensor,
    position: Tensor,
    chooser: Chooser,
    *,
    q: Tensor | None = None,
    exclude: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Accept a draft x with probability min(1, p(x) / q(x)), else correct it -> (accepted, next).

    Shapes as in `accept_match`; q [B, R-1, V] is the law each draft was drawn from, None where the draft is a
    function of the tokens before it (a point mass).
    The correction is drawn from max(0, p - q), or from p where that has no mass.
    Source: Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2.
    """
    if rows.all_greedy:
        return accept_greedy(logits, drafts, count, exclude=exclude)
    live = _Live.gather(logits, drafts, count)
    p = law(live.logits, rows.take(live.request), exclude)
    stands = _verdicts(p, live.row_of, drafts, count, seed, position, chooser, q)
    accepted = leading(stands, count)
    ends = accepted.unsqueeze(1)
    final = p[live.row_of.gather(1, ends).squeeze(1)]
    where = position.gather(1, ends).squeeze(1)
    token = torch.empty_like(accepted)
    bonus = (accepted == count).nonzero().squeeze(1)
    if len(bonus):
        token[bonus] = chooser.choose(final[bonus], seed[bonus], where[bonus], Purpose.TARGET)
    cut = (accepted < count).nonzero().squeeze(1)
    if len(cut):
        at = accepted[cut]
        laws = residual(final[cut], drafts[cut, at], None if q is None else q[cut, at])
        token[cut] = chooser.choose(laws, seed[cut], where[cut], Purpose.RESIDUAL)
    return accepted, token


def _verdicts(
    p: Tensor,
    row_of: Tensor,
    drafts: Tensor,
    count: Tensor,
    seed: Tensor,
    position: Tensor,
    chooser: Chooser,
    q: Tensor | None,
) -> Tensor:
    """Draw the verdict on every live draft from the law (accept, reject) -> bool [B, R-1]."""
    stands = torch.zeros_like(drafts, dtype=torch.bool)
    request, depth = _alive(drafts, count)
    if not len(request):
        return stands
    token = drafts[request, depth]
    target = p[row_of[request, depth], token].to(torch.float64)
    proposed = torch.ones_like(target) if q is None else q[request, depth, token].to(torch.float64)
    # A token the target never gives is rejected, also where a wrong q says it was never proposed (0 / 0).
    chance = torch.where(target > 0, target / proposed, 0.0).clamp(max=1.0)
    verdict = chooser.choose(
        torch.stack([chance, 1 - chance], dim=1), seed[request], position[request, depth], Purpose.ACCEPT
    )
    stands[request, depth] = verdict == 0
    return stands


def residual(p: Tensor, rejected: Tensor, q: Tensor | None) -> Tensor:
    """Return the law of the correction, not normalised: max(0, p - q), or p where that has no mass."""
    left = p.scatter(1, rejected.unsqueeze(1), 0.0) if q is None else (p - q).clamp(min=0.0)
    return torch.where(left.amax(1, keepdim=True) > 0, left, p)


def accept_topk(
    logits: Tensor, drafts: Tensor, count: Tensor, top: int, *, exclude: int | None = None
) -> tuple[Tensor, Tensor]:
    """Accept drafts whose logit reaches the k-th best of their row, k = `top`; next is the argmax. NOT lossless.

    Shapes as in `accept_greedy`; `top` 1 differs from it in nothing but ties, which are accepted.
    An impossible draft (logit -inf) never stands.
    Source: I-DLM's fast verify.
    """
    live = _Live.gather(logits, drafts, count)
    known = logits.shape[-1] - (exclude is not None)
    values, _ = best_tokens(live.logits, min(top, known), exclude)
    request, depth = _alive(drafts, count)
    row, token = live.row_of[request, depth], drafts[request, depth]
    score = as_real(live.logits[row, token])
    if exclude is not None:
        score = score.masked_fill(token == exclude, -torch.inf)
    stands = torch.zeros_like(drafts, dtype=torch.bool)
    stands[request, depth] = (score >= values[row, -1]) & (score > -torch.inf)
    accepted = leading(stands, count)
    ends = live.row_of.gather(1, accepted.unsqueeze(1)).squeeze(1)
    return accepted, argmax_tokens(live.logits[ends], exclude)


def accept_threshold(  # noqa: PLR0913 -- the operator's inputs, one each
    logits: Tensor,
    drafts: Tensor,
    count: Tensor,
    rows: SamplingRows,
    seed: Tensor,
    position: Tensor,
    chooser: Chooser,
    threshold: float,
    *,
    exclude: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Accept drafts with p(x) >= threshold; next is drawn from p after the accepted run. NOT lossless.

    Shapes as in `accept_match`; p is the request's law, at temperature 0 a point mass.
    """
    live = _Live.gather(logits, drafts, count)
    p = law(live.logits, rows.take(live.request), exclude)
    request, depth = _alive(drafts, count)
    stands = torch.zeros_like(drafts, dtype=torch.bool)
    stands[request, depth] = p[live.row_of[request, depth], drafts[request, depth]] >= threshold
    accepted = leading(stands, count)
    ends = accepted.unsqueeze(1)
    final, where = p[live.row_of.gather(1, ends).squeeze(1)], position.gather(1, ends).squeeze(1)
    return accepted, chooser.choose(final, seed, where, Purpose.TARGET)


def accept_always(
    logits: Tensor,
    drafts: Tensor,
    count: Tensor,
    rows: SamplingRows,
    seed: Tensor,
    position: Tensor,
    chooser: Chooser,
    *,
    exclude: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Accept every live draft unread; next is drawn from the last live row's law. NOT lossless.

    Shapes as in `accept_match`. This is decoding with the verifier off.
    """
    live = _Live.gather(logits, drafts, count)
    ends = count.unsqueeze(1)
    final = live.logits[live.row_of.gather(1, ends).squeeze(1)]
    where = position.gather(1, ends).squeeze(1)
    token, _ = sample(final, rows, seed, where, Purpose.TARGET, chooser, exclude=exclude)
    return count.clone(), token


ACCEPT_RULES = ("greedy", "match", "rejection")
# Rules whose output does not have the target's law, whatever the drafts.
LOSSY_ACCEPT_RULES = ("topk", "threshold", "always")


def refuse_rule(rule: str, top: int | None = None, threshold: float | None = None) -> None:
    """Raise ValueError for an unknown rule, and for one whose own number is missing or out of range."""
    known = (*ACCEPT_RULES, *LOSSY_ACCEPT_RULES)
    if rule not in known:
        raise ValueError(f"unknown accept rule {rule!r}; give one of {', '.join(known)}")
    if rule == "topk" and (top is None or top < 1):
        raise ValueError(f"top is {top}; the accept rule topk needs a whole number from 1")
    if rule == "threshold" and (threshold is None or not 0 <= threshold <= 1):
        raise ValueError(f"threshold is {threshold}; the accept rule threshold needs a number from 0 to 1")


def accept(  # noqa: PLR0913 -- the operator's inputs, one each
    rule: str,
    logits: Tensor,
    drafts: Tensor,
    count: Tensor,
    rows: SamplingRows,
    seed: Tensor,
    position: Tensor,
    chooser: Chooser,
    *,
    q: Tensor | None = None,
    top: int | None = None,
    threshold: float | None = None,
    exclude: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Apply the rule of that name; `q`, `top` and `threshold` are read by the rule that needs them.

    Raises ValueError for an unknown rule, and for a number that is out of its range.
    """
    refuse_rule(rule, top, threshold)
    draws = (rows, seed, position, chooser)
    if rule == "greedy":
        return accept_greedy(logits, drafts, count, exclude=exclude)
    if rule == "match":
        return accept_match(logits, drafts, count, *draws, exclude=exclude)
    if rule == "rejection":
        return accept_rejection(logits, drafts, count, *draws, q=q, exclude=exclude)
    if rule == "topk":
        return accept_topk(logits, drafts, count, top or 0, exclude=exclude)
    if rule == "threshold":
        return accept_threshold(logits, drafts, count, *draws, threshold or 0.0, exclude=exclude)
    return accept_always(logits, drafts, count, *draws, exclude=exclude)
