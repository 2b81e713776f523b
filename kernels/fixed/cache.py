"""Writes to the paged KV cache in fixed shapes: the ops `kv_append` and `kv_move`.

The readings are `index_copy_` and `cache[target] = cache[source]` over live rows alone; the kernels stand in
`kernels/triton/cache.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("fsm_spec::kv_append", mutates_args=("cache",), device_types="cpu")
def kv_append(cache: Tensor, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """Write K and V of rows to their slots of one layer's cache, in the cache's format.

    cache [slots, 2, kv_heads, head_dim]; key, value [n, R, kv_heads, head_dim]; slots int32 [n, R], distinct but
    for negative ones, whose rows are dropped.
    """
    kv_append_fixed(cache, key, value, slots)


@kv_append.register_fake
def _(cache: Tensor, key: Tensor, value: Tensor, slots: Tensor) -> None:
    pass


def kv_append_fixed(cache: Tensor, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """Compute `kv_append` in torch."""
    lines = torch.stack((key, value), 2).flatten(0, 1).to(cache.dtype)
    flat = slots.flatten().long()
    _write(cache, 0, lines, flat, flat >= 0)


@torch.library.custom_op("fsm_spec::kv_move", mutates_args=("data",), device_types="cpu")
def kv_move(data: Tensor, source: Tensor, target: Tensor, count: Tensor) -> None:
    """Copy slots to slots in all layers; all sources are read before any target is written.

    data [layers, slots, 2, kv_heads, head_dim]; source, target int32 [n, K]; count int32 [n]. Of each request the
    first `count` moves count, without those that have a negative slot; targets are distinct.
    """
    kv_move_fixed(data, source, target, count)


@kv_move.register_fake
def _(data: Tensor, source: Tensor, target: Tensor, count: Tensor) -> None:
    pass


def kv_move_fixed(data: Tensor, source: Tensor, target: Tensor, count: Tensor) -> None:
    """Compute `kv_move` in torch."""
    order = torch.arange(source.shape[1], device=source.device)
    live = (order < count.unsqueeze(1)) & (source >= 0) & (target >= 0)
    lines = data.index_select(1, source.clamp(min=0).flatten())
    _write(data, 1, lines, target.flatten().long(), live.flatten())


def _write(data: Tensor, axis: int, lines: Tensor, slots: Tensor, live: Tensor) -> None:
    """Copy live lines to their slots along an axis.

    Dropped lines write once more what the first live one writes, so that they change nothing in whatever order they
    come; where none is live, all write to slot 0 what it holds.
    """
    if not slots.numel():
        return
    first = live.int().argmax()
    index = torch.where(live, torch.arange(len(slots), device=slots.device), first)
    some = live.any()
    kept = torch.where(some, lines.index_select(axis, index), data.narrow(axis, 0, 1))
    data.index_copy_(axis, torch.where(some, slots.index_select(0, index), 0), kept)
