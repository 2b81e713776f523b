"""Writes to the paged KV cache: the kernels of `kv_append` and `kv_move`.

Torch readings: `kernels/fixed/cache.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fsm_spec.kernels.triton.launch import Specialisation


@triton.jit
def append_rows(
    cache,
    key,
    value,
    slots,
    key_request,
    key_row,
    value_request,
    value_row,
    rows,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Copy K (grid axis 1: 0) or V (1) of one row, WIDTH = kv_heads * head_dim elements, to its slot; grid (n * R, 2).

    Floor: 2 * WIDTH elements read and as many written a row.
    """
    slot = tl.load(slots + tl.program_id(0)).to(tl.int64)
    if slot >= 0:
        request = (tl.program_id(0) // rows).to(tl.int64)
        row = tl.program_id(0) % rows
        at = tl.arange(0, BLOCK)
        half = tl.program_id(1)
        if half == 0:
            line = tl.load(key + request * key_request + row * key_row + at, mask=at < WIDTH)
        else:
            line = tl.load(value + request * value_request + row * value_row + at, mask=at < WIDTH)
        tl.store(cache + (slot * 2 + half) * WIDTH + at, line.to(cache.dtype.element_ty), mask=at < WIDTH)


def kv_append(cache: Tensor, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """Launch the kernel of the op `kv_append`; K and V may be parts of one fused product."""
    requests, rows, kv_heads, head_dim = key.shape
    inner = (head_dim, 1)
    key, value = (part if part.stride()[2:] == inner else part.contiguous() for part in (key, value))
    width = kv_heads * head_dim
    append_rows[(requests * rows, 2)](
        cache,
        key,
        value,
        slots,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        rows,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
    )


@triton.jit
def move_slots(
    data,
    kept,
    slots,
    count,
    other,
    layer_size,
    moves,
    total,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    GATHER: tl.constexpr,
) -> None:
    """Copy slots of one layer to `kept` (GATHER) or from it; grid (n * moves, layers). WIDTH is both K and V of a slot.

    Floor: 4 * WIDTH elements moved a layer and live move, half of them to and from scratch.
    """
    move = tl.program_id(0)
    layer = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + move).to(tl.int64)
    # A move is dropped as a whole: where either of its slots is negative, or it is beyond the request's count.
    live = (tl.load(count + move // moves) > move % moves) & (slot >= 0) & (tl.load(other + move) >= 0)
    if live:
        at = tl.arange(0, BLOCK)
        inside = at < WIDTH
        in_cache = data + layer * layer_size + slot * WIDTH + at
        in_scratch = kept + (layer * total + move) * WIDTH + at
        if GATHER:
            tl.store(in_scratch, tl.load(in_cache, mask=inside), mask=inside)
        else:
            tl.store(in_cache, tl.load(in_scratch, mask=inside), mask=inside)


def kv_move(data: Tensor, source: Tensor, target: Tensor, count: Tensor) -> None:
    """Launch the kernel of the op `kv_move` twice: all sources are in scratch before the first target is written."""
    layers, _, _, kv_heads, head_dim = data.shape
    requests, moves = source.shape
    width = 2 * kv_heads * head_dim
    kept = data.new_empty((layers, requests * moves, width))
    for slots, other, gather in ((source, target, True), (target, source, False)):
        move_slots[(requests * moves, layers)](
            data,
            kept,
            slots,
            count,
            other,
            data.stride(0),
            moves,
            requests * moves,
            WIDTH=width,
            BLOCK=triton.next_power_of_2(width),
            GATHER=gather,
        )


_MOVE = "*bf16:16 *bf16:16 *i32:16 *i32:16 *i32:16 i32:16 i32 i32"
SPECIALISATIONS = (
    Specialisation(
        "8 x 128",
        append_rows,
        "*bf16:16 *bf16:16 *bf16:16 *i32:16 i32:16 i32:16 i32:16 i32:16 i32",
        {"WIDTH": 1024, "BLOCK": 1024},
    ),
    Specialisation("gather, 8 x 128", move_slots, _MOVE, {"WIDTH": 2048, "BLOCK": 2048, "GATHER": True}),
    Specialisation("scatter, 8 x 128", move_slots, _MOVE, {"WIDTH": 2048, "BLOCK": 2048, "GATHER": False}),
)
