"""Load the draft models that a table names: checkpoints made for the target, or the target's own first layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from fsm_spec.executor.draft_option import LAYERS, RANDOM, require_drafts
from fsm_spec.executor.models.context_head import load_context_head
from fsm_spec.executor.models.drafter import Drafter
from fsm_spec.executor.models.feature_head import load_feature_head
from fsm_spec.executor.models.language_drafter import LanguageDrafter, first_layers
from fsm_spec.executor.models.load import LoadedModel, load_model
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.executor.models.token_heads import load_token_heads
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.table import Table


def load_drafters(table: Table, given: Mapping[str, str], target: LoadedModel) -> dict[str, Drafter]:
    """Load a draft model for each name of a table -> by name.

    `given` are folders, `layers:N` for language models, or `random` for weights that are drawn.
    Token heads lie in the target's own folder unless another is given. Raises UserError for a name that is missing
    or unknown, and for a checkpoint that does not fit.
    """
    require_drafts(table, given)
    drawn = random_drafters(table, target.transformer) if RANDOM in given.values() else {}
    return {
        name: drawn[name] if given.get(name) == RANDOM else _load(plan.kind, given.get(name), target)
        for name, plan in table.models.items()
    }


def _load(kind: str, place: str | None, target: LoadedModel) -> Drafter:
    model = target.transformer
    if kind == "token_heads" and place is None:
        return load_token_heads(target.folder, model, model.dtype)
    assert place is not None, "`require_drafts` asks for it"
    if kind == "language_model":
        if place.startswith(LAYERS):
            return LanguageDrafter(first_layers(model, int(place.removeprefix(LAYERS))), target.config)
        return LanguageDrafter(load_model(place, model.dtype).transformer, target.config, place)
    loaders: dict[str, Callable[[Path, Transformer, torch.dtype], Drafter]] = {
        "context_head": load_context_head,
        "feature_head": load_feature_head,
        "token_heads": load_token_heads,
    }
    return loaders[kind](Path(place), model, model.dtype)
