"""Toy draft models over a handful of tokens, for exact output laws: badly guessing, but by everything they see.

What a row drafts depends on the tokens, positions and hidden states in the slots it may read; so a draft cache that
holds what it should not gives other drafts than the same text read afresh.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import cache

import torch

from fsm_spec.executor.drafting import DraftModel
from fsm_spec.executor.models.drafter import ContextRows, Drafted
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.table import Table

Note = tuple[int, int, float]
"""Position, token (NO_TOKEN in rows without queries) and hidden state of a row."""
NO_TOKEN = -2


class ToyDraftCache:
    """Hold what a toy draft model reads back: position, token and hidden state of the row written to each slot."""

    def __init__(self, slots: int) -> None:
        self.rows: list[Note] = [(-1, NO_TOKEN, 0.0)] * slots

    def __deepcopy__(self, memo: dict[int, object]) -> ToyDraftCache:
        """Copy the list alone; notes never change."""
        del memo
        fresh = ToyDraftCache(0)
        fresh.rows = list(self.rows)
        return fresh


class ToyDrafter:
    """Give random but fixed logits for what a row sees, with `support` tokens possible; it has every head."""

    capture = (0,)
    has_markov = True
    has_confidence = True

    def __init__(self, kind: str, vocabulary: int = 4, support: int = 2, seed: int = 1) -> None:
        self.kind = kind
        self.vocabulary = vocabulary
        self.support = support
        self.seed = seed
        if kind == "language_model":
            self.capture = ()  # type: ignore[assignment]
        self._logits = cache(self._draw)

    def write_context(self, rows: ContextRows, cache: ToyDraftCache) -> None:
        """Write rows without queries to their slots."""
        for slot, position, state in zip(
            rows.slots.tolist(), rows.positions.tolist(), rows.features[:, 0].tolist(), strict=True
        ):
            cache.rows[slot] = (position, NO_TOKEN, _rounded(state))

    def forward(self, rows: RowBatch, cache: ToyDraftCache, features: torch.Tensor | None = None) -> Drafted:
        """Write T rows to their slots; logits [L, vocabulary] float64, hidden [T, 1]."""
        states = [0.0] * len(rows.slots) if features is None else features[:, 0].tolist()
        for slot, position, token, state in zip(
            rows.slots.tolist(), rows.positions.tolist(), rows.token_ids.tolist(), states, strict=True
        ):
            assert 0 <= token < self.vocabulary, "a draft model was handed no token"
            cache.rows[slot] = (position, token, _rounded(state))
        lines = [
            self._logits(self._seen(rows, cache, request, row))
            for request in range(rows.requests)
            for row in range(rows.row_start[request + 1] - rows.row_start[request])
        ]
        logits = torch.tensor(lines, dtype=torch.float64).reshape(-1, self.vocabulary)
        finite = logits.masked_fill(logits.isinf(), 0.0)
        return Drafted(logits[rows.logits_rows], finite.sum(1, keepdim=True))

    def biases(self, hidden: torch.Tensor) -> Callable[[int, torch.Tensor], torch.Tensor]:
        """Give a bias [n, vocabulary] by the token before and the state of the row."""

        def bias(step: int, previous: torch.Tensor) -> torch.Tensor:
            lines = [
                self._logits(((step, token, _rounded(state)),))
                for token, state in zip(previous.tolist(), hidden[:, step, 0].tolist(), strict=True)
            ]
            # A bias makes no token impossible.
            return torch.tensor(lines, dtype=torch.float64).clamp(min=-1.0)

        return bias

    def survival(self, hidden: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """Give falling chances that differ by state and token, [n, g]."""
        return torch.sigmoid(hidden[..., 0] + previous).cumprod(1)

    def _seen(self, rows: RowBatch, cache: ToyDraftCache, request: int, row: int) -> tuple[Note, ...]:
        """List what a row reads, and itself last."""
        start, stop = rows.row_start[request], rows.row_start[request + 1]
        visible = rows.masks[request][row]
        context = rows.context_of(request).tolist()
        # A mask wider than the block speaks of the last slots of the context as well.
        masked = len(visible) - (stop - start)
        slots = context + rows.slots[start:stop].tolist()
        first = len(context) - masked
        seen = [slot for place, slot in enumerate(slots) if place < first or bool(visible[place - first])]
        return (*sorted(cache.rows[slot] for slot in seen), cache.rows[int(rows.slots[start + row])])

    def _draw(self, seen: tuple[Note, ...]) -> tuple[float, ...]:
        source = random.Random(f"{self.seed} {seen}")
        impossible = source.sample(range(self.vocabulary), self.vocabulary - self.support)
        return tuple(
            -math.inf if token in impossible else source.gauss(0, 1.5) for token in range(self.vocabulary)
        )


def _rounded(state: float) -> float:
    """Forget the last digits of a hidden state, which depend on the order of a sum."""
    return round(state, 6)


def toy_drafters(table: Table, slots: int, vocabulary: int = 4, support: int = 2) -> dict[str, DraftModel]:
    """Make a toy for each draft model of a table, with a cache of so many slots."""
    return {
        name: DraftModel(ToyDrafter(plan.kind, vocabulary, support), ToyDraftCache(slots))
        for name, plan in table.models.items()
    }
