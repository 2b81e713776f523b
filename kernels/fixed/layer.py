"""What a transformer's layer does between its products with weights, in fixed shapes: three ops, a launch each.

The kernels stand in `kernels/triton/layer.py`. On a GPU these ops are latency: composed of torch's, they took 22
launches a layer beside its four products and attention.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fsm_spec.kernels.fixed.cache import kv_append_fixed
from fsm_spec.kernels.layer import normed, turn_heads


@torch.library.custom_op("fsm_spec::add_norm", mutates_args=("stream",), device_types="cpu")
def add_norm(
    stream: Tensor, added: Tensor | None, weight: Tensor, floor: Tensor, dtype: torch.dtype
) -> Tensor:
    """Add to the residual stream, in place, and give its RMSNorm (arXiv:1910.07467) -> [T, hidden] of `dtype`.

    stream [T, hidden]; added [T, hidden] of any float type; weight [hidden] is the norm's times sqrt(hidden), floor []
    is sqrt(hidden * eps): x / sqrt(|x|^2 + floor^2) * weight.
    """
    return add_norm_fixed(stream, added, weight, floor, dtype)


@add_norm.register_kernel("cuda")
def _(stream: Tensor, added: Tensor | None, weight: Tensor, floor: Tensor, dtype: torch.dtype) -> Tensor:
    from fsm_spec.kernels.triton import layer  # noqa: PLC0415 -- a CPU needs no Triton

    return layer.add_norm(stream, added, weight, floor, dtype)


@add_norm.register_fake
def _(
    stream: Tensor,
    added: Tensor | None,  # noqa: ARG001 -- the op's signature
    weight: Tensor,  # noqa: ARG001
    floor: Tensor,  # noqa: ARG001
    dtype: torch.dtype,
) -> Tensor:
    return stream.new_empty(stream.shape, dtype=dtype)


def add_norm_fixed(
    stream: Tensor, added: Tensor | None, weight: Tensor, floor: Tensor, dtype: torch.dtype
) -> Tensor:
    """Compute `add_norm` in torch."""
    if added is not None:
        stream.add_(added)
    return normed(stream, weight, floor).to(dtype)


@torch.library.custom_op("fsm_spec::turn_append", mutates_args=("cache",), device_types="cpu")
def turn_append(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    norms: list[Tensor],
    cache: Tensor,
    slots: Tensor,
) -> Tensor:
    """Turn queries and keys to their positions, and write K and V to the rows' slots -> queries in the cache's format.

    qkv [T, (heads + 2 * kv_heads) * head_dim]; cos, sin [T, heads + kv_heads, head_dim], with the scale of scores in
    the queries' share (RoPE, arXiv:2104.09864; halves of a head are turned against each other); norms are none, or
    the weights and floors of `add_norm` for queries, then for keys, which are normed before they are turned; cache
    [slots, 2, kv_heads, head_dim]; slots int32 [T], distinct but for negative ones, whose K and V are dropped.
    Gives [T, heads, head_dim].
    """
    return turn_append_fixed(qkv, cos, sin, norms, cache, slots)


@turn_append.register_kernel("cuda")
def _(qkv: Tensor, cos: Tensor, sin: Tensor, norms: list[Tensor], cache: Tensor, slots: Tensor) -> Tensor:
    from fsm_spec.kernels.triton import layer  # noqa: PLC0415 -- a CPU needs no Triton

    return layer.turn_append(qkv, cos, sin, norms, cache, slots)


@turn_append.register_fake
def _(
    qkv: Tensor,  # noqa: ARG001 -- the op's signature
    cos: Tensor,
    sin: Tensor,  # noqa: ARG001
    norms: list[Tensor],  # noqa: ARG001
    cache: Tensor,
    slots: Tensor,  # noqa: ARG001
) -> Tensor:
    rows, turned, head_dim = cos.shape
    return cache.new_empty((rows, turned - cache.shape[2], head_dim))


def turn_append_fixed(
    qkv: Tensor, cos: Tensor, sin: Tensor, norms: list[Tensor], cache: Tensor, slots: Tensor
) -> Tensor:
    """Compute `turn_append` in torch."""
    kv_heads = cache.shape[2]
    lines = qkv.to(cos.dtype, copy=True).view(len(qkv), cos.shape[1] + kv_heads, cos.shape[2])
    turn_heads(lines, cos, sin, norms, kv_heads)
    query, key, value = lines.split([cos.shape[1] - kv_heads, kv_heads, kv_heads], 1)
    kv_append_fixed(cache, key[None], value[None], slots[None])
    result: Tensor = query.to(cache.dtype).contiguous()
    return result


@torch.library.custom_op("fsm_spec::gate", mutates_args=(), device_types="cpu")
def gate(gate_up: Tensor) -> Tensor:
    """Gate one half of each row by the other (SwiGLU, arXiv:2002.05202): [T, 2 * n] -> silu(first) * second [T, n]."""
    return gate_fixed(gate_up)


@gate.register_kernel("cuda")
def _(gate_up: Tensor) -> Tensor:
    from fsm_spec.kernels.triton import layer  # noqa: PLC0415 -- a CPU needs no Triton

    return layer.gate(gate_up)


@gate.register_fake
def _(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty((len(gate_up), gate_up.shape[1] // 2))


def gate_fixed(gate_up: Tensor) -> Tensor:
    """Compute `gate` in torch."""
    first, second = gate_up.chunk(2, 1)
    return functional.silu(first).mul_(second)
