"""Draft models: what a runner needs of one, whatever its structure.

A draft model runs over row batches like the target, with K and V of its own in slots of the same numbers.
Four structures exist: a language model (`language_drafter.py`), a head with the target's hidden states as context
(`context_head.py`), one with them as a second input of each row (`feature_head.py`), and a module that the target's
own checkpoint carries for the token after the next (`token_heads.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from fsm_spec.errors import UserError
from fsm_spec.executor.cache import PagedCache
from fsm_spec.executor.models.config import ModelConfig
from fsm_spec.executor.models.rows import FixedRows, RowBatch


@dataclass(frozen=True)
class Drafted:
    """Hold what T rows of a draft model gave."""

    logits: torch.Tensor
    """[L, vocabulary of the target] float32, of the rows that want logits"""
    hidden: torch.Tensor
    """[T, hidden]: what a later row's features, or a head on the draft logits, read"""


@dataclass(frozen=True)
class ContextRows:
    """Hold C rows without a query: only their K and V are written."""

    features: torch.Tensor
    """[C, width]: the target's captured hidden states"""
    positions: torch.Tensor
    """[C] int64"""
    slots: torch.Tensor
    """[C] int64"""


class Drafter(Protocol):
    """Be what a runner needs of a draft model.

    `config` shapes its KV cache; `capture` names the target's streams that its features are made of
    (`Transformer.forward_captured`), side by side in that order; `mask_token_id` is the token that its mask rows were
    trained with, None where it has none.
    """

    config: ModelConfig
    dtype: torch.dtype
    capture: tuple[int, ...]
    mask_token_id: int | None

    def forward(
        self, rows: RowBatch | FixedRows, cache: PagedCache, features: torch.Tensor | None = None
    ) -> Drafted:
        """Run T rows, write their K and V to their slots; `features` [T, width] is a second input of each row."""


def require_vocabulary(draft: ModelConfig, target: ModelConfig, where: str) -> None:
    """Raise UserError where a draft model speaks another vocabulary than the target."""
    if draft.vocab != target.vocab:
        raise UserError(
            f"{where}: the draft model has {draft.vocab} tokens and the target {target.vocab}; "
            "use a draft model of this target."
        )


def require_layers(capture: tuple[int, ...], target: ModelConfig, where: str) -> None:
    """Raise UserError where a draft model reads layers that the target does not have."""
    if not capture or not all(-1 <= layer <= target.layers for layer in capture):
        raise UserError(
            f"{where}: the draft model reads the target's layers {list(capture)}, and the target has "
            f"{target.layers}; use a draft model of this target."
        )
