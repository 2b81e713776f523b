"""A toy language model over a handful of tokens whose laws are known exactly, for tests of output laws.

It has the forward and the cache of a real model: what a row sees is what lies in the slots it may read, and its
logits depend on all of that, on whether each of those tokens was written under the adapter, and on its position.
So a wrong slot, a stale mask, or KV of a draft that was not accepted changes the law.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch

from fsm_spec.executor.models.rows import RowBatch

Seen = tuple[tuple[int, int, bool], ...]
"""Position, token and gate of every row seen, by position."""


class ToyCache:
    """Hold what the toy reads back: token, position and gate of the row written to each slot."""

    def __init__(self, slots: int) -> None:
        self.tokens = torch.full((slots,), -1, dtype=torch.int64)
        self.positions = torch.full((slots,), -1, dtype=torch.int64)
        self.gates = torch.zeros(slots, dtype=torch.bool)

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy slots `source` to slots `target`; all are read before any is written."""
        for values in (self.tokens, self.positions, self.gates):
            values[target] = values[source]


class ToyModel:
    """Give random but fixed logits for what a row sees; some tokens are impossible, so that laws stay small.

    `support` is the number of tokens that keep mass after each context, 2 at least; `vocabulary` gives all.
    """

    def __init__(self, vocabulary: int = 4, support: int = 3, seed: int = 0) -> None:
        self.vocabulary = vocabulary
        self.support = support
        self.seed = seed
        self._logits = cache(self._draw)

    def forward(self, rows: RowBatch, cache: ToyCache) -> torch.Tensor:
        """Write T rows to their slots and return logits [L, vocabulary] float64 of `logits_rows`."""
        gates = (
            torch.zeros_like(rows.slots, dtype=torch.bool) if rows.adapter_rows is None else rows.adapter_rows
        )
        cache.tokens[rows.slots] = rows.token_ids
        cache.positions[rows.slots] = rows.positions
        cache.gates[rows.slots] = gates
        lines: list[tuple[float, ...]] = []
        for request in range(rows.requests):
            start, stop = rows.row_start[request], rows.row_start[request + 1]
            context = self._read(cache, rows.context_of(request))
            block = self._read(cache, rows.slots[start:stop])
            for row, line in enumerate(rows.masks[request].tolist()):
                own = [seen for seen, visible in zip(block, line, strict=True) if visible]
                lines.append(self._logits(tuple(sorted(context + own)), block[row][0], block[row][2]))
        logits = torch.tensor(lines, dtype=torch.float64).reshape(-1, self.vocabulary)
        return logits[rows.logits_rows]

    def forward_captured(
        self, rows: RowBatch, cache: ToyCache, capture: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run rows as `forward` does; a row's hidden state [1] names all that the row saw, whatever the layers."""
        del capture  # a toy has no layers
        everything = replace(rows, logits_rows=torch.arange(len(rows.token_ids)))
        logits = self.forward(everything, cache)
        finite = logits.masked_fill(logits.isinf(), 0.0)
        return logits[rows.logits_rows], finite.sum(1, keepdim=True)

    def after(self, text: tuple[int, ...]) -> tuple[float, ...]:
        """Give the logits after a clean text, as the target's own decoding sees it."""
        seen = tuple((position, token, False) for position, token in enumerate(text))
        return self._logits(seen, len(text) - 1, False)  # noqa: FBT003 -- not gated

    def _read(self, cache: ToyCache, slots: torch.Tensor) -> list[tuple[int, int, bool]]:
        parts = (cache.positions[slots].tolist(), cache.tokens[slots].tolist(), cache.gates[slots].tolist())
        return list(zip(*parts, strict=True))

    def _draw(self, seen: Seen, position: int, gate: bool) -> tuple[float, ...]:  # noqa: FBT001 - a row's gate
        source = random.Random(f"{self.seed} {seen} {position} {gate}")
        impossible = source.sample(range(self.vocabulary), self.vocabulary - self.support)
        return tuple(
            -math.inf if token in impossible else source.gauss(0, 1.5) for token in range(self.vocabulary)
        )
