"""The decoder-only transformer, and the one forward that serves every row plan.

The forward knows rows only: their tokens, positions, slots, what they see, and which of them carry an adapter.
What is the same for all layers (rotary tables, masks, slots) is computed once; at one row a layer takes about 20
launches, and each costs as much as its work.
The residual stream, norms, attention and the KV cache of a bfloat16 model are float32; only the matrix products
with weights are bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from fsm_spec.executor.adapter import Adapter, LowRank
from fsm_spec.executor.cache import PagedCache
from fsm_spec.executor.models import architectures as names
from fsm_spec.executor.models.config import ModelConfig
from fsm_spec.executor.models.experts import mix_experts
from fsm_spec.executor.models.rope import query_gain, yarn_frequencies
from fsm_spec.executor.models.rows import FixedRows, ForwardRows, JoinedRows, RowBatch
from fsm_spec.executor.models.weights import Layer, Norm, WeightReader, wide_dtype
from fsm_spec.kernels import layer as kernels
from fsm_spec.kernels.adapter import add_low_rank
from fsm_spec.kernels.attention import AttentionGroup, attend, plan_attention
from fsm_spec.kernels.backends import BACKENDS
from fsm_spec.kernels.fixed.adapter import gated_linear
from fsm_spec.kernels.fixed.layer import add_norm, gate, turn_append
from fsm_spec.kernels.layer import turn_heads

Tensor = torch.Tensor
# Up to here the weight is the left factor. Measured for 3072 x 576 on one core: at 64 rows 635 us and 272 us for
# turning the product round, against 1,053 us of `functional.linear`; at 256 rows 2,224 + 1,801 us against 3,099 us.
FEW_ROWS = 64
# Names the embedding among the streams that can be captured; the final norm's output is number `config.layers`.
EMBEDDED = -1


class Pass(Protocol):
    """Be what all layers of one forward share: rotary tables, and what differs between ragged and fixed rows."""

    @property
    def cos(self) -> Tensor:
        """Give the cosines of `LayerStack.rotary`."""

    @property
    def sin(self) -> Tensor:
        """Give the sines of `LayerStack.rotary`."""

    def norm(self, stream: Tensor, added: Tensor | None, norm: Norm, dtype: torch.dtype) -> Tensor:
        """Add to the stream [T, hidden], in place, and give its norm in a dtype."""

    def write(self, qkv: Tensor, norms: list[Tensor], cache: Tensor) -> Tensor:
        """Turn queries and keys, write K and V to their slots of a layer's cache -> queries [T, heads, head_dim]."""

    def attend(self, query: Tensor, cache: Tensor) -> Tensor:
        """Attend queries [T, heads, head_dim] over what their rows see -> [T, heads * head_dim]."""

    def gate(self, gate_up: Tensor) -> Tensor:
        """Gate one half of each row by the other (SwiGLU, arXiv:2002.05202), [T, 2 * n] -> [T, n]."""

    def project(self, rows_in: Tensor, weight: Tensor, bias: Tensor | None, update: LowRank | None) -> Tensor:
        """Apply a weight to all rows [T, inputs], and its adapter's update to the gated rows, as `product` does."""


@dataclass(frozen=True)
class RaggedPass:
    """Run the live rows of a `RowBatch`."""

    slots: Tensor
    cos: Tensor
    sin: Tensor
    groups: list[AttentionGroup]
    gated: Tensor | None

    def norm(self, stream: Tensor, added: Tensor | None, norm: Norm, dtype: torch.dtype) -> Tensor:
        """Add to the stream, in place, and give its norm."""
        if added is not None:
            stream.add_(added)
        return normed(stream, norm).to(dtype)

    def write(self, qkv: Tensor, norms: list[Tensor], cache: Tensor) -> Tensor:
        """Turn queries and keys, write K and V, and give the queries."""
        kv_heads = cache.shape[2]
        heads = self.cos.shape[1] - kv_heads
        lines = qkv.to(self.cos.dtype, memory_format=torch.contiguous_format)
        lines = lines.view(len(qkv), heads + 2 * kv_heads, cache.shape[3])
        turn_heads(lines, self.cos, self.sin, norms, kv_heads)
        cache.index_copy_(0, self.slots, lines[:, heads:].unflatten(1, (2, kv_heads)))
        return lines[:, :heads]

    def attend(self, query: Tensor, cache: Tensor) -> Tensor:
        """Attend queries by groups of requests with equal row counts."""
        return attend(query, cache, self.groups)

    def gate(self, gate_up: Tensor) -> Tensor:
        """Gate one half of each row by the other."""
        first, second = gate_up.chunk(2, 1)
        return functional.silu(first).mul_(second)

    def project(self, rows_in: Tensor, weight: Tensor, bias: Tensor | None, update: LowRank | None) -> Tensor:
        """Apply a weight to all rows, and its update to the gated rows."""
        out = product(rows_in, weight, bias)
        if self.gated is not None and update is not None:
            add_low_rank(out, rows_in, self.gated, update.down, update.up)
        return out


@dataclass(frozen=True)
class FixedPass:
    """Run all rows of `FixedRows`, or of several joined, through kernels that wait for no host."""

    rows: FixedRows | JoinedRows
    slots: Tensor
    cos: Tensor
    sin: Tensor

    def norm(self, stream: Tensor, added: Tensor | None, norm: Norm, dtype: torch.dtype) -> Tensor:
        """Add to the stream, in place, and give its norm."""
        out: Tensor = add_norm(stream, added, norm.weight, norm.floor, dtype)
        return out

    def write(self, qkv: Tensor, norms: list[Tensor], cache: Tensor) -> Tensor:
        """Turn queries and keys, write K and V of the rows that have a slot, and give the queries."""
        query: Tensor = turn_append(qkv, self.cos, self.sin, norms, cache, self.slots)
        return query

    def attend(self, query: Tensor, cache: Tensor) -> Tensor:
        """Attend queries through block tables."""
        seen = []
        for part, own in self._by_part(query):
            found: Tensor = BACKENDS[part.attention](
                own.unflatten(0, tuple(part.slots.shape)),
                cache,
                part.block_table,
                part.context,
                part.block_slots,
                part.mask,
                part.page_size,
            )
            seen.append(found.flatten(2).flatten(0, 1))
        return seen[0] if len(seen) == 1 else torch.cat(seen)

    def gate(self, gate_up: Tensor) -> Tensor:
        """Gate one half of each row by the other."""
        gated: Tensor = gate(gate_up)
        return gated

    def _by_part(self, values: Tensor) -> Iterator[tuple[FixedRows, Tensor]]:
        """Give each part with its rows of `values` [T, ...]."""
        parts = self.rows.parts
        return zip(parts, values.split([part.slots.numel() for part in parts]), strict=True)

    def project(self, rows_in: Tensor, weight: Tensor, bias: Tensor | None, update: LowRank | None) -> Tensor:
        """Apply a weight to all rows, and its update to the gated rows."""
        if self.rows.adapter_rows is None or update is None:
            return linear(rows_in, weight, bias)
        out: Tensor = gated_linear(rows_in, weight, bias, update.down, update.up, self.rows.adapter_rows)
        return out


class LayerStack:
    """Run rows through layers; what is fed in and what is read out is the model's around them.

    `adapter` may be set at any time; it acts on the rows that a batch gates. Where this is one of several parts of a
    model (`split.py`), `over_parts` sums what each of them adds to the stream.
    """

    def __init__(self, config: ModelConfig, layers: Sequence[Layer], dtype: torch.dtype) -> None:
        self.config = config
        self.layers = list(layers)
        self.dtype = dtype
        # What matrix products read; 8-bit weights (`int8.py`) take wide rows.
        self.rows_dtype = dtype
        self.wide = wide_dtype(dtype)
        self.adapter: Adapter | None = None
        self.over_parts: Callable[[Tensor], Tensor] | None = None
        self.frequencies = rotary_frequencies(config)

    def run(
        self,
        stream: Tensor,
        rows: ForwardRows,
        cache: PagedCache,
        *,
        first_read: Tensor | None = None,
        captured: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """Run the stream [T, hidden] of T rows through all layers, in place; their K and V go to their slots.

        The first layer's attention reads `first_read` [T, n] in place of the normed stream, where it is given.
        The stream after each layer whose index is a key of `captured` becomes that key's value.
        """
        shared = self._prepare(rows, cache)
        added: Tensor | None = None
        for index, layer in enumerate(self.layers):
            read = first_read
            if index or read is None:
                read = shared.norm(stream, added, layer.attention_norm, self.rows_dtype)
            if captured is not None and index - 1 in captured and index:
                captured[index - 1] = stream.clone()
            added = self._attention(read.to(self.rows_dtype), layer, cache.layers[index], shared, index)
            read = shared.norm(stream, added, layer.ffn_norm, self.rows_dtype)
            added = self._feed_forward(read, layer, shared, index)
        if added is not None:
            stream.add_(added)
        if captured is not None and len(self.layers) - 1 in captured:
            captured[len(self.layers) - 1] = stream.clone()
        return stream

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the tables that `turn` reads, two [T, heads + kv_heads, head_dim], for positions [T]."""
        config = self.config
        angles = torch.outer(positions.double(), self.frequencies)
        cos, sin = angles.cos(), angles.sin()
        # The query's share of the tables carries the 1 / sqrt(head_dim) of the attention scores.
        scale = torch.ones(config.heads + config.kv_heads, 1, dtype=torch.float64, device=positions.device)
        scale[: config.heads] = 1 / math.sqrt(config.head_dim)
        if config.rope_scaling is not None:
            scale *= config.rope_scaling.attention_factor
            if config.rope_scaling.query_beta:
                scale = scale.repeat(len(positions), 1, 1)
                scale[:, : config.heads] *= query_gain(positions, config.rope_scaling).view(-1, 1, 1)
        return (
            (torch.cat((cos, cos), 1)[:, None] * scale).to(self.wide),
            (torch.cat((-sin, sin), 1)[:, None] * scale).to(self.wide),
        )

    def _prepare(self, rows: ForwardRows, cache: PagedCache) -> Pass:
        """Compute what does not depend on the layer."""
        if not isinstance(rows, RowBatch):
            slots = [part.slots.flatten() for part in rows.parts]
            flat = slots[0] if len(slots) == 1 else torch.cat(slots)
            return FixedPass(rows, flat, *self.rotary(rows.positions))
        gated = None
        if self.adapter is not None and rows.adapter_rows is not None:
            found = rows.adapter_rows.nonzero().view(-1)
            gated = found if len(found) else None
        groups = plan_attention(
            rows.row_start,
            rows.slots,
            rows.context_slots,
            rows.context,
            rows.masks,
            self.config.kv_heads,
            cache.dtype,
        )
        return RaggedPass(rows.slots, *self.rotary(rows.positions), groups, gated)

    def _attention(self, read: Tensor, layer: Layer, cache: Tensor, shared: Pass, index: int) -> Tensor:
        """Give what attention over `read` adds to the stream; K and V are written before anything reads them."""
        qkv = self._project(read, layer.qkv, layer.qkv_bias, shared, index, "qkv")
        query = shared.write(qkv, layer.head_norms, cache)
        seen = shared.attend(query, cache).to(self.rows_dtype)
        return self._project(seen, layer.output, layer.output_bias, shared, index, "output")

    def _feed_forward(self, read: Tensor, layer: Layer, shared: Pass, index: int) -> Tensor:
        """Give what the gated feed-forward network, or its experts, add to the stream."""
        if layer.router is not None and self.config.experts is not None:
            mixed = mix_experts(read, layer.router, layer.gate_up, layer.down, self.config.experts)
            return mixed if self.over_parts is None else self.over_parts(mixed)
        inner = shared.gate(self._project(read, layer.gate_up, None, shared, index, "gate_up"))
        return self._project(inner, layer.down, None, shared, index, "down")

    def _project(
        self, rows_in: Tensor, weight: Tensor, bias: Tensor | None, shared: Pass, index: int, place: str
    ) -> Tensor:
        """Apply a weight to all rows, and the adapter's update of that weight to the gated rows."""
        update = None if self.adapter is None else self.adapter.layers[index].get(place)
        out = shared.project(rows_in, weight, bias, update)
        if self.over_parts is not None and place in ("output", "down"):
            out = self.over_parts(out.to(self.wide, memory_format=torch.contiguous_format))
        return out


class Transformer(LayerStack):
    """Run rows through a language model; weights are read once, fused, and kept in `dtype`."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        dtype: torch.dtype,
        called: Callable[[str], str] = str,
    ) -> None:
        """Read the weights; `called` maps the names of `architectures.py` to those in `weights`."""
        reader = WeightReader(weights, dtype, config.rms_eps, called)
        layers = [self._keep(reader.layer(config, index)) for index in range(config.layers)]
        super().__init__(config, layers, dtype)
        self.embedding = reader.matrix(names.EMBEDDING, config.vocab, config.hidden)
        self.head = self.embedding
        if not config.tied:
            self.head = reader.matrix(names.HEAD, config.vocab, config.hidden)
        self.final_norm = reader.norm(names.FINAL_NORM, config.hidden)

    def _keep(self, layer: Layer) -> Layer:
        """Give a layer that was just read as it is kept."""
        return layer

    @torch.inference_mode()
    def forward(self, rows: ForwardRows, cache: PagedCache) -> Tensor:
        """Run T rows, write their K and V to their slots, and return logits [L, vocab] float32 of `logits_rows`."""
        stream = self.run(self.embed(rows.token_ids), rows, cache)
        wanted, norm = stream.index_select(0, rows.logits_rows), self.final_norm
        if isinstance(rows, RowBatch):
            return self.read_logits(normed(wanted, norm))
        return self.read_logits(add_norm(wanted, None, norm.weight, norm.floor, self.wide))

    @torch.inference_mode()
    def forward_captured(
        self, rows: ForwardRows, cache: PagedCache, capture: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Run T rows as `forward` does -> (logits, the streams named by `capture` side by side [T, n * hidden]).

        Stream i is the one after layer i, EMBEDDED the one before the first, `config.layers` the final norm's.
        """
        embedded = self.embed(rows.token_ids)
        streams: dict[int, Tensor] = dict.fromkeys(capture, embedded)
        if EMBEDDED in streams:
            streams[EMBEDDED] = embedded.clone()
        stream = self.run(embedded, rows, cache, captured=streams)
        read = normed(stream, self.final_norm)
        if self.config.layers in streams:
            streams[self.config.layers] = read
        logits = self.read_logits(read.index_select(0, rows.logits_rows))
        return logits, torch.cat([streams[index] for index in capture], 1)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Look up the embeddings [T, hidden] of tokens [T]."""
        return functional.embedding(token_ids, self.embedding).to(self.wide)

    def read_logits(self, read: Tensor) -> Tensor:
        """Apply the language model head to normed streams [L, hidden] -> [L, vocab], on a CPU in float32.

        On a GPU they stay in the head's format: kernels widen what they read, and a second copy of all logits would
        cost as much as reading them.
        """
        logits = product(read.to(self.dtype), self.head)
        if logits.device.type != "cpu":
            return logits
        return logits.to(torch.float32, memory_format=torch.contiguous_format)


def normed(lines: Tensor, norm: Norm) -> Tensor:
    """Apply an RMSNorm to the last dimension, in the dtype of the lines."""
    return kernels.normed(lines, norm.weight, norm.floor)


def linear(rows_in: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply rows with a weight [outputs, inputs], row after row in memory."""
    return product(rows_in, weight, bias).contiguous()


def product(rows_in: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply rows with a weight [outputs, inputs]; the product may lie output after output in memory.

    In bfloat16 with few rows, `functional.linear` packs the weight anew at each call, which costs more than the
    product. Measured for 3072 x 576 on one core: 1 row 405 us, as `mv` 277 us; 8 rows 494 us, as `weight @ rows.T`
    340 us. That gives outputs in rows; what follows is mostly elementwise and takes them as they lie, where turning
    them round costs another 69 us at 8 rows.
    """
    count = len(rows_in)
    if rows_in.device.type != "cpu" or rows_in.dtype != torch.bfloat16 or count > FEW_ROWS:
        return functional.linear(rows_in, weight, bias)
    out = torch.mv(weight, rows_in[0])[None] if count == 1 else torch.mm(weight, rows_in.t()).t()
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
    if scaling.kind == "yarn":
        return yarn_frequencies(frequencies, config.rope_theta, scaling)
    if scaling.kind == "factors":
        return frequencies / torch.tensor(scaling.factors, dtype=torch.float64)
    turns = scaling.original_context * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    blend = ((turns - scaling.low_freq_factor) / span).clamp(0, 1)
    return blend * frequencies + (1 - blend) * frequencies / scaling.factor
