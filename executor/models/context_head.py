"""Draft heads with the target's hidden states as context: DFlash (arXiv 2602.06036) and DSpark.

A few transformer layers share the target's embedding and language model head. The target's hidden states of some
layers, side by side, are projected and normalised once; each draft layer turns them into K and V of context rows,
which have no query. The rows of a block (the newest token and masks) see the context and one another.

Layouts read, and where from:
 - DFlash: `dflash/model.py` and `tests/fixtures` of z-lab/dflash (DFlashDraftModel on Qwen3 layers): `fc.weight`,
   `hidden_norm.weight`, `norm.weight`, `layers.N.*`; numbers at the top of config.json or under `dflash_config`.
 - DSpark: `deepspec/modeling/dspark` of deepseek-ai/DeepSpec (Qwen3DSparkModel): the same, plus `embed_tokens.weight`,
   `lm_head.weight`, `markov_head.*` (`markov_head.py`) and `confidence_head.proj.*` (`confidence_head.py`).
Not verified against a published file: none could be fetched. Not supported, and refused: sliding or causal layers,
output multipliers and soft caps, DFlash2's convolutions and candidate selector, DSpark on mixture-of-experts layers.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fsm_spec.errors import UserError
from fsm_spec.executor.cache import PagedCache
from fsm_spec.executor.models import architectures as names
from fsm_spec.executor.models import draft_folder as folders
from fsm_spec.executor.models.confidence_head import ConfidenceHead, read_temperatures
from fsm_spec.executor.models.config import ModelConfig
from fsm_spec.executor.models.drafter import ContextRows, Drafted, require_layers, require_vocabulary
from fsm_spec.executor.models.markov_head import KINDS, MarkovHead
from fsm_spec.executor.models.rows import FixedRows, RowBatch
from fsm_spec.executor.models.transformer import Transformer, linear, normed
from fsm_spec.executor.models.weights import WeightReader
from fsm_spec.kernels.fixed.cache import kv_append
from fsm_spec.kernels.layer import turn

Tensor = torch.Tensor

FUSE, FUSE_NORM = "fc.weight", "hidden_norm.weight"
# Keys that change what a layer computes, with the values under which they change nothing.
_NEUTRAL: dict[str, object] = {
    "is_causal": False,
    "causal": False,
    "use_swa": False,
    "input_embedding_scale": 1.0,
    "output_multiplier": 1.0,
    "final_logit_softcapping": None,
    "attention_sink_bias": False,
    "conv_kernel_size": None,
    "selector_rank": None,
}


@dataclass(frozen=True)
class ContextHeadConfig:
    """Hold the structure of a context head."""

    model: ModelConfig
    """the draft layers, with the target's hidden size and vocabulary"""
    capture: tuple[int, ...]
    """streams of the target, as `Transformer.forward_captured` numbers them"""
    block: int
    """rows of a block that the head was trained on"""
    mask_token_id: int | None
    markov: str | None = None
    """kind of the head over neighbouring tokens, None without one"""
    markov_rank: int = 0
    confidence: bool = False
    confidence_with_markov: bool = False


class ContextHead:
    """Draft blocks of rows in parallel, given the target's hidden states as context.

    `markov` and `confidence` are None where the checkpoint has no such head.
    """

    def __init__(
        self,
        config: ContextHeadConfig,
        weights: Mapping[str, Tensor],
        target: Transformer,
        dtype: torch.dtype,
        temperatures: Tensor | None = None,
    ) -> None:
        """Read weights by the names of a checkpoint; embedding and head are the target's where it has none."""
        # Checkpoints that repeat the target's embedding and head repeat them frozen, so sharing loses nothing.
        shared = {"embed_tokens.weight": target.embedding, names.HEAD: target.head}
        self.shape = config
        self.config = config.model
        self.dtype = dtype
        self.capture = config.capture
        self.mask_token_id = config.mask_token_id
        self.body = Transformer(config.model, ChainMap(shared, dict(weights)), dtype, _called)
        reader = WeightReader(weights, dtype, config.model.rms_eps)
        hidden = config.model.hidden
        self.fuse = reader.matrix(FUSE, hidden, len(config.capture) * target.config.hidden)
        self.fuse_norm = reader.norm(FUSE_NORM, hidden)
        self.markov = None
        if config.markov is not None:
            self.markov = MarkovHead(config.markov, config.markov_rank, hidden, config.model.vocab, reader)
        self.confidence = None
        if config.confidence:
            read = hidden + (config.markov_rank if config.confidence_with_markov else 0)
            self.confidence = ConfidenceHead(reader, read, temperatures)

    @property
    def has_markov(self) -> bool:
        """Tell whether a head over the token before stands on the draft logits."""
        return self.markov is not None

    @property
    def has_confidence(self) -> bool:
        """Tell whether a head predicts which drafts are accepted."""
        return self.confidence is not None

    def biases(self, hidden: Tensor) -> Callable[[int, Tensor], Tensor]:
        """Give the bias [n, vocab] of draft k by the tokens [n] before it, for k = 0, 1, .. in order.

        `hidden` [n, g, hidden] are the normed states of the draft rows.
        """
        assert self.markov is not None, "the runner has asked for the head"
        head, state = self.markov, self.markov.start(len(hidden))

        def bias(step: int, previous: Tensor) -> Tensor:
            nonlocal state
            added, state = head.step(state, previous, hidden[:, step])
            return added

        return bias

    def survival(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Give the chance that each draft and all before it are accepted, [n, g]; `previous` [n, g] precede them."""
        assert self.confidence is not None, "the runner has asked for the head"
        embedded = None
        if self.shape.confidence_with_markov and self.markov is not None:
            embedded = self.markov.embed(previous)
        return self.confidence.survival(self.confidence.logits(hidden, embedded))

    @torch.inference_mode()
    def write_context(self, rows: ContextRows, cache: PagedCache) -> None:
        """Write K and V of context rows to their slots in every layer."""
        body, config = self.body, self.config
        queries = config.heads * config.head_dim
        fused = linear(rows.features.to(self.dtype), self.fuse).to(body.wide)
        context = normed(fused, self.fuse_norm).to(self.dtype)
        cos, sin = (table[:, config.heads :] for table in body.rotary(rows.positions))
        for layer, store in zip(body.layers, cache.layers, strict=True):
            bias = None if layer.qkv_bias is None else layer.qkv_bias[queries:]
            lines = linear(context, layer.qkv[queries:], bias).to(body.wide)
            lines = lines.view(len(context), 2 * config.kv_heads, config.head_dim)
            keys = lines[:, : config.kv_heads]
            if layer.key_norm is not None:
                lines[:, : config.kv_heads] = normed(keys, layer.key_norm)
            turn(keys, cos, sin)
            kept, values = lines[None].chunk(2, 2)
            kv_append(store, kept, values, rows.slots[None].int())

    @torch.inference_mode()
    def forward(
        self, rows: RowBatch | FixedRows, cache: PagedCache, features: Tensor | None = None
    ) -> Drafted:
        """Run the rows of blocks; their context has been written before. `hidden` is normed, as the heads read it."""
        assert features is None, "rows with a query read no features"
        stream = self.body.run(self.body.embed(rows.token_ids), rows, cache)
        hidden = normed(stream, self.body.final_norm)
        return Drafted(self.body.read_logits(hidden.index_select(0, rows.logits_rows)), hidden)


def _called(name: str) -> str:
    return name.removeprefix("model.")


def load_context_head(folder: Path, target: Transformer, dtype: torch.dtype) -> ContextHead:
    """Load a DFlash or DSpark checkpoint for a target; raises UserError where a file or tensor does not fit."""
    published = folders.read_draft_config(folder)
    config = parse_context_head(published, target.config, str(folder / "config.json"))
    temperatures = read_temperatures(folder, config.block) if config.confidence else None
    with folders.open_draft_weights(folder) as weights:
        return ContextHead(config, weights, target, dtype, temperatures)


def parse_context_head(published: dict[str, Any], target: ModelConfig, where: str) -> ContextHeadConfig:
    """Translate config.json of a DFlash or DSpark checkpoint, and hold it to the target."""
    nested = published.get("dflash_config")
    values = {**published, **(nested if isinstance(nested, dict) else {})}
    folders.refuse_options(values, _NEUTRAL, where)
    if any(kind != "full_attention" for kind in values.get("layer_types") or ()):
        raise UserError(f"{where}: layers with sliding attention are not supported; use another draft model.")
    model = replace(folders.layer_config(published, where), tied=False)
    require_vocabulary(model, target, where)
    if model.hidden != target.hidden:
        raise UserError(
            f"{where}: hidden_size is {model.hidden} and the target's {target.hidden}, whose embedding the head "
            "shares; use a draft model of this target."
        )
    layers = folders.layer_numbers(values, "target_layer_ids", where)
    # The last hidden state that transformers gives is the normed one; all others are streams after a layer.
    capture = tuple(target.layers if layer == target.layers - 1 else layer for layer in layers)
    require_layers(capture, target, where)
    heads = _parse_heads(values, where)
    return ContextHeadConfig(
        model,
        capture,
        max(1, folders.integer(values, "block_size", where, 16)),
        folders.integer(values, "mask_token_id", where),
        **heads,
    )


def _parse_heads(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Read which heads stand on the draft logits; a DSpark checkpoint has to say it."""
    says = "markov_rank" in values or "enable_confidence_head" in values
    if not says and names.SEQUENTIAL_DRAFTER not in (values.get("architectures") or ()):
        return {}
    rank = folders.integer(values, "markov_rank", where)
    kind = str(values.get("markov_head_type", "")).lower() if rank else None
    if kind is not None and kind not in KINDS:
        raise UserError(f'{where}: "markov_head_type" {kind!r} is unknown; known are {", ".join(KINDS)}.')
    confidence = values.get("enable_confidence_head")
    with_markov = values.get("confidence_head_with_markov", False if confidence is False else None)
    if not isinstance(confidence, bool) or not isinstance(with_markov, bool):
        raise UserError(
            f'{where}: "enable_confidence_head" and "confidence_head_with_markov" have to be true or false; '
            "a head that is not named is not guessed."
        )
    if confidence and with_markov and kind is None:
        raise UserError(
            f'{where}: the confidence head reads the Markov head\'s embeddings, and "markov_rank" is 0; '
            "set confidence_head_with_markov to false, or use a checkpoint with a Markov head."
        )
    return {
        "markov": kind,
        "markov_rank": rank,
        "confidence": confidence,
        "confidence_with_markov": with_markov and confidence,
    }
