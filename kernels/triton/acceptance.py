"""The `accept` operator as Triton kernels: statistics of blocks, a verdict a row, then the end of each request.

Floor: the logits of live rows read once (rows * V * their width in bytes); under `rejection` with q, one row of logits
and one of q more a request that is cut. The residual is never in memory: its mass is summed by blocks, and the one
block is computed again in which the draw falls. Bounds of laws cost reads from L2 (`law.py`).
Torch reading: `kernels/fixed/acceptance.py`; `law.py` says where rounding may differ.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.triton.bounds import STAGES
from fsm_spec.kernels.triton.launch import Specialisation
from fsm_spec.kernels.triton.law import (
    block_at,
    drawn,
    law_of,
    mass_of,
    store_law,
    stored_law,
    token_at,
    weights,
    whole,
)
from fsm_spec.kernels.triton.randomness import uniform
from fsm_spec.kernels.triton.scores import BLOCK as BLOCK_OF_ROWS
from fsm_spec.kernels.triton.scores import WARPS, Statistics, best_of, loaded, temperature_of

# With 16 warps the residual's loop, which loads two rows ahead, is cut to 64 registers and spills.
WARPS_AT_THE_END = 8
# Purposes of draws, as `kernels/randomness.py` numbers them.
TARGET, ACCEPT, RESIDUAL = tl.constexpr(1), tl.constexpr(3), tl.constexpr(4)


@triton.jit
def reaches_top(row, draft, width, exclude, top, BLOCK: tl.constexpr, REAL: tl.constexpr):
    """Tell whether fewer than `top` tokens have a larger logit than the draft, which must be possible."""
    possible = (draft >= 0) & (draft < width) & (draft != exclude)
    score = tl.load(row + draft, mask=possible, other=float("-inf")).to(REAL)
    above = tl.zeros([BLOCK], tl.int32)
    for start in tl.range(0, width, BLOCK, num_stages=STAGES):
        ids, there, raw = loaded(row, start, width, exclude, BLOCK)
        above += (there & (raw.to(REAL) > score)).to(tl.int32)
    return (tl.sum(above, 0) < top) & (score > float("-inf"))


@triton.jit
def judge_rows(
    logits,
    maxima,
    places,
    sums,
    near,
    temperature,
    top_k,
    top_p,
    min_p,
    seeds,
    positions,
    drafts,
    count,
    q,
    stands,
    picks,
    reals,
    keys,
    masses,
    stride,
    rows_each,
    width,
    exclude,
    blocks,
    top,
    threshold,
    RULE: tl.constexpr,
    HAS_Q: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
    RAW: tl.constexpr,
):
    """Judge the draft of one row, and keep the row's law, or the token that it gives, for the end of the request."""
    at = tl.program_id(0)
    request, place = at // rows_each, at % rows_each
    live = tl.load(count + request)
    if place <= live:
        row = logits + at.to(tl.int64) * stride
        _, token = best_of(maxima, places, at * blocks, blocks, width, BLOCKS)
        judged = place < rows_each - 1
        behind = request * (rows_each - 1) + place
        draft = tl.load(drafts + behind, mask=judged, other=-1).to(tl.int32)
        stand = draft == token
        if RULE == "topk":
            stand = reaches_top(row, draft, width, exclude, top, BLOCK, REAL)
        elif RULE != "greedy":
            heat, best, kth, least, low, limit, found = law_of(
                row, at * blocks, request, maxima, places, sums, near + at * BLOCK, temperature, top_k, top_p, min_p,
                width, exclude, blocks, BLOCK, BLOCKS, BITS, REAL, RAW,
            )  # fmt: skip
            store_law(reals, keys, masses, at, best, kth, least, low, limit, found, BLOCKS)
            seed, position = tl.load(seeds + request), tl.load(positions + at)
            if RULE == "match":
                token = drawn(
                    row, width, exclude, heat, best, kth, least, low, limit, found,
                    uniform(seed, position, TARGET), BLOCK, BLOCKS, BITS, REAL,
                )  # fmt: skip
                stand = draft == token
            elif RULE != "always":
                mass = mass_of(row, draft, width, exclude, heat, best, kth, least, low, limit, BITS, REAL)
                target = mass / whole(found, REAL)
                if RULE == "threshold":
                    stand = target >= threshold
                else:
                    proposed = tl.full([], 1.0, tl.float64)
                    if HAS_Q:
                        known = judged & (draft >= 0) & (draft < width)
                        proposed = tl.load(q + behind.to(tl.int64) * width + draft, mask=known, other=1.0).to(
                            tl.float64
                        )
                    # A proposal of no mass is accepted if the target gives the token at all: p / 0 is above 1.
                    chance = target.to(tl.float64) / tl.where(proposed > 0.0, proposed, 1e-300)
                    chance = tl.where(target > 0.0, tl.minimum(chance, 1.0), 0.0)
                    stand = chance > uniform(seed, position, ACCEPT) * (chance + (1.0 - chance))
        tl.store(stands + at, stand.to(tl.int32))
        tl.store(picks + at, token.to(tl.int64))


@triton.jit
def left_over(
    row,
    q_row,
    start,
    rejected,
    total,
    width,
    exclude,
    heat,
    top,
    kth,
    least,
    low,
    limit,
    HAS_Q: tl.constexpr,
    BLOCK: tl.constexpr,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
):
    """Return a block of what is left after a rejected draft -> (ids, max(0, p - q)), p = mass / total.

    Where no draft was rejected, `rejected` is -1 and it is the law itself.
    """
    ids, mass = weights(row, start, width, exclude, heat, top, kth, least, low, limit, BLOCK, BITS, REAL)
    p = mass / total
    if HAS_Q:
        proposed = tl.load(q_row + ids, mask=(ids < width) & (rejected >= 0), other=0.0).to(REAL)
        return ids, tl.maximum(p - proposed, 0.0)
    return ids, tl.where(ids == rejected, 0.0, p)


@triton.jit
def end_requests(
    logits,
    temperature,
    seeds,
    positions,
    drafts,
    count,
    q,
    stands,
    picks,
    reals,
    keys,
    masses,
    accepted,
    tokens,
    stride,
    rows_each,
    width,
    exclude,
    RULE: tl.constexpr,
    HAS_Q: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
):
    """Count the drafts of one request before the first that fell, and give the token after them."""
    request = tl.program_id(0)
    live = tl.load(count + request).to(tl.int32)
    each = tl.arange(0, ROWS)
    stand = tl.load(stands + request * rows_each + each, mask=each < live, other=0)
    end = tl.min(tl.where(stand == 0, each, ROWS), 0)
    if RULE == "always":
        end = live
    end = tl.maximum(tl.minimum(end, live), 0)
    at = request * rows_each + end
    if RULE == "greedy" or RULE == "match" or RULE == "topk":
        token = tl.load(picks + at).to(tl.int32)
    else:
        row = logits + at.to(tl.int64) * stride
        heat = temperature_of(temperature, request, REAL)
        top, kth, least, low, limit, found = stored_law(reals, keys, masses, at, BLOCKS, BITS)
        purpose = TARGET
        rejected = -1
        q_row = q
        total = tl.full([], 1.0, REAL)
        if RULE == "rejection":
            if end < live:
                purpose = RESIDUAL
                behind = request * (rows_each - 1) + end
                rejected = tl.load(drafts + behind).to(tl.int32)
                q_row = q + behind.to(tl.int64) * width
                total = whole(found, REAL)
                blocks = tl.arange(0, BLOCKS)
                sums = tl.zeros([BLOCKS], tl.float64)
                for start in tl.range(0, width, BLOCK, num_stages=STAGES):
                    ids, mass = left_over(
                        row, q_row, start, rejected, total, width, exclude, heat, top, kth, least, low, limit,
                        HAS_Q, BLOCK, BITS, REAL,
                    )  # fmt: skip
                    sums = tl.where(blocks == start // BLOCK, tl.sum(mass.to(tl.float64), 0), sums)
                if tl.sum(sums, 0) > 0.0:
                    found = sums
                else:  # what is left has no mass: the correction is drawn from p
                    rejected = -1
                    total = tl.full([], 1.0, REAL)
        share = uniform(tl.load(seeds + request), tl.load(positions + at), purpose)
        block, target = block_at(found, share, BLOCKS)
        ids, mass = left_over(
            row, q_row, block * BLOCK, rejected, total, width, exclude, heat, top, kth, least, low, limit,
            HAS_Q, BLOCK, BITS, REAL,
        )  # fmt: skip
        token = token_at(ids, mass, target, width)
    tl.store(accepted + request, end.to(tl.int64))
    tl.store(tokens + request, token.to(tl.int64))


def accept(
    rule: str,
    logits: Tensor,
    drafts: Tensor,
    count: Tensor,
    sampling: SamplingColumns,
    positions: Tensor,
    q: Tensor | None,
    top: int,
    threshold: float,
    exclude: int | None,
    block: int = BLOCK_OF_ROWS,
) -> tuple[Tensor, Tensor]:
    """Judge as `kernels.fixed.acceptance.accept_torch` does -> (accepted int64 [n], next int64 [n])."""
    n, r, width = logits.shape
    flat = logits.reshape(n * r, width)
    drafts, positions = drafts.contiguous(), positions.contiguous()
    found = Statistics.of(flat, sampling.temperature, r, exclude, block)
    stands = torch.empty(n * r, dtype=torch.int32, device=logits.device)
    picks = torch.empty(n * r, dtype=torch.int64, device=logits.device)
    kept = found.rooms()
    proposed = found.maxima if q is None else q.contiguous()
    options = {"RULE": rule, "HAS_Q": q is not None, **found.constants}
    judge_rows[(n * r,)](
        flat, found.maxima, found.places, found.sums, found.room(), *sampling, positions, drafts, count, proposed,
        stands, picks, *kept, found.stride, r, width, found.exclude, found.blocks, top, threshold,
        RAW=found.raw, **options,
    )  # fmt: skip
    accepted, tokens = torch.empty_like(count), torch.empty_like(count)
    end_requests[(n,)](
        flat, sampling.temperature, sampling.seeds, positions, drafts, count, proposed, stands, picks, *kept,
        accepted, tokens, found.stride, r, width, found.exclude,
        ROWS=triton.next_power_of_2(r + 1), **options | {"num_warps": WARPS_AT_THE_END},
    )  # fmt: skip
    return accepted, tokens


_COLUMNS = "*fp64:16 *i64:16 *fp64:16 *fp64:16"
_KEPT = "*fp32:16 *i64:16 *fp64:16"
_JUDGED = (
    f"*bf16:16 *fp32:16 *i32:16 *fp64:16 *i32:16 {_COLUMNS} *i64:16 *i64:16 *i64:16 *i64:16 *fp32:16 *i32:16 "
    f"*i64:16 {_KEPT} i32:16 i32 i32:16 i32 i32 i32 fp32"
)
_ENDED = (
    f"*bf16:16 *fp64:16 *i64:16 *i64:16 *i64:16 *i64:16 *fp32:16 *i32:16 *i64:16 {_KEPT} *i64:16 *i64:16 "
    "i32:16 i32 i32:16 i32"
)
_SHAPE = {"BLOCK": 2048, "BLOCKS": 128, "BITS": 16, "REAL": tl.float32}
_RAW = {"RAW": tl.bfloat16}
SPECIALISATIONS = (
    *(
        Specialisation(
            f"{rule}, bf16", judge_rows, _JUDGED, {"RULE": rule, "HAS_Q": True, **_SHAPE, **_RAW}, warps=WARPS
        )
        for rule in ("match", "rejection", "topk", "threshold")
    ),
    *(
        Specialisation(
            f"{rule}, bf16",
            end_requests,
            _ENDED,
            {"RULE": rule, "HAS_Q": True, "ROWS": 16, **_SHAPE},
            warps=WARPS_AT_THE_END,
        )
        for rule in ("rejection", "threshold")
    ),
)
