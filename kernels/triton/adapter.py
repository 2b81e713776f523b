"""The low-rank update of gated rows: the kernels of `gated_linear`. The product with the weight itself is torch's.

Torch readings: `kernels/fixed/adapter.py`, in fixed shapes, and `kernels/adapter.py`, over gated rows alone.

Floor: down and up are read once, rank * (inputs + outputs) elements, and the gated rows' inputs once and outputs
twice; 2 * rank * (inputs + outputs) FLOPs a gated row. A tile without a gated row reads its gates and ends.

`shrink` multiplies rows with `down`, cut along the inputs, since the rank alone makes too few programs; `expand` adds
up the parts, multiplies with `up` and adds to the gated rows in place, in one pass over the outputs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from fsm_spec.kernels.triton.launch import Specialisation, precision, upcasts

# Rows, outputs and inputs of a tile.
ROWS, OUTPUTS, INPUTS = 16, 128, 128
# More parts fill more multiprocessors, and are read by more programs.
MOST_PARTS = 16


@triton.jit
def shrink(
    x,
    down,
    gate,
    parts,
    x_row,
    total,
    inputs,
    stretch,
    RANK: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Multiply ROWS rows with `down` over `stretch` of the inputs; grid (row tiles, parts). WIDTH pads RANK.

    x [total, inputs], down [RANK, inputs], parts float32 [parts, total, RANK].
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    gated = tl.load(gate + row, mask=row < total, other=0) != 0
    if tl.max(gated.to(tl.int32), 0) != 0:
        rank = tl.arange(0, WIDTH)
        sums = tl.zeros([ROWS, WIDTH], tl.float32)
        start = tl.program_id(1) * stretch
        stop = tl.minimum(start + stretch, inputs)
        lines = x + row.to(tl.int64)[:, None] * x_row
        weights = down + rank[None, :] * inputs
        for first in range(start, stop, INPUTS):
            at = first + tl.arange(0, INPUTS)
            # Rows without gate are not read: they may hold infinities, and their products are not wanted.
            line = tl.load(lines + at[None, :], mask=gated[:, None] & (at < stop)[None, :], other=0.0)
            weight = tl.load(
                weights + at[:, None], mask=(rank < RANK)[None, :] & (at < stop)[:, None], other=0.0
            )
            if UPCAST:
                line = line.to(tl.float32)
                weight = weight.to(tl.float32)
            sums = tl.dot(line, weight, acc=sums, input_precision=PRECISION)
        place = parts + (tl.program_id(1) * total + row).to(tl.int64)[:, None] * RANK + rank[None, :]
        tl.store(place, sums, mask=gated[:, None] & (rank < RANK)[None, :])


@triton.jit
def expand(
    parts,
    up,
    gate,
    out,
    total,
    outputs,
    RANK: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Add the update of ROWS rows to OUTPUTS of their outputs, where gated; grid (row tiles, output tiles).

    up [outputs, RANK], out [total, outputs].
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    gated = tl.load(gate + row, mask=row < total, other=0) != 0
    if tl.max(gated.to(tl.int32), 0) != 0:
        rank = tl.arange(0, WIDTH)
        at = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        sums = tl.zeros([ROWS, WIDTH], tl.float32)
        small = gated[:, None] & (rank < RANK)[None, :]
        for part in range(PARTS):
            place = parts + (part * total + row).to(tl.int64)[:, None] * RANK + rank[None, :]
            sums += tl.load(place, mask=small, other=0.0)
        weight = tl.load(
            up + at.to(tl.int64)[None, :] * RANK + rank[:, None],
            mask=(at < outputs)[None, :] & (rank < RANK)[:, None],
            other=0.0,
        )
        if UPCAST:
            weight = weight.to(tl.float32)
        update = tl.dot(sums.to(weight.dtype), weight, input_precision=PRECISION)
        place = out + row.to(tl.int64)[:, None] * outputs + at[None, :]
        stored = gated[:, None] & (at < outputs)[None, :]
        base = tl.load(place, mask=stored, other=0.0).to(tl.float32)
        tl.store(place, (base + update).to(out.dtype.element_ty), mask=stored)


def gated_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor, gate: Tensor
) -> Tensor:
    """Multiply with the weight and launch the kernels of the op `gated_linear` on what comes out."""
    out = functional.linear(x, weight, bias)
    return add_gated(out, x, down, up, gate)


def add_gated(out: Tensor, x: Tensor, down: Tensor, up: Tensor, gate: Tensor) -> Tensor:
    """Add the low-rank update of the gated rows to `out`, in place, and return it."""
    (total, outputs), (rank, inputs) = out.shape, down.shape
    if x.stride(1) != 1:
        x = x.contiguous()
    width = max(triton.next_power_of_2(rank), 16)
    parts = min(triton.cdiv(inputs, 2 * INPUTS), MOST_PARTS)
    stretch = triton.cdiv(triton.cdiv(inputs, parts), INPUTS) * INPUTS
    parts = triton.cdiv(inputs, stretch)
    sums = x.new_empty((parts, total, rank), dtype=torch.float32)
    shared = {
        "RANK": rank,
        "WIDTH": width,
        "ROWS": ROWS,
        "UPCAST": upcasts(x),
        "PRECISION": precision(x),
    }
    tiles = triton.cdiv(total, ROWS)
    shrink[(tiles, parts)](x, down, gate, sums, x.stride(0), total, inputs, stretch, INPUTS=INPUTS, **shared)
    grid = (tiles, triton.cdiv(outputs, OUTPUTS))
    expand[grid](sums, up, gate, out, total, outputs, PARTS=parts, OUTPUTS=OUTPUTS, **shared)
    return out


def _forms(element: str, rank: int, parts: int) -> tuple[Specialisation, Specialisation]:
    """Describe both kernels for an adapter of this rank."""
    shared = {
        "RANK": rank,
        "WIDTH": max(triton.next_power_of_2(rank), 16),
        "ROWS": ROWS,
        "UPCAST": False,
        "PRECISION": "tf32x3",
    }
    name = f"{element}, rank {rank}"
    types = f"*{element}:16 *{element}:16 *i1:16 *fp32:16 i32:16 i32 i32:16 i32:16"
    return (
        Specialisation(name, shrink, types, {**shared, "INPUTS": INPUTS}),
        Specialisation(
            name,
            expand,
            f"*fp32:16 *{element}:16 *i1:16 *{element}:16 i32 i32:16",
            {**shared, "PARTS": parts, "OUTPUTS": OUTPUTS},
        ),
    )


# Rank 16, alone and three of them under a fused q, k and v; and a large one.
SPECIALISATIONS = (
    *_forms("bf16", 16, 16),
    *_forms("bf16", 48, 16),
    *_forms("bf16", 128, 16),
    *_forms("fp32", 16, 3),
)
