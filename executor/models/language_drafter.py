"""A separate language model as draft model: any checkpoint the loader reads, or the target's first layers."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import torch

from fsm_spec.errors import UserError
from fsm_spec.executor.cache import PagedCache
from fsm_spec.executor.models.config import ModelConfig
from fsm_spec.executor.models.drafter import Drafted, require_vocabulary
from fsm_spec.executor.models.rows import FixedRows, RowBatch
from fsm_spec.executor.models.transformer import Transformer


class LanguageDrafter:
    """Draft with a language model that reads tokens only."""

    capture: tuple[int, ...] = ()
    mask_token_id: int | None = None

    def __init__(self, model: Transformer, target: ModelConfig, where: str = "draft model") -> None:
        require_vocabulary(model.config, target, where)
        self.model = model
        self.config = model.config
        self.dtype = model.dtype

    def forward(
        self, rows: RowBatch | FixedRows, cache: PagedCache, features: torch.Tensor | None = None
    ) -> Drafted:
        """Run T rows; a language model has no second input."""
        assert features is None, "a language model reads no features"
        logits = self.model.forward(rows, cache)
        return Drafted(logits, logits.new_empty(len(rows.token_ids), 0))


def first_layers(target: Transformer, count: int) -> Transformer:
    """Give a model of the target's first layers under its own head; all weights are shared (self-speculation).

    Raises UserError for a count outside 1 .. the target's layers.
    """
    if not 1 <= count <= target.config.layers:
        raise UserError(
            f"the target has {target.config.layers} layers, so {count} cannot be its first ones; "
            f"give a number from 1 to {target.config.layers}."
        )
    shorter = copy(target)
    shorter.config = replace(target.config, layers=count)
    shorter.layers = target.layers[:count]
    shorter.adapter = None
    return shorter
