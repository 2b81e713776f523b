"""The `grow` operators as Triton kernels: the best tokens of a row by blocks, and a level of a tree in one program.

Floor: logits read twice, once from memory (rows * V * their width in bytes) and once, for the blocks' candidates, from
L2; a level moves a few kilobytes. Candidates are ordered as one integer, logit before id, so ties are exact.
Torch readings: `kernels/fixed/tree.py:candidates_torch`, `kernels/tree.py:extend`. Log-probabilities may differ from
them by the rounding of one sum; where two different logits become one score, the larger logit is first here, the
lower id there. Float64 logits, which no model gives, are left to the reading.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from fsm_spec.kernels.tree import Tree
from fsm_spec.kernels.triton.launch import Specialisation
from fsm_spec.kernels.triton.scores import BLOCK as BLOCK_OF_ROWS
from fsm_spec.kernels.triton.scores import (
    WARPS,
    Statistics,
    best_of,
    divided,
    loaded,
    logit_of,
    ordered,
    temperature_of,
    top_score,
)

# Behind every token: what is not there, or excluded.
LOWEST = tl.constexpr(-(1 << 63))


@triton.jit
def best_of_blocks(
    logits,
    keys,
    stride,
    width,
    exclude,
    blocks,
    TOP: tl.constexpr,
    BLOCK: tl.constexpr,
    BITS: tl.constexpr,
):
    """Keep the TOP best tokens of one block of a row as integers: the logit's order above, ids below."""
    row, block = tl.program_id(0), tl.program_id(1)
    ids, there, raw = loaded(logits + row.to(tl.int64) * stride, block * BLOCK, width, exclude, BLOCK)
    key = (ordered(raw, BITS).to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)
    best = tl.topk(tl.where(there, key, LOWEST), TOP)
    tl.store(keys + (row * blocks + block) * TOP + tl.arange(0, TOP), best)


@triton.jit
def best_of_rows(
    keys,
    maxima,
    places,
    sums,
    temperature,
    tokens,
    chances,
    rows_each,
    width,
    blocks,
    top,
    TOP: tl.constexpr,
    BLOCKS: tl.constexpr,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
    RAW: tl.constexpr,
):
    """Merge one row's candidates and give the log-probability of each over all tokens."""
    row = tl.program_id(0)
    heat = temperature_of(temperature, row // rows_each, REAL)
    best, _ = best_of(maxima, places, row * blocks, blocks, width, BLOCKS)
    whole = top_score(best, heat, REAL)
    each = tl.arange(0, BLOCKS)
    tops = tl.load(maxima + row * blocks + each, mask=each < blocks, other=float("-inf"))
    found = tl.load(sums + row * blocks + each, mask=each < blocks, other=0.0)
    total = tl.sum(found * tl.exp(divided(tops, heat, REAL) - whole).to(tl.float64), 0)
    at = tl.arange(0, BLOCKS * TOP)
    key = tl.topk(tl.load(keys + row * blocks * TOP + at, mask=at < blocks * TOP, other=LOWEST), TOP)
    place = tl.arange(0, TOP)
    chosen = place < top
    token = 0x7FFFFFFF - (key & 0x7FFFFFFF)
    score = divided(logit_of((key >> 32).to(tl.int32), BITS, RAW).to(REAL), heat, REAL)
    # No probability is above 1, whatever the rounding: a child never passes its parent.
    chance = tl.minimum(score - (whole.to(tl.float64) + tl.log(total)).to(REAL), 0.0)
    tl.store(tokens + row * top + place, tl.minimum(token, width - 1), mask=chosen)
    tl.store(chances + row * top + place, chance, mask=chosen)


def candidates(
    logits: Tensor, temperature: Tensor, top: int, exclude: int | None, block: int = BLOCK_OF_ROWS
) -> tuple[Tensor, Tensor]:
    """Find candidates as `kernels.fixed.tree.candidates_torch` does -> (tokens int64, chances), [n, r, top] each."""
    n, r, width = logits.shape
    flat = logits.reshape(n * r, width)
    found = Statistics.of(flat, temperature, r, None, block)
    bits, most = found.constants["BITS"], max(2, triton.next_power_of_2(top))  # topk wants 2
    keys = torch.empty((n * r, found.blocks, most), dtype=torch.int64, device=logits.device)
    best_of_blocks[(n * r, found.blocks)](
        flat, keys, found.stride, width, -1 if exclude is None else exclude, found.blocks,
        TOP=most, BLOCK=block, BITS=bits, num_warps=WARPS,
    )  # fmt: skip
    tokens = torch.empty((n, r, top), dtype=torch.int64, device=logits.device)
    chances = found.maxima.new_empty((n, r, top))
    constants = {name: found.constants[name] for name in ("BLOCKS", "BITS", "REAL")}
    best_of_rows[(n * r,)](
        keys, found.maxima, found.places, found.sums, temperature, tokens, chances, r, width, found.blocks, top,
        TOP=most, RAW=found.raw, num_warps=8, **constants,
    )  # fmt: skip
    return tokens, chances


@triton.jit
def extend_pools(
    tokens,
    parents,
    depths,
    scores,
    count,
    beam,
    names,
    chances,
    placed,
    capacity,
    beam_width,
    rows,
    top,
    width,
    CHILDREN: tl.constexpr,
):
    """Append the best `width` children of one pool's beam, best first; candidates are ordered by rank, then parent."""
    request = tl.program_id(0)
    base = request * capacity
    each = tl.arange(0, CHILDREN)
    there = each < beam_width * top
    parent = tl.load(beam + request * beam_width + each % beam_width, mask=there, other=0)
    row = tl.where(rows == 1, 0, each % beam_width)
    chance = tl.load(chances + (request * rows + row) * top + each // beam_width, mask=there, other=0.0)
    score = tl.load(scores + base + parent, mask=there, other=0.0) + chance
    key = (ordered(score, 32).to(tl.int64) << 32) | (CHILDREN - 1 - each).to(tl.int64)
    best = tl.sort(tl.where(there, key, LOWEST), descending=True)
    # From here on a lane is a place among the best: what stands there is read again by its number.
    kept = (each < width) & there
    chosen = tl.where(kept, CHILDREN - 1 - (best & 0x7FFFFFFF).to(tl.int32), 0)
    score = logit_of((best >> 32).to(tl.int32), 32, tl.float32)
    parent = tl.load(beam + request * beam_width + chosen % beam_width, mask=kept, other=0)
    row = tl.where(rows == 1, 0, chosen % beam_width)
    name = tl.load(names + (request * rows + row) * top + chosen // beam_width, mask=kept, other=0)
    depth = tl.load(depths + base + parent, mask=kept, other=0) + 1
    place = tl.load(count + request) + each
    inside = kept & (place >= 0) & (place < capacity)
    # All parents were read above; what is written stands behind them.
    tl.store(tokens + base + place, name, mask=inside)
    tl.store(parents + base + place, parent, mask=inside)
    tl.store(depths + base + place, depth, mask=inside)
    tl.store(scores + base + place, score, mask=inside)
    tl.store(placed + request * width + each, tl.minimum(place, capacity - 1), mask=kept)


def extend(pool: Tree, beam: Tensor, tokens: Tensor, chances: Tensor, width: int) -> tuple[Tree, Tensor]:
    """Append children as `kernels.tree.extend` does -> (pool, their indices int64 [n, width])."""
    n, beam_width = beam.shape
    _, rows, top = tokens.shape
    grown = Tree(
        pool.tokens.clone(), pool.parents.clone(), pool.depths.clone(), pool.scores.clone(), pool.count
    )
    placed = torch.empty((n, width), dtype=torch.int64, device=beam.device)
    children = triton.next_power_of_2(beam_width * top)
    extend_pools[(n,)](
        grown.tokens, grown.parents, grown.depths, grown.scores, grown.count, beam.contiguous(),
        tokens.contiguous(), chances.contiguous(), placed, pool.tokens.shape[1], beam_width, rows, top, width,
        CHILDREN=children, num_warps=4,
    )  # fmt: skip
    return replace(grown, count=pool.count + width), placed


_SHAPE = {"TOP": 16, "BLOCKS": 128, "BITS": 16, "REAL": tl.float32, "RAW": tl.bfloat16}
SPECIALISATIONS = (
    Specialisation(
        "16 of bf16",
        best_of_blocks,
        "*bf16:16 *i64:16 i32:16 i32:16 i32 i32",
        {"TOP": 16, "BLOCK": 2048, "BITS": 16},
        warps=WARPS,
    ),
    Specialisation(
        "16 of bf16",
        best_of_rows,
        "*i64:16 *fp32:16 *i32:16 *fp64:16 *fp64:16 *i64:16 *fp32:16 i32 i32:16 i32 i32",
        _SHAPE,
        warps=8,
    ),
    Specialisation(
        "128 children",
        extend_pools,
        "*i64:16 *i64:16 *i64:16 *fp32:16 *i64:16 *i64:16 *i64:16 *fp32:16 *i64:16 i32 i32 i32 i32 i32",
        {"CHILDREN": 128},
    ),
)
