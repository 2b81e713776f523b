"""Draft models beside the target: their caches, what prefill gives them, and their forwards.

A draft model's K and V lie in slots of the same numbers as the target's, in pages of the same block tables, so that
admission, growth and release of pages serve all caches at once. How many of its slots are committed says the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fsm_spec.errors import UserError
from fsm_spec.executor.batch import Batch
from fsm_spec.executor.cache import PageAllocator
from fsm_spec.executor.models.drafter import ContextRows
from fsm_spec.executor.request import Request
from fsm_spec.launch import Chunk
from fsm_spec.rules.draft_rows import BESIDE
from fsm_spec.table import Table


@dataclass(frozen=True)
class DraftModel:
    """Hold a draft model and its cache, which is of the model's own kind."""

    model: Any
    cache: Any


@dataclass(frozen=True)
class Ran:
    """Hold what a forward gave: logits of the rows that want them, hidden states of all rows (None: not asked)."""

    logits: torch.Tensor
    hidden: torch.Tensor | None = None


class Drafting:
    """Run the draft models of a table; `models` holds one for each that it declares.

    Raises UserError where one is missing, or lacks a head whose result the table reads.
    """

    def __init__(self, table: Table, models: Mapping[str, DraftModel], allocator: PageAllocator) -> None:
        self.table = table
        self.models = dict(models)
        self.allocator = allocator
        self._causal: dict[int, torch.Tensor] = {}
        self.capture = captured_layers(table, models)

    def run(self, name: str, batch: Batch) -> Ran:
        """Run the rows of a draft model: first those without queries, then the others."""
        draft = self.models[name]
        if batch.silent:
            draft.model.write_context(batch.context_rows(), draft.cache)
        if not batch.total:
            return Ran(torch.zeros(0, 0))
        drafted = draft.model.forward(batch.rows(), draft.cache, batch.joined_features())
        return Ran(drafted.logits, drafted.hidden)

    def prefill(
        self, name: str, chunk: Chunk, request: Request, hidden: torch.Tensor | None, batch: Batch
    ) -> None:
        """Add a chunk's rows to a draft model's batch; `hidden` [tokens, width] are the target's states."""
        kind = self.table.models[name].kind
        start, stop = chunk.start, chunk.start + chunk.tokens
        if kind == "context_head":
            assert hidden is not None, "the runner captures what is read"
            slots = self.allocator.slots(chunk.request, start, stop)
            batch.silent.append(ContextRows(hidden, torch.arange(start, stop), slots))
            return
        # A row beside which a hidden state stands reads the next token, which the last row does not know yet.
        beside = int(kind in BESIDE)
        stop -= beside and chunk.last
        if stop == start:
            return
        batch.add(
            self.allocator.lines([chunk.request]),
            np.array([stop - start]),
            request.text[start + beside : stop + beside],
            np.arange(start, stop),
            np.arange(start, stop),
            np.array([start]),
            [self._mask(stop - start)],
        )
        if hidden is not None and beside:
            batch.features.append(hidden[: stop - start])

    def _mask(self, rows: int) -> torch.Tensor:
        if rows not in self._causal:
            if len(self._causal) >= 16:  # each chunk length is another mask; few occur at a time
                self._causal.clear()
            self._causal[rows] = torch.ones(rows, rows, dtype=torch.bool).tril()
        return self._causal[rows]


def captured_layers(table: Table, models: Mapping[str, DraftModel]) -> tuple[int, ...]:
    """Name the target's layers that a table's draft models read.

    Raises UserError where a model is missing, reads other layers than another, or lacks a head that the table reads.
    """
    for name, plan in table.models.items():
        if name not in models:
            raise UserError(f"{table.name} drafts with a {plan.kind} called {name}, and none is given")
    captures = {tuple(draft.model.capture) for draft in models.values() if draft.model.capture}
    if len(captures) > 1:
        raise UserError(
            f"the draft models of {table.name} read different layers of the target; give one kind"
        )
    _require_heads(table, models)
    return captures.pop() if captures else ()


def _require_heads(table: Table, models: Mapping[str, DraftModel]) -> None:
    """Hold draft models to the heads that operators name: a missing one would read as full confidence."""
    for plan in table.forwards.values():
        for operator in plan.operators:
            if operator.key != "sample:markov":
                continue
            model = models[plan.model or ""].model
            missing = [
                what
                for what, has in (
                    ("over the token before", model.has_markov),
                    ("of confidence", len(operator.out) < 3 or model.has_confidence),
                )
                if not has
            ]
            if missing:
                raise UserError(
                    f"{table.name} reads a head {missing[0]}, and the draft model {plan.model} has none; "
                    "give a checkpoint with one, or another spec."
                )
