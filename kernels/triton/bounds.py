"""What top-k and top-p keep of a row, found bit by bit over logits as ordered integers: no sort, and exact.

Where what is kept lies among the few tokens nearest to the best one, as it does for all but flat laws, they are listed
first, in two reads of the row, and the bits are found over the list.
Floor: a row read from L2 twice; without a list once for each two bits of a logit, so 8 times in 16-bit logits for
either bound, and twice more; rows without a bound read nothing. Torch reading: `kernels/fixed/law.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsm_spec.kernels.triton.scores import divided, loaded, logit_of, ordered

# Blocks of a row in flight while one is reduced: a program that waits for each spends most of its time on latency.
STAGES = tl.constexpr(3)


@triton.jit
def read(row, near, start, width, exclude, LISTED: tl.constexpr, BLOCK: tl.constexpr):
    """Load a block of a row, or (LISTED) of the tokens that `near` lists -> (ids, which are tokens, logits)."""
    if LISTED:
        place = start + tl.arange(0, BLOCK)
        there = place < width
        ids = tl.load(near + place, mask=there, other=0)
        return ids, there, tl.load(row + ids, mask=there, other=float("-inf"))
    return loaded(row, start, width, exclude, BLOCK)


@triton.jit
def count_from(scores, edge, farther):
    """Count from two edges in one integer: the lower half from `edge` up, the upper half from the one farther away."""
    return (scores >= edge).to(tl.int32) + ((scores >= farther).to(tl.int32) << 16)


@triton.jit
def list_nearest(row, near, width, exclude, heat, top, BLOCK: tl.constexpr, REAL: tl.constexpr):
    """List the tokens nearest to the best in order of their ids, as many as fill a block at most -> how many; or 0.

    Nearness is by steps of the score: 1, 2, 3, 4, 6, 8, 10 or 12 below the best one. Rows of less than 65,536 blocks.
    """
    # Edges are the same numbers where tokens are counted and where they are listed: a count that were short by the
    # rounding of a large score would let the list run over.
    ones = tl.zeros([BLOCK], tl.int32)
    threes = tl.zeros([BLOCK], tl.int32)
    sixes = tl.zeros([BLOCK], tl.int32)
    tens = tl.zeros([BLOCK], tl.int32)
    for start in tl.range(0, width, BLOCK, num_stages=STAGES):
        ids, there, raw = loaded(row, start, width, exclude, BLOCK)
        score = tl.where(there, divided(raw.to(REAL), heat, REAL), float("-inf"))
        ones += count_from(score, top - 1, top - 2)
        threes += count_from(score, top - 3, top - 4)
        sixes += count_from(score, top - 6, top - 8)
        tens += count_from(score, top - 10, top - 12)
    edge = top - 1
    listed = tl.sum(ones & 0xFFFF, 0)
    edge, listed = nearest(edge, listed, top - 2, tl.sum(ones >> 16, 0), BLOCK)
    edge, listed = nearest(edge, listed, top - 3, tl.sum(threes & 0xFFFF, 0), BLOCK)
    edge, listed = nearest(edge, listed, top - 4, tl.sum(threes >> 16, 0), BLOCK)
    edge, listed = nearest(edge, listed, top - 6, tl.sum(sixes & 0xFFFF, 0), BLOCK)
    edge, listed = nearest(edge, listed, top - 8, tl.sum(sixes >> 16, 0), BLOCK)
    edge, listed = nearest(edge, listed, top - 10, tl.sum(tens & 0xFFFF, 0), BLOCK)
    edge, listed = nearest(edge, listed, top - 12, tl.sum(tens >> 16, 0), BLOCK)
    if listed > BLOCK:
        listed = 0
    else:
        before = 0
        for start in tl.range(0, width, BLOCK, num_stages=STAGES):
            ids, there, raw = loaded(row, start, width, exclude, BLOCK)
            chosen = there & (divided(raw.to(REAL), heat, REAL) >= edge)
            place = before + tl.cumsum(chosen.to(tl.int32), 0) - 1
            tl.store(near + place, ids, mask=chosen)
            before += tl.sum(chosen.to(tl.int32), 0)
        # What other threads of the program wrote is read from here on.
        tl.debug_barrier()
    return listed


@triton.jit
def nearest(edge, listed, farther, count, BLOCK: tl.constexpr):
    """Go on to an edge farther away if what is above it still fits."""
    fits = count <= BLOCK
    return tl.where(fits, farther, edge), tl.where(fits, count, listed)


@triton.jit
def search(
    row,
    near,
    width,
    exclude,
    heat,
    top,
    kth,
    need,
    BY_MASS: tl.constexpr,
    LISTED: tl.constexpr,
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
        for start in tl.range(0, width, BLOCK, num_stages=1 if LISTED else STAGES):
            ids, there, raw = read(row, near, start, width, exclude, LISTED, BLOCK)
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
    near,
    width,
    exclude,
    heat,
    top,
    kth,
    low,
    need,
    LISTED: tl.constexpr,
    BLOCK: tl.constexpr,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
):
    """Return the id of the last token with logit `low` that top-p keeps: those before it weigh less than `need`."""
    above = tl.zeros([BLOCK], tl.float64)
    tied = tl.zeros([BLOCK], tl.float64)
    mass = tl.zeros([], tl.float64)
    for start in tl.range(0, width, BLOCK, num_stages=1 if LISTED else STAGES):
        ids, there, raw = read(row, near, start, width, exclude, LISTED, BLOCK)
        key = ordered(raw, BITS)
        score = divided(raw.to(REAL), heat, REAL)
        weight = tl.where(there & (score >= kth), tl.exp(score - top), 0.0).to(tl.float64)
        above += tl.where(key > low, weight, 0.0)
        tied += tl.where(there & (key == low), 1.0, 0.0)
        mass = tl.maximum(mass, tl.max(tl.where(there & (key == low), weight, 0.0), 0))
    room = need - tl.sum(above, 0)
    # Behind every id: of a single tie, or of none, all are kept.
    limit = 0x7FFFFFFF
    if tl.sum(tied, 0) > 1.0:
        seen = tl.zeros([], tl.float64)
        limit = -1
        for start in range(0, width, BLOCK):
            ids, there, raw = read(row, near, start, width, exclude, LISTED, BLOCK)
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
    near,
    width,
    exclude,
    heat,
    top,
    kth,
    LISTED: tl.constexpr,
    BLOCK: tl.constexpr,
    REAL: tl.constexpr,
):
    """Sum the mass of the tokens with a score of at least `kth`."""
    found = tl.zeros([BLOCK], tl.float64)
    for start in tl.range(0, width, BLOCK, num_stages=1 if LISTED else STAGES):
        ids, there, raw = read(row, near, start, width, exclude, LISTED, BLOCK)
        score = divided(raw.to(REAL), heat, REAL)
        found += tl.where(there & (score >= kth), tl.exp(score - top), 0.0).to(tl.float64)
    return tl.sum(found, 0)


@triton.jit
def bounds_among(
    row,
    near,
    width,
    exclude,
    heat,
    top,
    total,
    by_count,
    top_k,
    top_p,
    LISTED: tl.constexpr,
    BLOCK: tl.constexpr,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
    RAW: tl.constexpr,
):
    """Find what top-k (where `by_count`) and top-p keep, over a whole row or the tokens that are listed of it."""
    kth = tl.full([], float("-inf"), REAL)
    if BITS == 64:
        low = tl.full([], -(1 << 63), tl.int64)
    else:
        low = tl.full([], -(1 << (BITS - 1)), tl.int32)
    limit = 0x7FFFFFFF
    if by_count:
        least_key = search(row, near, width, exclude, heat, top, kth, top_k, False, LISTED, BLOCK, BITS, REAL)
        kth = divided(logit_of(least_key, BITS, RAW).to(REAL), heat, REAL)
        total = total_mass(row, near, width, exclude, heat, top, kth, LISTED, BLOCK, REAL)
    if top_p < 1.0:
        need = top_p * total
        low = search(row, near, width, exclude, heat, top, kth, need, True, LISTED, BLOCK, BITS, REAL)
        limit = last_tie(row, near, width, exclude, heat, top, kth, low, need, LISTED, BLOCK, BITS, REAL)
    return kth, low, limit


@triton.jit
def bounds(
    row,
    near,
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
    """Find what top-k and top-p keep -> (k-th best score, last logit as an integer, last id of its ties).

    `near` [BLOCK] is memory of the row's own.
    """
    # An argument of 1 is a constant to Triton, which has no type to convert.
    excluded = tl.zeros([], tl.int32) + exclude
    by_count = (top_k > 0) & (top_k < width - (excluded >= 0).to(tl.int32))
    listed = tl.zeros([], tl.int32)
    if (width > BLOCK) & (by_count | (top_p < 1.0)):
        listed = list_nearest(row, near, width, exclude, heat, top, BLOCK, REAL)
    enough = (listed > 0) & (listed >= tl.where(by_count, top_k, 0))
    if enough & (by_count == 0):
        kth = tl.full([], float("-inf"), REAL)
        enough = total_mass(row, near, listed, exclude, heat, top, kth, True, BLOCK, REAL) >= top_p * total
    if enough:
        kth, low, limit = bounds_among(
            row, near, listed, exclude, heat, top, total, by_count, top_k, top_p, True, BLOCK, BITS, REAL, RAW
        )
    else:
        kth, low, limit = bounds_among(
            row, near, width, exclude, heat, top, total, by_count, top_k, top_p, False, BLOCK, BITS, REAL, RAW
        )
    return kth, low, limit
