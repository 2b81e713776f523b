"""Log-probabilities of the target for the tokens that a request emits, and for those of its prompt.

They are the target's own, before temperature, penalties, bias and masks, as float32 log-softmax of its logits. A row of
a verifying block speaks for a token only if the tokens the row saw are the tokens that were emitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Tokens = NDArray[np.int64]
# Rows of logits turned into log-probabilities at once: 64 rows of 49,152 take 13 MB.
_ROWS = 64
# Most probable tokens that are told of a row beside the one that was emitted, at most.
MOST_TOP = 20


class TokenLogprob(NamedTuple):
    """Hold the log-probability of a token, and the most probable tokens at its place, the best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class KnownRow(NamedTuple):
    """Hold what is known of a row whose logits stayed on a device: scores of some tokens, and of the best ones."""

    known: Mapping[int, float]
    top: tuple[tuple[int, float], ...]

    def of(self, token: int, top: int) -> TokenLogprob:
        """Score a token, with the `top` most probable ones beside it."""
        return TokenLogprob(token, self.known[token], self.top[:top])


class Scores:
    """Collect the log-probabilities of one request; `top` most probable tokens are kept beside each."""

    def __init__(self, top: int, *, prompt: bool = False) -> None:
        self.top = top
        self.tokens: list[TokenLogprob] = []
        self.prompt: list[TokenLogprob] = []
        self.wants_prompt = prompt
        self._rows: dict[tuple[int, tuple[int, ...]], torch.Tensor | KnownRow] = {}

    def see(self, position: int, ahead: tuple[int, ...], logits: torch.Tensor) -> None:
        """Keep the target's logits [V] for a position, given the tokens `ahead` behind the emitted text."""
        self._rows[position, ahead] = logits.float().clone()

    def know(self, position: int, ahead: tuple[int, ...], row: KnownRow) -> None:
        """Keep what is known of the target's law for a position, as `see` keeps its logits."""
        self._rows[position, ahead] = row

    def know_prompt(self, start: int, text: Tokens, rows: Sequence[KnownRow]) -> None:
        """Score the tokens of the prompt `text` behind position `start` by what is known of the rows from there."""
        known = 1 + len(self.prompt)
        tokens = text[known : start + 1 + len(rows)].tolist()
        for token, row in zip(tokens, rows[known - start - 1 :], strict=False):
            self.prompt.append(row.of(token, self.top))

    def settle(self, start: int, run: Sequence[int] | Tokens) -> None:
        """Score the tokens emitted from position `start` on, and forget what was predicted after other tokens.

        What was predicted after these very tokens stays: some specs emit a known token a round later.
        """
        tokens = tuple(int(token) for token in run)
        for index, token in enumerate(tokens):
            row = self._rows[start + index, tokens[:index]]
            if isinstance(row, KnownRow):
                self.tokens.append(row.of(token, self.top))
            else:
                self.tokens.extend(_scored(row.unsqueeze(0), [token], self.top))
        count = len(tokens)
        self._rows = {
            (position, ahead[count:]): row
            for (position, ahead), row in self._rows.items()
            if position >= start + count and ahead[:count] == tokens
        }

    def cut(self, emitted: int) -> None:
        """Take back the tokens behind a stop string."""
        del self.tokens[emitted:]

    def see_prompt(self, start: int, text: Tokens, logits: torch.Tensor) -> None:
        """Score the tokens of the prompt `text` behind position `start` by the logits [n, V] of the rows from there."""
        # The first token has nothing before it; a prompt that is read again after a preemption is known already.
        known = 1 + len(self.prompt)
        tokens = text[known : start + 1 + len(logits)].tolist()
        rows = logits[known - start - 1 :]
        for at in range(0, len(tokens), _ROWS):
            part = tokens[at : at + _ROWS]
            self.prompt.extend(_scored(rows[at : at + len(part)], part, self.top))


def _scored(logits: torch.Tensor, tokens: list[int], top: int) -> list[TokenLogprob]:
    """Give the log-probability of one token for each row of logits [n, V]."""
    law = logits.float().log_softmax(-1)
    chosen = law.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1).tolist()
    best = law.topk(min(top, law.shape[1]), dim=-1)
    tops = [
        tuple(zip(ids, values, strict=True))
        for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    return [TokenLogprob(*entry) for entry in zip(tokens, chosen, tops, strict=True)]
