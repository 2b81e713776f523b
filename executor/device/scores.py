"""Log-probabilities of resident requests: what a phase says of its judging rows, and the host's reading of it.

Laws stay on the device. Of each row go up its place, the tokens that it follows, the most probable tokens, and the
log-probabilities of all tokens that may come to be emitted there: those of the block, and those that operators gave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsm_spec.executor.logprobs import MOST_TOP, KnownRow

Numbers = NDArray[np.int64]
# The event of rows of a prompt, which is none of the table's.
PROMPT = "prompt"
# Rows whose laws are taken at once: 64 rows of 128,256 tokens take 33 MB.
_ROWS = 64


@dataclass(frozen=True)
class ScoredRows:
    """Hold r judging rows of n requests on the device."""

    logits: Tensor
    """[n, r, V]"""
    live: Tensor
    """bool [n, r]"""
    positions: Tensor
    """int64 [n, r], of the tokens that the rows predict"""
    ahead: Tensor
    """int64 [n, r, K], the tokens between the text and these, -1 behind the last one"""


@dataclass(frozen=True)
class ScoreForm:
    """Name the numbers of an event's scored rows: `ahead` places in front of each, `top` most probable tokens."""

    event: str
    rows: int
    ahead: int
    top: int

    def read(self, numbers: Numbers, values: Numbers) -> Scored:
        """Read what `pack_scores` laid out."""
        return Scored(self, numbers, values)


def score_form(event: str, rows: int, ahead: int, vocabulary: int) -> ScoreForm:
    """Give the form of an event's scored rows."""
    return ScoreForm(event, rows, ahead, min(MOST_TOP, vocabulary))


def pack_scores(form: ScoreForm, rows: ScoredRows, known: Tensor) -> Tensor:
    """Score rows, and lay out what is told of them; `known` int64 [n, r, m] are tokens -> int64 [n, r * width]."""
    parts = []
    own = known.clamp(0, rows.logits.shape[2] - 1)
    for start in range(0, form.rows, _ROWS):
        part = slice(start, start + _ROWS)
        law = rows.logits[:, part].float().log_softmax(-1)
        best = law.topk(form.top, dim=-1)
        ids = torch.cat((own[:, part], best.indices), 2)
        values = torch.cat((law.gather(2, own[:, part]), best.values), 2)
        parts.append(torch.cat((ids, values.double().view(torch.int64)), 2))
    heads = torch.stack((rows.live.long(), rows.positions), 2)
    return torch.cat((heads, rows.ahead, torch.cat(parts, 1)), 2).flatten(1)


class Scored:
    """Hold the scored rows of n requests on the host."""

    def __init__(self, form: ScoreForm, numbers: Numbers, values: Numbers) -> None:
        """Read `values` int64 [n, r * width]; `numbers` [n] are the requests."""
        self.form = form
        self.numbers = numbers
        self._values = values.reshape(len(numbers), form.rows, values.shape[1] // form.rows)

    def of(self, number: int) -> Iterator[tuple[int, tuple[int, ...], KnownRow]]:
        """Give position, tokens ahead and scores of each live row of a request."""
        form = self.form
        for line in self._values[self.numbers == number].reshape(-1, self._values.shape[2]):
            if not line[0]:
                continue
            ahead = tuple(line[2 : 2 + form.ahead].tolist())
            ids, values = np.split(line[2 + form.ahead :], 2)
            yield int(line[1]), _until(ahead), _known(ids, values.view(np.float64), len(ids) - form.top)


def _until(tokens: Sequence[int]) -> tuple[int, ...]:
    """Take the tokens before the first that is none."""
    end = next((place for place, token in enumerate(tokens) if token < 0), len(tokens))
    return tuple(tokens[:end])


def _known(ids: Numbers, values: NDArray[np.float64], count: int) -> KnownRow:
    tokens, numbers = ids.tolist(), values.tolist()
    known = dict(zip(tokens, numbers, strict=True))
    return KnownRow(known, tuple(zip(tokens[count:], numbers[count:], strict=True)))
