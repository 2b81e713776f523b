"""The law of the next token: the exact distribution sampled from, with all sampling parameters applied.

Every law, of targets and of drafts, comes from one function, so that p and q are processed alike.
Drawing from a law is `choose.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

# Temperatures below this are greedy decoding, as in vLLM: dividing by them would only overflow.
GREEDY_BELOW = 1e-5

# Scores whose maximum is taken together in the search for the best ones.
_BLOCK = 256


class SamplingParams(NamedTuple):
    """Hold the sampling parameters of one request."""

    temperature: float = 0.0  # 0: the most probable token
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off


@dataclass(frozen=True)
class SamplingRows:
    """Hold sampling parameters, one of each a row; build it with `of`.

    `temperature`, `top_p`, `min_p` are float64 [n], `top_k` int64 [n].
    The other fields are bounds over all rows, kept on the host so that no step has to wait for a device.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    all_greedy: bool
    any_greedy: bool
    max_top_k: int
    any_top_p: bool
    any_min_p: bool

    @classmethod
    def of(cls, params: Iterable[SamplingParams], device: torch.device | str = "cpu") -> Self:
        """Gather the parameters of several requests; raises ValueError for a value out of range."""
        listed = list(params)
        for row, one in enumerate(listed):
            _validate(row, one)
        greedy = [one.temperature < GREEDY_BELOW for one in listed]
        sampled = [one for one, still in zip(listed, greedy, strict=True) if not still]
        temperatures = [0.0 if still else one.temperature for one, still in zip(listed, greedy, strict=True)]
        return cls(
            temperature=torch.tensor(temperatures, dtype=torch.float64, device=device),
            top_k=torch.tensor([one.top_k for one in listed], dtype=torch.int64, device=device),
            top_p=torch.tensor([one.top_p for one in listed], dtype=torch.float64, device=device),
            min_p=torch.tensor([one.min_p for one in listed], dtype=torch.float64, device=device),
            all_greedy=not sampled,
            any_greedy=any(greedy),
            max_top_k=max((one.top_k for one in sampled), default=0),
            any_top_p=any(one.top_p < 1.0 for one in sampled),
            any_min_p=any(one.min_p > 0.0 for one in sampled),
        )

    def take(self, index: Tensor) -> Self:
        """Return the rows that `index` (int64 [m]) names; the bounds stay those of all rows."""
        return replace(
            self,
            temperature=self.temperature[index],
            top_k=self.top_k[index],
            top_p=self.top_p[index],
            min_p=self.min_p[index],
        )


def _validate(row: int, params: SamplingParams) -> None:
    """Raise ValueError where a value is out of its range."""
    if not (math.isfinite(params.temperature) and params.temperature >= 0):
        raise ValueError(f"row {row}: temperature is {params.temperature}; give a finite number from 0")
    if params.top_k < 0:
        raise ValueError(f"row {row}: top_k is {params.top_k}; give at least 1, or 0 for no limit")
    if not 0 < params.top_p <= 1:
        raise ValueError(f"row {row}: top_p is {params.top_p}; give a number above 0 and at most 1")
    if not 0 <= params.min_p <= 1:
        raise ValueError(f"row {row}: min_p is {params.min_p}; give a number from 0 to 1")


def argmax_tokens(logits: Tensor, exclude: int | None = None) -> Tensor:
    """Return the most probable token of each row, the lowest id on ties: [n, V] -> int64 [n]."""
    tokens = _argmax(logits)
    if exclude is not None:
        # Only rows that chose the excluded id are searched again: masking all would copy the logits.
        rows = (tokens == exclude).nonzero().squeeze(1)
        if len(rows):
            tokens[rows] = _argmax(_without(logits[rows], exclude))
    return tokens


def _argmax(logits: Tensor) -> Tensor:
    """Return the first index of each row's maximum."""
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64) and logits.numel():
        # numpy's argmax is vectorised: 17 us where torch takes 445 us (5 rows of 49,152, one thread).
        return torch.from_numpy(logits.detach().numpy().argmax(-1))
    return logits.argmax(-1)


def _without(logits: Tensor, exclude: int) -> Tensor:
    """Return a copy of the logits in which one token is impossible."""
    copy = logits.clone()
    copy[:, exclude] = -torch.inf
    return copy


def law(logits: Tensor, rows: SamplingRows, exclude: int | None = None) -> Tensor:
    """Return each row's law: logits [n, V] -> p [n, V], float32 (float64 for float64 logits).

    In order: `exclude` is removed, temperature, top-k, top-p, min-p (the order of Hugging Face transformers).
    A greedy row is a point mass on its argmax. Tokens that tie with the k-th best are kept.
    The logits are not modified.
    """
    logits = as_real(logits)
    if rows.all_greedy:
        return point_mass(argmax_tokens(logits, exclude), logits)
    greedy = rows.temperature == 0
    scores = logits / torch.where(greedy, 1.0, rows.temperature).to(logits.dtype).unsqueeze(1)
    if exclude is not None:
        scores[:, exclude] = -torch.inf
    p = _truncated(scores, rows)
    if rows.any_greedy:
        fixed = greedy.nonzero().squeeze(1)
        p[fixed] = point_mass(argmax_tokens(logits[fixed], exclude), p)
    return p


def as_real(logits: Tensor) -> Tensor:
    """Return the logits in the type of their law: float64 stays, all else becomes float32."""
    return logits if logits.dtype == torch.float64 else logits.to(torch.float32)


def point_mass(tokens: Tensor, like: Tensor) -> Tensor:
    """Return laws that give all mass to one token each: int64 [n] -> [n, V] of `like`'s width and dtype."""
    p = like.new_zeros(len(tokens), like.shape[1])
    return p.scatter_(1, tokens.unsqueeze(1), 1.0)


def _truncated(scores: Tensor, rows: SamplingRows) -> Tensor:
    """Return the softmax of `scores` [n, V] within top-k, top-p and min-p."""
    if rows.max_top_k:
        scores = _within_top_k(scores, rows)
    p = scores.softmax(-1)
    if not (rows.any_top_p or rows.any_min_p):
        return p
    if rows.any_min_p:
        least = rows.min_p.to(p.dtype).unsqueeze(1) * p.amax(-1, keepdim=True)
        scores = scores.masked_fill(p < least, -torch.inf)
    if rows.any_top_p:
        scores = _within_top_p(scores, p, rows.top_p)
    # A second softmax, not a division by a sum: its order of addition does not depend on the batch.
    return scores.softmax(-1)


def _within_top_k(scores: Tensor, rows: SamplingRows) -> Tensor:
    """Return the scores [n, V] with -inf for all below the k-th best of their row, where the row has a k."""
    limited = rows.top_k > 0
    k = min(rows.max_top_k, scores.shape[1])
    row, token, _, values = _at_least(scores, torch.where(limited, _reached_by(scores, k), torch.inf))
    best = values.sort(dim=-1, descending=True).values
    kth = best.gather(1, (rows.top_k.clamp(1, max(k, 1)) - 1).unsqueeze(1)).squeeze(1)
    kept = scores[row, token] >= kth[row]
    return _only(scores, limited, row[kept], token[kept])


def _reached_by(scores: Tensor, k: int) -> Tensor:
    """Return for each row of `scores` [n, V] a score that at least k, and not many more, reach: [n]."""
    blocks = scores.shape[1] // _BLOCK
    if k > blocks:
        return scores.topk(k).values[:, -1]
    # The k-th largest block maximum; torch.topk over the whole width is 5 times as slow.
    return scores[:, : blocks * _BLOCK].reshape(-1, blocks, _BLOCK).amax(-1).topk(k).values[:, -1]


def best_tokens(scores: Tensor, k: int, exclude: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the k best of each row, best first, the lower id on ties: [n, V] -> (values, tokens) [n, k].

    `exclude` is never among them. Raises ValueError where fewer than k tokens are left.
    """
    left = scores.shape[1] - (exclude is not None)
    if not 1 <= k <= left:
        raise ValueError(f"the best {k} of {left} tokens are asked for; give a number from 1 to {left}")
    scores = as_real(scores)
    _, token, own, values = _at_least(scores, _reached_by(scores, k + (exclude is not None)))
    tokens = torch.zeros_like(values, dtype=torch.int64)
    tokens[own] = token
    # Rows are gathered in order of ids, and filled up behind them: a stable sort keeps the lower id first.
    values, order = values.sort(dim=-1, stable=True, descending=True)
    tokens = tokens.gather(1, order)
    if exclude is not None:
        # One more than k were found; the excluded token, if among them, goes behind all others.
        values, tokens = values[:, : k + 1], tokens[:, : k + 1]
        order = (tokens == exclude).long().sort(dim=-1, stable=True).indices
        values, tokens = values.gather(1, order), tokens.gather(1, order)
    return values[:, :k], tokens[:, :k]


def in_nucleus(mass_before: Tensor, top_p: Tensor) -> Tensor:
    """Tell whether top-p keeps a token, given the mass of the tokens before it: the one boundary of all laws.

    The mass before must be below `top_p`; so the first is always kept (Holtzman et al. 2019, section 3.1).
    """
    return mass_before < top_p


def _within_top_p(scores: Tensor, p: Tensor, top_p: Tensor) -> Tensor:
    """Return the scores [n, V] of law `p` with -inf for all outside the nucleus; ties go to the lower id."""
    # A token below (1 - top_p) / V cannot be kept: all such tokens together weigh less than 1 - top_p.
    # Half of it, less float32's rounding of the whole, is a safe bound.
    floor = ((1 - top_p) / 2 - 1e-5).clamp(min=0) / p.shape[1]
    limited = top_p < 1
    row, token, own, values = _at_least(p, torch.where(limited, floor, torch.inf))
    values, order = values.sort(stable=True, dim=-1, descending=True)
    mass = values.clamp(min=0).to(torch.float64).cumsum(-1)
    before = torch.zeros_like(mass)
    before[:, 1:] = mass[:, :-1]
    kept = torch.zeros_like(before, dtype=torch.bool)
    kept.scatter_(1, order, in_nucleus(before, top_p.unsqueeze(1)))
    inside = kept[own]
    return _only(scores, limited, row[inside], token[inside])


def _only(scores: Tensor, limited: Tensor, row: Tensor, token: Tensor) -> Tensor:
    """Return the scores with -inf for all tokens of limited rows but the given (row, token) pairs."""
    kept = torch.where(limited.unsqueeze(1), -torch.inf, scores)
    kept[row, token] = scores[row, token]
    return kept


def _at_least(values: Tensor, floor: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Find the values [n, V] that reach their row's floor -> (row [m], token [m], own, gathered).

    `gathered` [n, most] holds them row by row, filled up with -inf; `own` [n, most] marks the others.
    """
    reach = (values >= floor.to(values.dtype).unsqueeze(1)).flatten()
    if reach.device.type == "cpu":  # noqa: SIM108 - one line would hide the reason
        flat = torch.from_numpy(reach.numpy().nonzero()[0])  # torch's own takes 6 times as long
    else:
        flat = reach.nonzero().squeeze(1)
    row, token = flat // values.shape[1], flat % values.shape[1]
    count = torch.bincount(row, minlength=len(values))
    most = max(1, int(count.max())) if len(count) else 1
    gathered = values.new_full((len(values), most), -torch.inf)
    own = torch.arange(most, device=row.device) < count.unsqueeze(1)
    gathered[own] = values[row, token]
    return row, token, own, gathered


def law_plain(logits: Sequence[float], params: SamplingParams, exclude: int | None = None) -> list[float]:
    """Return the law that `law` returns for one row, in plain Python."""
    scores = [-math.inf if token == exclude else score for token, score in enumerate(logits)]
    if params.temperature < GREEDY_BELOW:
        choice = scores.index(max(scores))
        return [float(token == choice) for token in range(len(scores))]
    scores = [score / params.temperature for score in scores]
    if params.top_k:
        kth = sorted(scores, reverse=True)[min(params.top_k, len(scores)) - 1]
        scores = [score if score >= kth else -math.inf for score in scores]
    best = max(scores)
    p = _normalised([math.exp(score - best) for score in scores])
    least = params.min_p * max(p)
    kept = {token for token, mass in enumerate(p) if mass >= least}
    if params.top_p < 1:
        kept &= _nucleus_plain(p, params.top_p)
    return _normalised([mass if token in kept else 0.0 for token, mass in enumerate(p)])


def _nucleus_plain(p: Sequence[float], top_p: float) -> set[int]:
    """Return the tokens that top-p keeps."""
    kept: set[int] = set()
    before = 0.0
    for token in sorted(range(len(p)), key=lambda token: -p[token]):
        if not before < top_p:
            break
        kept.add(token)
        before += p[token]
    return kept


def _normalised(weights: Sequence[float]) -> list[float]:
    """Return the weights divided by their sum."""
    total = sum(weights)
    return [weight / total for weight in weights]
