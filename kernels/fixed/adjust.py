"""Adjustments of logits in fixed shapes; what they mean and in which order says `kernels/adjust.py`.

Counts are taken from the texts anew at each call: they are then right after every preemption and cut, and cost less
than the logits that are adjusted. What a row sees beyond the text is few tokens, so only their scores are redone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class AdjustColumns(NamedTuple):
    """Hold the adjustments of n requests; bias of fewer than B tokens is filled up with 0 for token 0."""

    presence: Tensor  # float64 [n]
    frequency: Tensor  # float64 [n]
    repetition: Tensor  # float64 [n]
    bias_ids: Tensor  # int64 [n, B]
    bias: Tensor  # float64 [n, B]


class Texts(NamedTuple):
    """Hold the texts of n requests: tokens int64 [n, T], of which `prompt` and then `length` int64 [n] live."""

    tokens: Tensor
    prompt: Tensor
    length: Tensor


def adjust(
    logits: Tensor, given: AdjustColumns, texts: Texts, ahead: Tensor, stop_ids: Tensor, banned: Tensor
) -> Tensor:
    """Adjust rows of logits [n, r, V] for the tokens that follow a text and then `ahead` -> [n, r, V].

    `ahead` int64 [n, r, K], negative where there is none; rows that are `banned` bool [n, r] cannot give any of the
    `stop_ids` int64 [n, s], negative where there is none.
    """
    n, rows, width = logits.shape
    place = torch.arange(texts.tokens.shape[1], device=logits.device)
    ids = texts.tokens.clamp(0, width - 1)
    inside = place < texts.length.unsqueeze(1)
    generated = inside & (place >= texts.prompt.unsqueeze(1))
    nothing = torch.zeros(n, width, dtype=torch.int32, device=logits.device)
    counts = nothing.scatter_add(1, ids, generated.int())
    seen = nothing.scatter_add(1, ids, inside.int()) > 0
    adjusted = _penalised(logits, given, seen.unsqueeze(1), counts.unsqueeze(1))
    own, live = ahead.clamp(0, width - 1), ahead >= 0
    # Of each token ahead, how often it stands there; what is none stands for a token that is scored once more.
    more = ((own.unsqueeze(3) == own.unsqueeze(2)) & live.unsqueeze(2)).sum(3)
    known, before = (values.gather(1, own.flatten(1)).view_as(own) for values in (seen, counts))
    again = _penalised(logits.gather(2, own), given, known | (more > 0), before + more)
    adjusted = adjusted.scatter(2, own, again)
    # The reading makes float32 of them first.
    bias = given.bias.float().to(logits.dtype)
    adjusted = adjusted.scatter_add(2, _each_row(given.bias_ids, rows), _each_row(bias, rows))
    stops = torch.zeros(n, width + 1, dtype=torch.bool, device=logits.device)
    stops = stops.scatter(1, torch.where(stop_ids < 0, width, stop_ids), torch.ones_like(stop_ids).bool())
    return adjusted.masked_fill(banned.unsqueeze(2) & stops[:, :width].unsqueeze(1), -torch.inf)


def _each_row(values: Tensor, rows: int) -> Tensor:
    return values.unsqueeze(1).expand(-1, rows, -1)


def _penalised(scores: Tensor, given: AdjustColumns, seen: Tensor, counts: Tensor) -> Tensor:
    """Apply the penalties to scores [n, r, m] of tokens that were `seen`, and generated `counts` times."""
    presence, frequency, repetition = (column.view(-1, 1, 1) for column in given[:3])
    factor = repetition.to(scores.dtype)
    scores = torch.where(seen, torch.where(scores > 0, scores / factor, scores * factor), scores)
    return scores - (frequency * counts + presence * (counts > 0)).to(scores.dtype)
