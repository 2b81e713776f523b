"""Multi-token prediction: a module in the target's own checkpoint that predicts the token after the next.

A row reads the embedding of a token and the target's normed hidden state of the position before it; in a chain, the
module's own normed state of the row before. One transformer layer follows; embedding and head are the target's
(DeepSeek-V3, arXiv 2412.19437, section 2.2; MiMo, arXiv 2505.07608).

Layout read, and where from: `mimo_mtp.py` of vllm-project/vllm, which loads MiMo-7B: `model.mtp_layers.0.*` with
`token_layernorm`, `hidden_layernorm`, `input_proj` over [hidden, token], the layer's own weights, and
`final_layernorm`. It is the published module whose target our loader reads; DeepSeek's and Qwen3-Next's stand on
layers that it does not.
Not verified against a published file: none could be fetched. vLLM clears the token of position 0; training did not,
nor does this. Modules after the first are not read: as in serving engines, the first one drafts the whole chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from fsm_spec.executor.cache import PagedCache
from fsm_spec.executor.models.draft_folder import open_draft_weights
from fsm_spec.executor.models.drafter import Drafted
from fsm_spec.executor.models.rows import FixedRows, RowBatch
from fsm_spec.executor.models.transformer import LayerStack, Transformer, linear, normed
from fsm_spec.executor.models.weights import WeightReader

Tensor = torch.Tensor

MODULE = "model.mtp_layers.0."


class TokenHeads:
    """Draft a chain with the target's module; `hidden` of what it gives is the feature of the next row."""

    def __init__(self, weights: Mapping[str, Tensor], target: Transformer, dtype: torch.dtype) -> None:
        """Read the module out of the target's weights."""
        self.config = replace(target.config, layers=1)
        self.dtype = dtype
        self.capture: tuple[int, ...] = (target.config.layers,)
        self.mask_token_id: int | None = None
        self.target = target
        reader = WeightReader(weights, dtype, target.config.rms_eps, _called)
        self.stack = LayerStack(self.config, [reader.layer(self.config, 0)], dtype)
        hidden = self.config.hidden
        self.token_norm = reader.norm(f"{MODULE}token_layernorm.weight", hidden)
        self.hidden_norm = reader.norm(f"{MODULE}hidden_layernorm.weight", hidden)
        self.entry = reader.matrix(f"{MODULE}input_proj.weight", hidden, 2 * hidden)
        self.final_norm = reader.norm(f"{MODULE}final_layernorm.weight", hidden)

    @torch.inference_mode()
    def forward(
        self, rows: RowBatch | FixedRows, cache: PagedCache, features: Tensor | None = None
    ) -> Drafted:
        """Run T rows on features [T, hidden], the target's or the module's own."""
        assert features is not None, "a token head reads features"
        wide = self.stack.wide
        token = normed(self.target.embed(rows.token_ids), self.token_norm)
        read = torch.cat((normed(features.to(wide), self.hidden_norm), token), 1)
        stream = self.stack.run(linear(read.to(self.dtype), self.entry).to(wide), rows, cache)
        hidden = normed(stream, self.final_norm)
        return Drafted(self.target.read_logits(hidden.index_select(0, rows.logits_rows)), hidden)


def _called(name: str) -> str:
    return name.replace("model.layers.0.", MODULE)


def load_token_heads(folder: Path, target: Transformer, dtype: torch.dtype) -> TokenHeads:
    """Load the module out of the folder of a target; raises UserError where a tensor is missing or misshapen."""
    with open_draft_weights(folder) as weights:
        return TokenHeads(weights, target, dtype)
