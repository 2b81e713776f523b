"""EAGLE-3 (arXiv 2503.01840): one layer over a token and the target's features of the position before it.

A row reads the embedding of a token and a feature: the target's low, middle and high hidden states of the position
before that token, projected to one; in a chain or tree of drafts, the head's own stream of the row before.
The head predicts in a reduced vocabulary; `d2t` gives the distance from a draft id to the target's id.

Layouts read, and where from:
 - `eagle/model/cnets.py` and `modeling_llama_kv.py` of SafeAILab/EAGLE: `midlayer.*`, `fc.weight`, `norm.weight`,
   `lm_head.weight`, `d2t`, `t2d`; features are the streams before the target's layers 2, n // 2 and n - 3.
 - `Eagle3SpeculatorConfig` of vllm-project/speculators and `llama_eagle3.py` of vllm-project/vllm: `layers.0.*`, the
   layer's numbers under `transformer_layer_config`, `norm_before_residual`, `eagle_aux_hidden_state_layer_ids`.
Not verified against a published file: none could be fetched. Refused: more than one layer, parallel drafting.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from fsm_spec.errors import UserError
from fsm_spec.executor.cache import PagedCache
from fsm_spec.executor.models import architectures as names
from fsm_spec.executor.models import draft_folder as folders
from fsm_spec.executor.models.config import ModelConfig
from fsm_spec.executor.models.drafter import Drafted, require_layers, require_vocabulary
from fsm_spec.executor.models.rows import FixedRows, RowBatch
from fsm_spec.executor.models.transformer import LayerStack, Transformer, linear, normed
from fsm_spec.executor.models.weights import WeightReader

Tensor = torch.Tensor


@dataclass(frozen=True)
class FeatureHeadConfig:
    """Hold the structure of a feature head."""

    model: ModelConfig
    """its one layer; `vocab` is the target's"""
    capture: tuple[int, ...]
    """streams of the target, as `Transformer.forward_captured` numbers them"""
    target_hidden: int
    draft_vocab: int
    norm_before_residual: bool = False
    """the residual stream starts from the normed feature instead of the feature"""


class FeatureHead:
    """Draft from a token and a feature a row; `hidden` of what it gives is the feature of the next row."""

    def __init__(
        self,
        config: FeatureHeadConfig,
        weights: Mapping[str, Tensor],
        target: Transformer,
        dtype: torch.dtype,
    ) -> None:
        """Read weights by the names of a checkpoint; the embedding is the target's where it has none."""
        model = config.model
        self.shape = config
        self.config = model
        self.dtype = dtype
        self.capture = config.capture
        self.mask_token_id: int | None = None
        layer_name = "midlayer." if any(name.startswith("midlayer.") for name in weights) else "layers.0."
        reader = WeightReader(
            ChainMap(dict(weights), {"embed_tokens.weight": target.embedding}),
            dtype,
            model.rms_eps,
            lambda name: _called(name, layer_name),
        )
        layer = reader.layer(model, 0, inputs=2 * model.hidden)
        self.stack = LayerStack(model, [layer], dtype)
        self.embedding = reader.matrix("embed_tokens.weight", model.vocab, model.hidden)
        self.embedding_norm = reader.norm(f"{layer_name}input_layernorm.weight", model.hidden)
        self.fuse = reader.matrix("fc.weight", model.hidden, len(config.capture) * config.target_hidden)
        self.final_norm = reader.norm("norm.weight", model.hidden)
        self.head = reader.matrix("lm_head.weight", config.draft_vocab, model.hidden)
        self.target_ids = _target_ids(reader, config)

    @torch.inference_mode()
    def forward(
        self, rows: RowBatch | FixedRows, cache: PagedCache, features: Tensor | None = None
    ) -> Drafted:
        """Run T rows on features [T, n * target_hidden] of the target, or [T, hidden] of the head itself."""
        assert features is not None, "a feature head reads features"
        stack, layer = self.stack, self.stack.layers[0]
        stream = features.to(stack.wide, copy=True)
        if features.shape[1] == self.fuse.shape[1]:
            stream = linear(features.to(self.dtype), self.fuse).to(stack.wide)
        seen = normed(stream, layer.attention_norm)
        if self.shape.norm_before_residual:
            stream = seen.clone()
        token = functional.embedding(rows.token_ids, self.embedding).to(stack.wide)
        read = torch.cat((normed(token, self.embedding_norm), seen), 1)
        stream = stack.run(stream, rows, cache, first_read=read)
        chosen = normed(stream.index_select(0, rows.logits_rows), self.final_norm)
        return Drafted(self._widen(linear(chosen.to(self.dtype), self.head).float()), stream)

    def _widen(self, logits: Tensor) -> Tensor:
        """Lay logits of draft ids out over the target's vocabulary; tokens without a draft id are impossible."""
        if self.target_ids is None:
            return logits
        wide = logits.new_full((len(logits), self.config.vocab), -torch.inf)
        wide[:, self.target_ids] = logits
        return wide


def _called(name: str, layer_name: str) -> str:
    """Name a weight as the checkpoint does; the norm before attention is the feature's here."""
    prefix = "model.layers.0."
    if name == prefix + names.ATTENTION_NORM:
        return layer_name + "hidden_norm.weight"
    return layer_name + name.removeprefix(prefix) if name.startswith(prefix) else name


def _target_ids(reader: WeightReader, config: FeatureHeadConfig) -> Tensor | None:
    """Read the table of target ids, None where the vocabularies are one."""
    if config.draft_vocab == config.model.vocab:
        return None
    ids = torch.arange(config.draft_vocab) + reader.table("d2t", config.draft_vocab)
    if not bool(((ids >= 0) & (ids < config.model.vocab)).all()) or len(ids.unique()) < len(ids):
        raise UserError(
            f'weight "d2t" does not map {config.draft_vocab} draft ids to different ones of the target\'s '
            f"{config.model.vocab}; fetch the model again."
        )
    return ids


def load_feature_head(folder: Path, target: Transformer, dtype: torch.dtype) -> FeatureHead:
    """Load an EAGLE-3 checkpoint for a target; raises UserError where a file or tensor does not fit."""
    published = folders.read_draft_config(folder)
    config = parse_feature_head(published, target.config, str(folder / "config.json"))
    with folders.open_draft_weights(folder) as weights:
        return FeatureHead(config, weights, target, dtype)


def parse_feature_head(published: dict[str, Any], target: ModelConfig, where: str) -> FeatureHeadConfig:
    """Translate config.json of an EAGLE-3 checkpoint, and hold it to the target."""
    nested = published.get("transformer_layer_config")
    layer = {**published, **(nested if isinstance(nested, dict) else {})}
    folders.refuse_options(
        layer, {"num_hidden_layers": 1, "parallel_drafting": False, "logit_scale": 1.0}, where
    )
    model = replace(folders.layer_config({**layer, "num_hidden_layers": 1}, where), tied=False)
    require_vocabulary(model, target, where)
    capture = _capture(published, target, where)
    require_layers(capture, target, where)
    target_hidden = folders.integer(published, "target_hidden_size", where, model.hidden)
    if target_hidden != target.hidden:
        raise UserError(
            f"{where}: the head reads hidden states of {target_hidden} numbers and the target has {target.hidden}; "
            "use a draft model of this target."
        )
    draft_vocab = folders.integer(published, "draft_vocab_size", where, model.vocab)
    if not 1 <= draft_vocab <= model.vocab:
        raise UserError(f'{where}: "draft_vocab_size" has to be from 1 to {model.vocab}, not {draft_vocab}.')
    return FeatureHeadConfig(
        model, capture, target_hidden, draft_vocab, bool(published.get("norm_before_residual", False))
    )


def _capture(published: Mapping[str, Any], target: ModelConfig, where: str) -> tuple[int, ...]:
    """Name the target's streams; published numbers name the layers that they enter."""
    nested = published.get("eagle_config")
    values = {**(nested if isinstance(nested, dict) else {}), **published}
    if values.get("eagle_aux_hidden_state_layer_ids") is None:
        entered: tuple[int, ...] = (2, target.layers // 2, target.layers - 3)
    else:
        entered = folders.layer_numbers(values, "eagle_aux_hidden_state_layer_ids", where)
    if len(entered) < 2:
        raise UserError(f"{where}: the head has to read several of the target's layers, not {list(entered)}.")
    return tuple(layer - 1 for layer in entered)
