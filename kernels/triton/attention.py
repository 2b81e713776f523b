"""Attention of a block of rows over a paged prefix and, by mask bits, over the block: the kernel of `paged_attention`.

Torch readings: `kernels/fixed/attention.py`, in fixed shapes, and `kernels/attention.py`, ragged.

Floor: K and V of all slots seen are read once, 2 * slots * kv_heads * head_dim elements a request, and 4 FLOPs for
each of rows * heads * slots * head_dim. At few rows the bytes decide: on an H200 at 4.8 TB/s, 8 requests of 4,096
slots with 8 KV heads of 128 in bfloat16 take 28 us a layer.

One program attends one tile of lines (rows times the heads that share a KV head) over one part of the prefix; the
first part also takes the block. Where requests, heads and tiles do not fill the device, the prefix is cut into parts
and a second kernel merges them: the number of parts follows from shapes alone, their length from `context`, so that
a graph captured once serves every length.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from fsm_spec.kernels.backends import page_fault
from fsm_spec.kernels.triton.launch import Specialisation, precision, processors, upcasts

# Below any score; finite, so that the difference of two of them is no NaN.
LOWEST = tl.constexpr(-1e30)
LOG2_E = tl.constexpr(1.4426950408889634)
# One word of mask bits a step.
WORD = tl.constexpr(32)
# A part shorter than this costs more to merge than it gains.
SHORTEST_PART = 128
MOST_PARTS = 64
# Programs that a multiprocessor holds at once, by their shared memory; and what merging adds to a launch's time, flat
# and by the part. Estimates: no GPU has been measured.
RESIDENT = 3
MERGE_COST, PART_COST = 0.05, 0.02
# Of a step's K and of its V. Two steps of both are in flight, which takes 64 KB of shared memory.
TILE_BYTES = 1 << 14
# Lines times head_dim, and lines times slots, of a program.
MOST_SUMS = 1 << 13
MOST_SCORES = 1 << 12


@triton.jit
def _absorb(scores, values, highest, total, sums, UPCAST: tl.constexpr, PRECISION: tl.constexpr):
    """Take a tile of scores, to base 2, and its values into the running softmax (arXiv:2205.14135, algorithm 1)."""
    new = tl.maximum(highest, tl.max(scores, 1))
    weights = tl.exp2(scores - new[:, None])
    fade = tl.exp2(highest - new)
    if UPCAST:
        values = values.to(tl.float32)
    sums = tl.dot(weights.to(values.dtype), values, acc=sums * fade[:, None], input_precision=PRECISION)
    return new, total * fade + tl.sum(weights, 1), sums


@triton.jit
def _score(lines, keys, UPCAST: tl.constexpr, PRECISION: tl.constexpr):
    """Multiply lines and keys, to base 2."""
    if UPCAST:
        keys = keys.to(tl.float32)
    return tl.dot(lines, tl.trans(keys), input_precision=PRECISION) * LOG2_E


# Numbers that differ between buckets of one launch are no reason to compile anew.
@triton.jit(do_not_specialize=["rows", "pages", "block", "parts"])
def attend_part(
    query,
    cache,
    block_table,
    context,
    block_slots,
    mask,
    out,
    part_out,
    part_weight,
    query_request,
    query_row,
    mask_request,
    rows,
    pages,
    block,
    parts,
    KV_HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    LINES: tl.constexpr,
    SLOTS: tl.constexpr,
    SPLIT: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Attend LINES lines of one request and KV head over one of the parts; grid (tiles, n * KV_HEADS, parts)."""
    request = tl.program_id(1) // KV_HEADS
    kv_head = tl.program_id(1) % KV_HEADS
    part = tl.program_id(2)
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    row = line // SHARE
    head = kv_head * SHARE + line % SHARE
    live = row < rows
    dims = tl.arange(0, DIM)
    # DIM is HEAD_DIM rounded up to a power of two; where both are one, the compiler drops this mask.
    inside = dims < HEAD_DIM
    at = query + request.to(tl.int64) * query_request + row * query_row + head * HEAD_DIM
    lines = tl.load(at[:, None] + dims[None, :], mask=live[:, None] & inside[None, :], other=0.0)
    if UPCAST:
        lines = lines.to(tl.float32)

    highest = tl.full([LINES], LOWEST, tl.float32)
    total = tl.zeros([LINES], tl.float32)
    sums = tl.zeros([LINES, DIM], tl.float32)
    kv = cache + kv_head * HEAD_DIM + dims

    length = tl.load(context + request)
    stretch = tl.cdiv(tl.cdiv(length, parts), SLOTS) * SLOTS
    start = part * stretch
    stop = tl.minimum(start + stretch, length)
    # The page numbers of a step are loaded a step ahead: what K and V wait for is then no load of the same step, and
    # the compiler keeps two steps of them in flight.
    ahead = start + tl.arange(0, SLOTS)
    table = block_table + request * pages
    page = tl.load(table + ahead // PAGE, mask=ahead < stop, other=0)
    for first in range(start, stop, SLOTS):
        number = first + tl.arange(0, SLOTS)
        there = number < stop
        place = kv[None, :] + (page.to(tl.int64) * PAGE + number % PAGE)[:, None] * (2 * KV_HEADS * HEAD_DIM)
        read = there[:, None] & inside[None, :]
        keys = tl.load(place, mask=read, other=0.0)
        values = tl.load(place + KV_HEADS * HEAD_DIM, mask=read, other=0.0)
        page = tl.load(table + (number + SLOTS) // PAGE, mask=number + SLOTS < stop, other=0)
        scores = tl.where(there[None, :], _score(lines, keys, UPCAST, PRECISION), float("-inf"))
        highest, total, sums = _absorb(scores, values, highest, total, sums, UPCAST, PRECISION)

    if part == 0:
        bits = tl.arange(0, WORD)
        for first in tl.range(0, block, WORD, num_stages=1):
            slot = tl.load(block_slots + request * block + first + bits, mask=first + bits < block, other=-1)
            words = tl.cdiv(block, WORD)
            word = tl.load(mask + request * mask_request + row * words + first // WORD, mask=live, other=0)
            seen = (((word[:, None] >> bits[None, :]) & 1) != 0) & (slot >= 0)[None, :]
            # What no line sees is not read: weight 0 times NaN would be NaN.
            there = tl.max(seen.to(tl.int32), 0) != 0
            place = kv[None, :] + slot.to(tl.int64)[:, None] * (2 * KV_HEADS * HEAD_DIM)
            read = there[:, None] & inside[None, :]
            keys = tl.load(place, mask=read, other=0.0)
            values = tl.load(place + KV_HEADS * HEAD_DIM, mask=read, other=0.0)
            scores = tl.where(seen, _score(lines, keys, UPCAST, PRECISION), float("-inf"))
            highest, total, sums = _absorb(scores, values, highest, total, sums, UPCAST, PRECISION)

    # A line that saw nothing has a total of 0 and gives zeros.
    sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    where = (request * rows + row) * (KV_HEADS * SHARE) + head
    store = live[:, None] & inside[None, :]
    if not SPLIT:
        tl.store(
            out + where.to(tl.int64)[:, None] * HEAD_DIM + dims[None, :],
            sums.to(out.dtype.element_ty),
            mask=store,
        )
    else:
        where = where.to(tl.int64) * parts + part
        tl.store(part_out + where[:, None] * HEAD_DIM + dims[None, :], sums, mask=store)
        weight = highest + tl.log2(tl.where(total == 0.0, 1.0, total))
        weight = tl.where(total == 0.0, float("-inf"), weight)
        tl.store(part_weight + where, weight, mask=live)


@triton.jit(do_not_specialize=["parts"])
def merge_parts(
    part_out,
    part_weight,
    out,
    parts,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Weigh the means of one row and head by their shares of the softmax; grid (n * R * heads). WIDTH pads `parts`.

    Floor: parts * (head_dim + 1) float32 read a row and head, head_dim elements written.
    """
    where = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, WIDTH)
    dims = tl.arange(0, DIM)
    weight = tl.load(part_weight + where * parts + part, mask=part < parts, other=float("-inf"))
    share = tl.exp2(weight - tl.maximum(tl.max(weight, 0), LOWEST))
    place = part_out + (where * parts + part)[:, None] * HEAD_DIM + dims[None, :]
    means = tl.load(place, mask=(part < parts)[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    total = tl.sum(share, 0)
    mean = tl.sum(means * share[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + where * HEAD_DIM + dims, mean.to(out.dtype.element_ty), mask=dims < HEAD_DIM)


def paged_attention(
    query: Tensor,
    cache: Tensor,
    block_table: Tensor,
    context: Tensor,
    block_slots: Tensor,
    mask: Tensor,
    page_size: int,
    parts: int | None = None,
) -> Tensor:
    """Launch the kernels of the op `paged_attention`; `parts` of the prefix, chosen for the device if not given.

    Raises ValueError for pages of a size that they do not take.
    """
    fault = page_fault(page_size)
    if fault is not None:
        raise ValueError(f"the Triton kernel of attention {fault}")
    requests, rows, heads, head_dim = query.shape
    kv_heads = cache.shape[2]
    share = heads // kv_heads
    query = query.to(cache.dtype)
    if query.stride()[2:] != (head_dim, 1):
        query = query.contiguous()
    lines, slots, warps, stages = tiles(rows * share, head_dim, cache.element_size())
    grid = (triton.cdiv(rows * share, lines), requests * kv_heads)
    if parts is None:
        parts = choose_parts(grid[0] * grid[1], block_table.shape[1] * page_size, processors(query.device))
    out = query.new_empty(query.shape)
    part_out = query.new_empty((*query.shape[:3], parts, head_dim), dtype=torch.float32) if parts > 1 else out
    part_weight = part_out.new_empty((*query.shape[:3], parts), dtype=torch.float32)
    dim = triton.next_power_of_2(head_dim)
    attend_part[(*grid, parts)](
        query,
        cache,
        block_table,
        context,
        block_slots,
        mask,
        out,
        part_out,
        part_weight,
        query.stride(0),
        query.stride(1),
        mask.stride(0) if mask.shape[0] > 1 else 0,
        rows,
        block_table.shape[1],
        block_slots.shape[1],
        parts,
        KV_HEADS=kv_heads,
        SHARE=share,
        HEAD_DIM=head_dim,
        DIM=dim,
        PAGE=page_size,
        LINES=lines,
        SLOTS=slots,
        SPLIT=parts > 1,
        UPCAST=upcasts(query),
        PRECISION=precision(query),
        num_warps=warps,
        num_stages=stages,
    )
    if parts > 1:
        merge_parts[(requests * rows * heads,)](
            part_out, part_weight, out, parts, HEAD_DIM=head_dim, DIM=dim, WIDTH=triton.next_power_of_2(parts)
        )
    return out


def tiles(lines: int, head_dim: int, element_bytes: int) -> tuple[int, int, int, int]:
    """Choose (lines, slots, warps, stages) of a tile, within the registers and shared memory of all targets."""
    dim = triton.next_power_of_2(head_dim)
    # Products of float32 take three passes of the tensor cores, and registers for the split factors.
    wide = element_bytes > 2
    most = 16 if wide else min(64, max(MOST_SUMS // dim, 16))
    tall = min(max(triton.next_power_of_2(lines), 16), most)
    slots = (TILE_BYTES // 2 if wide else TILE_BYTES) // (dim * element_bytes)
    return tall, min(max(slots, 16), 128, MOST_SCORES // tall), 8 if tall == 64 or wide else 4, 3


@lru_cache
def choose_parts(programs: int, most_slots: int, processors: int) -> int:
    """Choose into how many parts prefixes are cut, from shapes alone, so that programs fill the device evenly."""
    at_once = RESIDENT * processors

    def cost(parts: int) -> float:
        rounds = programs * parts / at_once
        return math.ceil(rounds) / rounds + (MERGE_COST + PART_COST * parts if parts > 1 else 0)

    most = max(1, min(most_slots // SHORTEST_PART, MOST_PARTS))
    return min(range(1, most + 1), key=cost)


_TYPES = "*{0}:16 *{0}:16 *i32:16 *i32:16 *i32:16 *i32:16 *{0}:16 *fp32:16 *fp32:16 i32:16 i32:16 i32 i32 i32 i32 i32"


def _form(
    name: str, element: str, rows: int, kv_heads: int, share: int, head_dim: int, *, split: bool
) -> Specialisation:
    """Describe `attend_part` as `paged_attention` would launch it, on pages of 16 slots."""
    lines, slots, warps, stages = tiles(rows * share, head_dim, 4 if element == "fp32" else 2)
    constants = {
        "KV_HEADS": kv_heads,
        "SHARE": share,
        "HEAD_DIM": head_dim,
        "DIM": triton.next_power_of_2(head_dim),
        "PAGE": 16,
        "LINES": lines,
        "SLOTS": slots,
        "SPLIT": split,
        "UPCAST": False,
        "PRECISION": "tf32x3",
    }
    return Specialisation(name, attend_part, _TYPES.format(element), constants, warps, stages)


# Heads are those of Llama-3.1-8B (8 KV heads for 32), SmolLM2-135M (3 for 9) and Qwen3-0.6B (8 for 16).
SPECIALISATIONS = (
    _form("1 row, bf16, 128", "bf16", 1, 8, 4, 128, split=True),
    _form("8 rows, bf16, 128", "bf16", 8, 8, 4, 128, split=True),
    _form("chunk, bf16, 128", "bf16", 512, 8, 4, 128, split=False),
    _form("8 rows, fp16, 128", "fp16", 8, 8, 2, 128, split=True),
    _form("8 rows, bf16, 64", "bf16", 8, 3, 3, 64, split=True),
    _form("chunk, bf16, 64", "bf16", 512, 3, 3, 64, split=False),
    _form("8 rows, bf16, 80", "bf16", 8, 32, 1, 80, split=True),
    _form("1 row, bf16, 256", "bf16", 1, 4, 4, 256, split=True),
    _form("chunk, bf16, 256", "bf16", 512, 4, 4, 256, split=False),
    _form("8 rows, fp32, 128", "fp32", 8, 8, 4, 128, split=True),
    _form("8 rows, fp32, 64", "fp32", 8, 3, 3, 64, split=False),
    Specialisation(
        "64 parts, 128",
        merge_parts,
        "*fp32:16 *fp32:16 *bf16:16 i32",
        {"HEAD_DIM": 128, "DIM": 128, "WIDTH": 64},
    ),
)
