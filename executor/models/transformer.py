"""The decoder-only transformer, and the one forward that serves every row plan.

The forward knows rows only: their tokens, positions, slots, what they see, and which of them carry an adapter.
What is the same for all layers (rotary tables, masks, slots) is computed once; at one row a layer takes about 20
launches, and each costs as much as its work.
The residual stream, norms, attention and the KV cache of a bfloat16 model are float32; only the matrix products
with weights are bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional

from fsm_spec.errors import UserError
from fsm_spec.executor.adapter import Adapter
from fsm_spec.executor.cache import PagedCache
from fsm_spec.executor.models import architectures as names
from fsm_spec.executor.models.config import ModelConfig
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.kernels.adapter import add_low_rank
from fsm_spec.kernels.attention import AttentionGroup, attend, plan_attention

Tensor = torch.Tensor
# Up to here the weight is cheaper as the left factor; at 64 rows both forms cost the same.
FEW_ROWS = 32


@dataclass(frozen=True)
class Norm:
    """Hold an RMSNorm: its weight times sqrt(n), and sqrt(n eps), for n dimensions."""

    weight: Tensor
    floor: Tensor


@dataclass(frozen=True)
class Layer:
    """Hold one layer's weights; q, k, v are one matrix, gate and up another."""

    attention_norm: Norm
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Norm | None
    key_norm: Norm | None
    output: Tensor
    output_bias: Tensor | None
    ffn_norm: Norm
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class _Pass:
    """Hold what all layers of one forward share."""

    slots: Tensor
    cos: Tensor
    sin: Tensor
    groups: list[AttentionGroup]
    gated: Tensor | None


class Transformer:
    """Run rows through a model; weights are read once, fused, and kept in `dtype`.

    `adapter` may be set at any time; it acts on the rows that a batch gates.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self.config = config
        self.dtype = dtype
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.adapter: Adapter | None = None
        loader = _Loader(weights, dtype, self.wide, config.rms_eps)
        self.embedding = loader.matrix(names.EMBEDDING, config.vocab, config.hidden)
        self.head = self.embedding
        if not config.tied:
            self.head = loader.matrix(names.HEAD, config.vocab, config.hidden)
        self.final_norm = loader.norm(names.FINAL_NORM, config.hidden)
        self.layers = [loader.layer(config, index) for index in range(config.layers)]
        self.frequencies = rotary_frequencies(config)

    @torch.inference_mode()
    def forward(self, rows: RowBatch, cache: PagedCache) -> Tensor:
        """Run T rows, write their K and V to their slots, and return logits [L, vocab] float32 of `logits_rows`."""
        shared = self._prepare(rows, cache)
        stream = functional.embedding(rows.token_ids, self.embedding).to(self.wide)
        for index, layer in enumerate(self.layers):
            stream = self._attention(stream, layer, cache.layers[index], shared, index)
            stream = self._feed_forward(stream, layer, shared, index)
        chosen = stream.index_select(0, rows.logits_rows)
        return _linear(self._normed(chosen, self.final_norm).to(self.dtype), self.head).float()

    def _prepare(self, rows: RowBatch, cache: PagedCache) -> _Pass:
        """Compute what does not depend on the layer."""
        config = self.config
        angles = torch.outer(rows.positions.double(), self.frequencies)
        cos, sin = angles.cos(), angles.sin()
        # The query's share of the tables carries the 1 / sqrt(head_dim) of the attention scores.
        scale = torch.ones(config.heads + config.kv_heads, 1, dtype=torch.float64)
        scale[: config.heads] = 1 / math.sqrt(config.head_dim)
        gated = None
        if self.adapter is not None and rows.adapter_rows is not None:
            found = rows.adapter_rows.nonzero().view(-1)
            gated = found if len(found) else None
        return _Pass(
            slots=rows.slots,
            cos=(torch.cat((cos, cos), 1)[:, None] * scale).to(self.wide),
            sin=(torch.cat((-sin, sin), 1)[:, None] * scale).to(self.wide),
            groups=plan_attention(
                rows.row_start, rows.slots, rows.context_slots, rows.masks, config.kv_heads, cache.dtype
            ),
            gated=gated,
        )

    def _attention(self, stream: Tensor, layer: Layer, cache: Tensor, shared: _Pass, index: int) -> Tensor:
        """Add attention to the residual stream; K and V are written before anything reads them."""
        config = self.config
        total, heads, keys, head_dim = len(stream), config.heads, config.kv_heads, config.head_dim
        normed = self._normed(stream, layer.attention_norm).to(self.dtype)
        qkv = self._project(normed, layer.qkv, layer.qkv_bias, shared, index, "qkv")
        lines = qkv.to(self.wide).view(total, heads + 2 * keys, head_dim)
        turning = lines[:, : heads + keys]
        if layer.query_norm is not None and layer.key_norm is not None:
            lines[:, :heads] = self._normed(lines[:, :heads], layer.query_norm)
            lines[:, heads : heads + keys] = self._normed(lines[:, heads : heads + keys], layer.key_norm)
        halves = turning.unflatten(2, (2, head_dim // 2)).flip(2).flatten(2)
        turning.mul_(shared.cos).addcmul_(halves, shared.sin)
        cache.index_copy_(0, shared.slots, lines[:, heads:].unflatten(1, (2, keys)))
        seen = attend(lines[:, :heads], cache, shared.groups).to(self.dtype)
        return stream.add_(self._project(seen, layer.output, layer.output_bias, shared, index, "output"))

    def _feed_forward(self, stream: Tensor, layer: Layer, shared: _Pass, index: int) -> Tensor:
        """Add the gated feed-forward network (SwiGLU, arXiv:2002.05202) to the residual stream."""
        normed = self._normed(stream, layer.ffn_norm).to(self.dtype)
        gate, up = self._project(normed, layer.gate_up, None, shared, index, "gate_up").chunk(2, 1)
        inner = functional.silu(gate).mul_(up)
        return stream.add_(self._project(inner, layer.down, None, shared, index, "down"))

    def _normed(self, lines: Tensor, norm: Norm) -> Tensor:
        """Apply RMSNorm (arXiv:1910.07467) to the last dimension: x / sqrt(|x|^2 + n eps) * (sqrt(n) weight).

        Four launches, where the operator of torch takes seven on a CPU.
        """
        length = torch.linalg.vector_norm(lines, dim=-1, keepdim=True)
        normed: Tensor = (lines / length.hypot_(norm.floor)).mul_(norm.weight)
        return normed

    def _project(
        self, rows_in: Tensor, weight: Tensor, bias: Tensor | None, shared: _Pass, index: int, place: str
    ) -> Tensor:
        """Apply a weight to all rows, and the adapter's update of that weight to the gated rows."""
        out = _linear(rows_in, weight, bias)
        if shared.gated is not None and self.adapter is not None:
            update = self.adapter.layers[index].get(place)
            if update is not None:
                add_low_rank(out, rows_in, shared.gated, update.down, update.up)
        return out


def _linear(rows_in: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply rows with a weight [outputs, inputs].

    In bfloat16 with few rows, `linear` packs the weight anew at each call, which costs more than the product.
    Measured for 3072 x 576 on one core: 1 row 405 us, as `mv` 277 us; 8 rows 494 us, as `weight @ rows.T` 347 us.
    """
    count = len(rows_in)
    if rows_in.dtype != torch.bfloat16 or count > FEW_ROWS:
        return functional.linear(rows_in, weight, bias)
    product = torch.mv(weight, rows_in[0])[None] if count == 1 else torch.mm(weight, rows_in.t()).t()
    out = product.contiguous()
    return out if bias is None else out.add_(bias)


def rotary_frequencies(config: ModelConfig) -> Tensor:
    """Compute the angle per position of each pair of dimensions, [head_dim / 2] float64 (RoPE, arXiv:2104.09864).

    `llama3` scaling keeps short wavelengths, divides long ones by the factor, and blends between the two bounds
    (Llama 3.1 reference code, `apply_scaling`).
    """
    pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float64)
    frequencies = 1.0 / config.rope_theta ** (pairs / config.head_dim)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "factors":
        return frequencies / torch.tensor(scaling.factors, dtype=torch.float64)
    turns = scaling.original_context * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    blend = ((turns - scaling.low_freq_factor) / span).clamp(0, 1)
    return blend * frequencies + (1 - blend) * frequencies / scaling.factor


class _Loader:
    """Read weights by name, check their shapes, fuse and convert them."""

    def __init__(
        self, weights: Mapping[str, Tensor], dtype: torch.dtype, wide: torch.dtype, rms_eps: float
    ) -> None:
        self.weights = weights
        self.dtype = dtype
        self.wide = wide
        self.rms_eps = rms_eps

    def layer(self, config: ModelConfig, index: int) -> Layer:
        """Read one layer."""
        prefix = f"model.layers.{index}."
        query, keys, hidden = config.heads * config.head_dim, config.kv_heads * config.head_dim, config.hidden
        parts = [(prefix + names.QUERY, query), (prefix + names.KEY, keys), (prefix + names.VALUE, keys)]
        wide = [(prefix + names.GATE, config.ffn), (prefix + names.UP, config.ffn)]
        return Layer(
            attention_norm=self.norm(prefix + names.ATTENTION_NORM, hidden),
            qkv=torch.cat([self.matrix(f"{name}.weight", size, hidden) for name, size in parts]),
            qkv_bias=torch.cat([self.bias(name, size) for name, size in parts]) if config.qkv_bias else None,
            query_norm=self.norm(prefix + names.QUERY_NORM, config.head_dim) if config.qk_norm else None,
            key_norm=self.norm(prefix + names.KEY_NORM, config.head_dim) if config.qk_norm else None,
            output=self.matrix(f"{prefix}{names.OUTPUT}.weight", hidden, query),
            output_bias=self.bias(prefix + names.OUTPUT, hidden) if config.output_bias else None,
            ffn_norm=self.norm(prefix + names.FFN_NORM, hidden),
            gate_up=torch.cat([self.matrix(f"{name}.weight", size, hidden) for name, size in wide]),
            down=self.matrix(f"{prefix}{names.DOWN}.weight", hidden, config.ffn),
        )

    def matrix(self, name: str, *shape: int) -> Tensor:
        """Read a weight in the dtype of matrix products."""
        return self._read(name, shape).to(self.dtype)

    def norm(self, name: str, size: int) -> Norm:
        """Read the weight of a norm, which stays wide."""
        weight = self._read(name, (size,)).double() * math.sqrt(size)
        return Norm(weight.to(self.wide), torch.tensor(math.sqrt(size * self.rms_eps), dtype=self.wide))

    def bias(self, name: str, size: int) -> Tensor:
        """Read a bias in the dtype of matrix products."""
        return self._read(f"{name}.bias", (size,)).to(self.dtype)

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Fetch a tensor; raises UserError where it is missing or of another shape."""
        try:
            tensor = self.weights[name]
        except KeyError:
            raise UserError(
                f'the model has no weight "{name}"; its files are incomplete, fetch it again.'
            ) from None
        if tuple(tensor.shape) != shape:
            raise UserError(
                f'weight "{name}" has shape {list(tensor.shape)}, config.json asks for {list(shape)}.'
            )
        return tensor
