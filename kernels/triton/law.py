"""The law of the next token, a row a program, without a sort and without a law in memory.

Floor: none of its own beyond the statistics of `scores.py` and the reads of `bounds.py`, but for one block a draw.
Reading: `kernels/fixed/law.py`. A row's law is exp(score - maximum) / total over the kept tokens, and what is kept is
four numbers: tokens of at least the k-th best score, of at least `least` of the best token's mass, and beyond a last
logit that top-p keeps, of whose ties the first by id. Both bounds are found bit by bit over logits as ordered integers.
Exact but for rounding: sums are float64 in another order, exp is the device's; where two different logits give one
score after the division by the temperature, top-p ranks them by logit, the reading by id.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsm_spec.kernels.triton.bounds import STAGES, bounds
from fsm_spec.kernels.triton.scores import (
    GREEDY_BELOW,
    best_of,
    divided,
    loaded,
    ordered,
    temperature_of,
    top_score,
)


@triton.jit
def weights(
    row,
    start,
    width,
    exclude,
    heat,
    top,
    kth,
    least,
    low,
    limit,
    BLOCK: tl.constexpr,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
):
    """Return a block's (ids, mass relative to the best token's, 0 where a token is not kept)."""
    ids, there, raw = loaded(row, start, width, exclude, BLOCK)
    score = divided(raw.to(REAL), heat, REAL)
    mass = tl.exp(score - top)
    key = ordered(raw, BITS)
    kept = there & (score >= kth) & (mass >= least) & ((key > low) | ((key == low) & (ids <= limit)))
    return ids, tl.where(kept, mass, 0.0)


@triton.jit
def kept_sums(
    row,
    width,
    exclude,
    heat,
    top,
    kth,
    least,
    low,
    limit,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
):
    """Sum the kept mass of each block -> float64 [BLOCKS]."""
    each = tl.arange(0, BLOCKS)
    sums = tl.zeros([BLOCKS], tl.float64)
    for start in tl.range(0, width, BLOCK, num_stages=STAGES):
        ids, mass = weights(row, start, width, exclude, heat, top, kth, least, low, limit, BLOCK, BITS, REAL)
        sums = tl.where(each == start // BLOCK, tl.sum(mass.to(tl.float64), 0), sums)
    return sums


@triton.jit
def law_of(
    row,
    at,
    request,
    maxima,
    places,
    sums,
    near,
    temperature,
    top_k,
    top_p,
    min_p,
    width,
    exclude,
    blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
    RAW: tl.constexpr,
):
    """Find a row's law -> (heat, top, kth, least, low, limit, sums of blocks float64 [BLOCKS]).

    A greedy row keeps one token, its first best.
    """
    best, place = best_of(maxima, places, at, blocks, width, BLOCKS)
    heat = temperature_of(temperature, request, REAL)
    top = top_score(best, heat, REAL)
    each = tl.arange(0, BLOCKS)
    tops = tl.load(maxima + at + each, mask=each < blocks, other=float("-inf"))
    found = tl.load(sums + at + each, mask=each < blocks, other=0.0)
    found *= tl.exp(divided(tops, heat, REAL) - top).to(tl.float64)
    k, share = tl.load(top_k + request), tl.load(top_p + request)
    least = tl.load(min_p + request).to(REAL)
    kth = tl.full([], float("-inf"), REAL)
    limit = width
    if BITS == 64:
        low = tl.full([], -(1 << 63), tl.int64)
    else:
        low = tl.full([], -(1 << (BITS - 1)), tl.int32)
    if tl.load(temperature + request) < GREEDY_BELOW:
        low = ordered(best.to(RAW), BITS)
        limit = place
        least = tl.zeros([], REAL)
        found = tl.where(each == place // BLOCK, 1.0, 0.0).to(tl.float64)
    elif (k > 0) | (share < 1.0) | (least > 0.0):
        total = tl.sum(found, 0)
        kth, low, limit = bounds(
            row, near, width, exclude, heat, top, total, k, share, BLOCK, BITS, REAL, RAW
        )
        found = kept_sums(row, width, exclude, heat, top, kth, least, low, limit, BLOCK, BLOCKS, BITS, REAL)
    return heat, top, kth, least, low, limit, found


@triton.jit
def whole(sums, REAL: tl.constexpr):
    """Return the mass of a row, what its law is divided by; 1 for a row of NaN, which is dead."""
    total = tl.sum(sums, 0).to(REAL)
    return tl.where(total > 0.0, total, 1.0)


@triton.jit
def block_at(sums, share, BLOCKS: tl.constexpr):
    """Find the block where a share of the whole mass is reached -> (block, mass before it, mass to reach)."""
    each = tl.arange(0, BLOCKS)
    cumulated = tl.cumsum(sums, 0)
    target = share * tl.sum(tl.where(each == BLOCKS - 1, cumulated, 0.0), 0)
    some = sums > 0.0
    block = tl.min(tl.where((cumulated > target) & some, each, BLOCKS), 0)
    # Rounding may leave the target a hair above all sums: then it is the last block with mass.
    block = tl.where(block == BLOCKS, tl.max(tl.where(some, each, 0), 0), block)
    before = tl.sum(tl.where(each < block, sums, 0.0), 0)
    return block, target - before


@triton.jit
def token_at(ids, mass, target, width):
    """Find the first token of a block whose cumulated mass exceeds the target; the last with mass if none does."""
    cumulated = tl.cumsum(mass.to(tl.float64), 0)
    some = mass > 0.0
    token = tl.min(tl.where((cumulated > target) & some, ids, width), 0)
    last = tl.max(tl.where(some, ids, 0), 0)
    return tl.where(token == width, last, token)


@triton.jit
def drawn(
    row,
    width,
    exclude,
    heat,
    top,
    kth,
    least,
    low,
    limit,
    sums,
    share,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
):
    """Draw the token at a share of a row's mass."""
    block, target = block_at(sums, share, BLOCKS)
    ids, mass = weights(
        row, block * BLOCK, width, exclude, heat, top, kth, least, low, limit, BLOCK, BITS, REAL
    )
    return token_at(ids, mass, target, width)


@triton.jit
def store_law(reals, keys, masses, at, top, kth, least, low, limit, found, BLOCKS: tl.constexpr):
    """Keep a row's law for a later kernel: `reals` [rows, 3], `keys` int64 [rows, 2], `masses` [rows, BLOCKS]."""
    tl.store(reals + at * 3, top)
    tl.store(reals + at * 3 + 1, kth)
    tl.store(reals + at * 3 + 2, least)
    tl.store(keys + at * 2, low.to(tl.int64))
    tl.store(keys + at * 2 + 1, limit.to(tl.int64))
    tl.store(masses + at * BLOCKS + tl.arange(0, BLOCKS), found)


@triton.jit
def stored_law(reals, keys, masses, at, BLOCKS: tl.constexpr, BITS: tl.constexpr):
    """Return the law of a row that `store_law` kept -> (top, kth, least, low, limit, sums of blocks)."""
    low = tl.load(keys + at * 2)
    if BITS != 64:
        low = low.to(tl.int32)
    limit = tl.load(keys + at * 2 + 1).to(tl.int32)
    top, kth, least = tl.load(reals + at * 3), tl.load(reals + at * 3 + 1), tl.load(reals + at * 3 + 2)
    return top, kth, least, low, limit, tl.load(masses + at * BLOCKS + tl.arange(0, BLOCKS))


@triton.jit
def keep_laws(
    logits,
    maxima,
    places,
    sums,
    near,
    temperature,
    top_k,
    top_p,
    min_p,
    count,
    reals,
    keys,
    masses,
    stride,
    rows_each,
    width,
    exclude,
    blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
    RAW: tl.constexpr,
):
    """Find the law of one row and keep it; each request has `count` live rows."""
    at = tl.program_id(0)
    request = at // rows_each
    if at % rows_each < tl.load(count + request):
        row = logits + at.to(tl.int64) * stride
        heat, top, kth, least, low, limit, found = law_of(
            row, at * blocks, request, maxima, places, sums, near + at * BLOCK, temperature, top_k, top_p, min_p,
            width, exclude, blocks, BLOCK, BLOCKS, BITS, REAL, RAW,
        )  # fmt: skip
        store_law(reals, keys, masses, at, top, kth, least, low, limit, found, BLOCKS)


@triton.jit
def mass_of(
    row,
    token,
    width,
    exclude,
    heat,
    top,
    kth,
    least,
    low,
    limit,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
):
    """Return the mass of one token relative to the best one's, 0 where it is not kept or no token."""
    known = tl.maximum(token, 0)
    ids, mass = weights(row, known, width, exclude, heat, top, kth, least, low, limit, 1, BITS, REAL)
    return tl.sum(tl.where(ids == token, mass, 0.0), 0)
