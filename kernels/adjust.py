"""Adjustments of logits before a law is taken from them: penalties, bias, and tokens that may not come.

They apply to one row, which predicts one token after a known text, and to rows of targets and of drafts alike: a law
that acceptance reads is the law that was sampled from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Tokens = NDArray[np.int64]


class Adjustment(NamedTuple):
    """Hold the adjustments of one request; the defaults change nothing.

    `presence` and `frequency` count generated tokens, `repetition` divides the scores of all tokens seen, those of
    the prompt too. `bias` adds to the logits of single tokens.
    """

    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias: tuple[tuple[int, float], ...] = ()

    @property
    def reads_text(self) -> bool:
        """Tell whether a token's logit depends on the tokens before it."""
        return self.presence != 0 or self.frequency != 0 or self.repetition != 1


def adjust(logits: Tensor, given: Adjustment, prompt: Tokens, output: Tokens, allowed: Tensor | None) -> None:
    """Adjust one row of logits [V] in place, for the token that follows `prompt` and `output`.

    `allowed` bool [V]: all other tokens become impossible. In order: repetition penalty (Keskar et al., CTRL, section
    4.1: positive scores divided, negative ones multiplied), frequency and presence penalties (OpenAI), bias, mask.
    """
    if given.repetition != 1:
        seen = torch.from_numpy(np.unique(np.concatenate([prompt, output]))).to(logits.device)
        scores = logits[seen]
        logits[seen] = torch.where(scores > 0, scores / given.repetition, scores * given.repetition)
    if given.frequency or given.presence:
        tokens, counts = np.unique(output, return_counts=True)
        penalty = torch.from_numpy(given.frequency * counts + given.presence).to(logits)
        logits[torch.from_numpy(tokens).to(logits.device)] -= penalty
    if given.bias:
        ids, values = zip(*given.bias, strict=True)
        logits[torch.tensor(ids, device=logits.device)] += torch.tensor(values).to(logits)
    if allowed is not None:
        logits.masked_fill_(~allowed, -torch.inf)


def adjust_plain(
    logits: Sequence[float],
    given: Adjustment,
    prompt: Sequence[int],
    output: Sequence[int],
    allowed: Sequence[bool] | None,
) -> list[float]:
    """Return the logits that `adjust` leaves, in plain Python."""
    scores = list(logits)
    for token in {*prompt, *output}:
        scores[token] *= 1 / given.repetition if scores[token] > 0 else given.repetition
    for token, count in Counter(output).items():
        scores[token] -= given.frequency * count + given.presence
    for token, value in given.bias:
        scores[token] += value
    if allowed is not None:
        scores = [score if may else -math.inf for score, may in zip(scores, allowed, strict=True)]
    return scores
