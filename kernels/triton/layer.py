"""A layer between its products with weights: the kernels of `add_norm`, `turn_append` and `gate`.

Torch readings: `kernels/fixed/layer.py`. A GPU's own sums and exponentials round otherwise, by an ulp of float32 before
results are rounded to their format.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fsm_spec.kernels.triton.launch import Specialisation

# Columns that a program of `gate_columns` takes: 8 elements of 16 bits a thread, one load of each half.
COLUMNS = 1024


@triton.jit
def inverse_length(line, floor):
    """Return 1 / sqrt(|line|^2 + floor^2)."""
    return 1.0 / tl.sqrt(tl.sum(line * line, 0) + floor * floor)


@triton.jit
def norm_rows(
    stream,
    added,
    weight,
    floor,
    out,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDS: tl.constexpr,
) -> None:
    """Add to one row of the stream and norm it; grid (T).

    Floor: the stream read and written, what is added read, the norm written: HIDDEN elements of each a row.
    """
    at = tl.arange(0, BLOCK)
    inside = at < HIDDEN
    row = tl.program_id(0).to(tl.int64) * HIDDEN
    line = tl.load(stream + row + at, mask=inside, other=0.0)
    if ADDS:
        line += tl.load(added + row + at, mask=inside, other=0.0).to(line.dtype)
        tl.store(stream + row + at, line, mask=inside)
    normed = line * inverse_length(line, tl.load(floor)) * tl.load(weight + at, mask=inside, other=0.0)
    tl.store(out + row + at, normed.to(out.dtype.element_ty), mask=inside)


def add_norm(
    stream: Tensor, added: Tensor | None, weight: Tensor, floor: Tensor, dtype: torch.dtype
) -> Tensor:
    """Launch the kernel of the op `add_norm`."""
    rows, hidden = stream.shape
    out = stream.new_empty(stream.shape, dtype=dtype)
    block = triton.next_power_of_2(hidden)
    norm_rows[(rows,)](
        stream, out if added is None else added.contiguous(), weight, floor, out,
        HIDDEN=hidden, BLOCK=block, ADDS=added is not None, num_warps=warps_of(block),
    )  # fmt: skip
    return out


def warps_of(block: int) -> int:
    """Choose the warps of a program over a row: 8 elements a thread, 16 warps at most."""
    return min(max(block // 256, 1), 16)


@triton.jit
def turn_lines(
    qkv,
    cos,
    sin,
    query_weight,
    query_floor,
    key_weight,
    key_floor,
    cache,
    slots,
    query,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    NORMS: tl.constexpr,
) -> None:
    """Norm and turn one head of one row, and write it where it belongs; grid (T, HEADS + 2 * KV_HEADS).

    Floor: HEAD_DIM elements read and written a line, and two of the tables read but for values.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, DIM)
    inside = at < HEAD_DIM
    source = qkv + (row * (HEADS + 2 * KV_HEADS) + head) * HEAD_DIM
    line = tl.load(source + at, mask=inside, other=0.0).to(cos.dtype.element_ty)
    if head < HEADS + KV_HEADS:
        other = tl.where(at < HEAD_DIM // 2, at + HEAD_DIM // 2, at - HEAD_DIM // 2)
        turned = tl.load(source + other, mask=inside, other=0.0).to(cos.dtype.element_ty)
        if NORMS:
            weight, floor = query_weight, query_floor
            if head >= HEADS:
                weight, floor = key_weight, key_floor
            scale = inverse_length(line, tl.load(floor))
            line = line * scale * tl.load(weight + at, mask=inside, other=0.0)
            turned = turned * scale * tl.load(weight + other, mask=inside, other=0.0)
        table = (row * (HEADS + KV_HEADS) + head) * HEAD_DIM + at
        line = line * tl.load(cos + table, mask=inside, other=0.0)
        line += turned * tl.load(sin + table, mask=inside, other=0.0)
    result = line.to(query.dtype.element_ty)
    if head < HEADS:
        tl.store(query + (row * HEADS + head) * HEAD_DIM + at, result, mask=inside)
    else:
        slot = tl.load(slots + row).to(tl.int64)
        # A slot's keys lie before its values, so the heads of both are counted through.
        place = cache + (slot * 2 * KV_HEADS + head - HEADS) * HEAD_DIM + at
        tl.store(place, result, mask=inside & (slot >= 0))


def turn_append(
    qkv: Tensor, cos: Tensor, sin: Tensor, norms: list[Tensor], cache: Tensor, slots: Tensor
) -> Tensor:
    """Launch the kernel of the op `turn_append`."""
    rows, turned, head_dim = cos.shape
    kv_heads = cache.shape[2]
    heads = turned - kv_heads
    query = cache.new_empty((rows, heads, head_dim))
    dim = triton.next_power_of_2(head_dim)
    turn_lines[(rows, heads + 2 * kv_heads)](
        qkv.contiguous(), cos, sin, *(norms or [cos, cos, cos, cos]), cache, slots, query,
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, DIM=dim, NORMS=bool(norms), num_warps=1,
    )  # fmt: skip
    return query


@triton.jit
def gate_columns(gate_up, out, width, BLOCK: tl.constexpr, REAL: tl.constexpr) -> None:
    """Gate BLOCK columns of one row; grid (T, blocks). Floor: 3 * BLOCK elements moved."""
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    row = tl.program_id(0).to(tl.int64) * width
    first = tl.load(gate_up + row * 2 + at, mask=inside, other=0.0)
    second = tl.load(gate_up + row * 2 + width + at, mask=inside, other=0.0)
    real = first.to(REAL)
    # Rounded twice, as two launches of torch round.
    sure = (real / (1.0 + tl.exp(-real))).to(first.dtype)
    tl.store(out + row + at, (sure.to(REAL) * second.to(REAL)).to(first.dtype), mask=inside)


def gate(gate_up: Tensor) -> Tensor:
    """Launch the kernel of the op `gate`."""
    rows, width = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, width))
    gate_columns[(rows, triton.cdiv(width, COLUMNS))](
        gate_up.contiguous(), out, width,
        BLOCK=COLUMNS, REAL=tl.float64 if out.dtype == torch.float64 else tl.float32, num_warps=4,
    )  # fmt: skip
    return out


_LINES = "*bf16:16 *fp32:16 *fp32:16 *fp32:16 *fp32:16 *fp32:16 *fp32:16 *bf16:16 *i32:16 *bf16:16"
_HEADS = {"HEADS": 32, "KV_HEADS": 8, "HEAD_DIM": 128, "DIM": 128}
SPECIALISATIONS = (
    Specialisation(
        "4096, adds bf16",
        norm_rows,
        "*fp32:16 *bf16:16 *fp32:16 *fp32:16 *bf16:16",
        {"HIDDEN": 4096, "BLOCK": 4096, "ADDS": True},
        warps=warps_of(4096),
    ),
    Specialisation(
        "576",
        norm_rows,
        "*fp32:16 *bf16:16 *fp32:16 *fp32:16 *bf16:16",
        {"HIDDEN": 576, "BLOCK": 1024, "ADDS": False},
        warps=warps_of(1024),
    ),
    Specialisation("8 x 128", turn_lines, _LINES, {**_HEADS, "NORMS": False}, warps=1),
    Specialisation("8 x 128, normed", turn_lines, _LINES, {**_HEADS, "NORMS": True}, warps=1),
    Specialisation("bf16", gate_columns, "*bf16:16 *bf16:16 i32:16", {"BLOCK": COLUMNS, "REAL": tl.float32}),
)
