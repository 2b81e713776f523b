"""What top-k and top-p keep of a row, found bit by bit over logits as ordered integers: no sort, and exact.

Floor: a row read from L2 once for each two bits of a logit, so 8 times in 16-bit logits for either bound, and twice
more; rows without a bound read nothing. Torch reading: `kernels/fixed/law.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsm_spec.kernels.triton.scores import divided, loaded, logit_of, ordered


@triton.jit
def search(
    row,
    width,
    exclude,
    heat,
    top,
    kth,
    need,
    BY_MASS: tl.constexpr,
    BLOCK: tl.constexpr,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
):
    """Find the largest logit (as an ordered integer) that tokens of measure `need` reach; the lowest if none do.

    The measure is the count of tokens, or the mass of those with a score of at least `kth`.
    """
    if BITS == 64:
        step = tl.full([], 1 << 62, tl.int64)
    else:
        step = tl.full([], 1 << (BITS - 2), tl.int32)
    low = -2 * step
    for digit in range(BITS // 2):  # noqa: B007 -- see RUF059
        far_1 = tl.zeros([BLOCK], tl.float64)
        far_2 = tl.zeros([BLOCK], tl.float64)
        far_3 = tl.zeros([BLOCK], tl.float64)
        for start in range(0, width, BLOCK):
            ids, there, raw = loaded(row, start, width, exclude, BLOCK)
            key = ordered(raw, BITS)
            if BY_MASS:
                score = divided(raw.to(REAL), heat, REAL)
                measure = tl.where(there & (score >= kth), tl.exp(score - top), 0.0).to(tl.float64)
            else:
                measure = there.to(tl.float64)
            far_1 += tl.where(key >= low + step, measure, 0.0)
            far_2 += tl.where(key >= low + 2 * step, measure, 0.0)
            far_3 += tl.where(key >= low + 3 * step, measure, 0.0)
        reached = (tl.sum(far_1, 0) >= need).to(tl.int32)
        reached += (tl.sum(far_2, 0) >= need).to(tl.int32)
        reached += (tl.sum(far_3, 0) >= need).to(tl.int32)
        low += reached * step
        step = step >> 2
    return low


@triton.jit
def last_tie(
    row,
    width,
    exclude,
    heat,
    top,
    kth,
    low,
    need,
    BLOCK: tl.constexpr,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
):
    """Return the id of the last token with logit `low` that top-p keeps: those before it weigh less than `need`."""
    above = tl.zeros([BLOCK], tl.float64)
    tied = tl.zeros([BLOCK], tl.float64)
    mass = tl.zeros([], tl.float64)
    for start in range(0, width, BLOCK):
        ids, there, raw = loaded(row, start, width, exclude, BLOCK)
        key = ordered(raw, BITS)
        score = divided(raw.to(REAL), heat, REAL)
        weight = tl.where(there & (score >= kth), tl.exp(score - top), 0.0).to(tl.float64)
        above += tl.where(key > low, weight, 0.0)
        tied += tl.where(there & (key == low), 1.0, 0.0)
        mass = tl.maximum(mass, tl.max(tl.where(there & (key == low), weight, 0.0), 0))
    room = need - tl.sum(above, 0)
    limit = width
    if tl.sum(tied, 0) > 1.0:
        seen = tl.zeros([], tl.float64)
        limit = -1
        for start in range(0, width, BLOCK):
            ids, there, raw = loaded(row, start, width, exclude, BLOCK)
            tie = there & (ordered(raw, BITS) == low)
            before = seen + tl.cumsum(tie.to(tl.float64), 0) - 1.0
            # The first is kept whatever rounding says: the search found that it is reached.
            kept = tie & ((before * mass < room) | (before < 1.0))
            limit = tl.maximum(limit, tl.max(tl.where(kept, ids, -1), 0))
            seen += tl.sum(tie.to(tl.float64), 0)
    return limit


@triton.jit
def total_mass(
    row,
    width,
    exclude,
    heat,
    top,
    kth,
    BLOCK: tl.constexpr,
    REAL: tl.constexpr,
):
    """Sum the mass of the tokens with a score of at least `kth`."""
    found = tl.zeros([BLOCK], tl.float64)
    for start in range(0, width, BLOCK):
        ids, there, raw = loaded(row, start, width, exclude, BLOCK)
        score = divided(raw.to(REAL), heat, REAL)
        found += tl.where(there & (score >= kth), tl.exp(score - top), 0.0).to(tl.float64)
    return tl.sum(found, 0)


@triton.jit
def bounds(
    row,
    width,
    exclude,
    heat,
    top,
    total,
    top_k,
    top_p,
    BLOCK: tl.constexpr,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
    RAW: tl.constexpr,
):
    """Find what top-k and top-p keep -> (k-th best score, last logit as an integer, last id of its ties)."""
    kth = tl.full([], float("-inf"), REAL)
    if BITS == 64:
        low = tl.full([], -(1 << 63), tl.int64)
    else:
        low = tl.full([], -(1 << (BITS - 1)), tl.int32)
    limit = width
    # An argument of 1 is a constant to Triton, which has no type to convert.
    excluded = tl.zeros([], tl.int32) + exclude
    if (top_k > 0) & (top_k < width - (excluded >= 0).to(tl.int32)):
        least_key = search(row, width, exclude, heat, top, kth, top_k, False, BLOCK, BITS, REAL)
        kth = divided(logit_of(least_key, BITS, RAW).to(REAL), heat, REAL)
        total = total_mass(row, width, exclude, heat, top, kth, BLOCK, REAL)
    if top_p < 1.0:
        need = top_p * total
        low = search(row, width, exclude, heat, top, kth, need, True, BLOCK, BITS, REAL)
        limit = last_tie(row, width, exclude, heat, top, kth, low, need, BLOCK, BITS, REAL)
    return kth, low, limit
