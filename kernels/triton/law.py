"""The law of the next token, a row a program, without a sort and without a law in memory.

Floor: logits are read once (rows * V * their width in bytes); everything else is small. A row with top-k or top-p reads
them again from L2: twice for each two bits of a logit, so 8 times in 16-bit logits for either bound.
Reading: `kernels/fixed/law.py`. A row's law is exp(score - maximum) / total over the kept tokens, and what is kept is
four numbers: tokens of at least the k-th best score, of at least `least` of the best token's mass, and beyond a last
logit that top-p keeps, of whose ties the first by id. Both bounds are found bit by bit over logits as ordered integers.
Exact but for rounding: sums are float64 in another order, exp is the device's; where two different logits give one
score after the division by the temperature, top-p ranks them by logit, the reading by id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
import triton
import triton.language as tl
from torch import Tensor

# Tokens that a program reads at once, and its warps: 4 tokens a thread keep every kernel here near 100 registers.
BLOCK, WARPS = 2048, 16
# Below it a temperature is greedy; `kernels/law.py` says why.
GREEDY_BELOW = tl.constexpr(1e-5)


@triton.jit
def ordered(raw, BITS: tl.constexpr):
    """Map logits to integers of the same order; both zeros are one. int32 of 16- and 32-bit logits, else int64."""
    if BITS == 16:
        bits = raw.to(tl.int16, bitcast=True).to(tl.int32)
        key = tl.where(bits < 0, bits ^ 0x7FFF, bits)
    elif BITS == 32:
        bits = raw.to(tl.int32, bitcast=True)
        key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    else:
        bits = raw.to(tl.int64, bitcast=True)
        key = tl.where(bits < 0, bits ^ 0x7FFFFFFFFFFFFFFF, bits)
    return tl.where(key == -1, 0, key)


@triton.jit
def logit_of(key, BITS: tl.constexpr, RAW: tl.constexpr):
    """Return the logit that `ordered` maps to an integer."""
    if BITS == 16:
        bits = tl.where(key < 0, key ^ 0x7FFF, key).to(tl.int16)
    elif BITS == 32:
        bits = tl.where(key < 0, key ^ 0x7FFFFFFF, key)
    else:
        bits = tl.where(key < 0, key ^ 0x7FFFFFFFFFFFFFFF, key)
    return bits.to(RAW, bitcast=True)


@triton.jit
def divided(value, temperature, REAL: tl.constexpr):
    """Divide as IEEE does: Triton's own division of float32 is approximate."""
    if REAL == tl.float32:
        return tl.div_rn(value, temperature)
    return value / temperature


@triton.jit
def loaded(row, start, width, exclude, BLOCK: tl.constexpr):
    """Load a block of a row -> (ids, which are tokens, logits); `exclude` (-1: none) is none."""
    ids = start + tl.arange(0, BLOCK)
    there = (ids >= 0) & (ids < width) & (ids != exclude)
    return ids, there, tl.load(row + ids, mask=there, other=float("-inf"))


@triton.jit
def block_statistics(
    logits,
    temperature,
    maxima,
    places,
    sums,
    plain,
    stride,
    rows_each,
    width,
    exclude,
    blocks,
    PLAIN: tl.constexpr,
    BLOCK: tl.constexpr,
    REAL: tl.constexpr,
):
    """Reduce a block of a row: its largest logit, where that is first, and the mass relative to it.

    PLAIN adds those of the law of all tokens at temperature 1, `exclude` among them, with what its entropy needs.
    """
    row, block = tl.program_id(0), tl.program_id(1)
    ids, there, raw = loaded(logits + row.to(tl.int64) * stride, block * BLOCK, width, exclude, BLOCK)
    value = raw.to(REAL)
    best = tl.max(value, 0)
    place = tl.min(tl.where((value == best) & there, ids, width - 1), 0)
    heat = temperature_of(temperature, row // rows_each, REAL)
    mass = tl.where(there, tl.exp(divided(value, heat, REAL) - top_score(best, heat, REAL)), 0.0)
    at = row * blocks + block
    tl.store(maxima + at, best)
    tl.store(places + at, place)
    tl.store(sums + at, tl.sum(mass.to(tl.float64), 0))
    if PLAIN:
        _, there, raw = loaded(logits + row.to(tl.int64) * stride, block * BLOCK, width, -1, BLOCK)
        value = raw.to(REAL)
        best = tl.max(value, 0)
        score = tl.where(value > float("-inf"), value - top_score(best, 1.0, REAL), 0.0)
        mass = tl.where(there & (value > float("-inf")), tl.exp(score), 0.0).to(tl.float64)
        tl.store(plain + at * 3, best.to(tl.float64))
        tl.store(plain + at * 3 + 1, tl.sum(mass, 0))
        tl.store(plain + at * 3 + 2, tl.sum(mass * score.to(tl.float64), 0))


@triton.jit
def plain_law(plain, at, blocks, BLOCKS: tl.constexpr):
    """Combine a row's blocks -> (largest logit, mass relative to it, entropy in nats) at temperature 1, float64."""
    each = tl.arange(0, BLOCKS)
    inside = each < blocks
    tops = tl.load(plain + (at + each) * 3, mask=inside, other=float("-inf"))
    sums = tl.load(plain + (at + each) * 3 + 1, mask=inside, other=0.0)
    dots = tl.load(plain + (at + each) * 3 + 2, mask=inside, other=0.0)
    best = tl.max(tops, 0)
    drop = tl.where(tops > float("-inf"), tops - best, 0.0)
    scale = tl.where(tops > float("-inf"), tl.exp(drop), 0.0)
    total = tl.sum(sums * scale, 0)
    total = tl.where(total > 0.0, total, 1.0)
    return best, total, tl.log(total) - tl.sum((dots + sums * drop) * scale, 0) / total


@triton.jit
def top_score(best, heat, REAL: tl.constexpr):
    """Return the score of the largest logit, which masses are relative to; 0 where every token is impossible."""
    return tl.where(best > float("-inf"), divided(best, heat, REAL), 0.0)


@triton.jit
def temperature_of(temperature, request, REAL: tl.constexpr):
    """Load what a request's logits are divided by: 1 for a greedy one."""
    heat = tl.load(temperature + request)
    return tl.where(heat < GREEDY_BELOW, 1.0, heat).to(REAL)


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
    for digit in range(BITS // 2):  # noqa: B007 -- `_` would be a variable of the loop to Triton
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
    if (top_k > 0) & (top_k < width - (exclude >= 0).to(tl.int32)):
        least_key = search(row, width, exclude, heat, top, kth, top_k, False, BLOCK, BITS, REAL)
        kth = divided(logit_of(least_key, BITS, RAW).to(REAL), heat, REAL)
        total = total_mass(row, width, exclude, heat, top, kth, BLOCK, REAL)
    if top_p < 1.0:
        need = top_p * total
        low = search(row, width, exclude, heat, top, kth, need, True, BLOCK, BITS, REAL)
        limit = last_tie(row, width, exclude, heat, top, kth, low, need, BLOCK, BITS, REAL)
    return kth, low, limit


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
    for start in range(0, width, BLOCK):
        ids, mass = weights(row, start, width, exclude, heat, top, kth, least, low, limit, BLOCK, BITS, REAL)
        sums = tl.where(each == start // BLOCK, tl.sum(mass.to(tl.float64), 0), sums)
    return sums


@triton.jit
def best_of(maxima, places, at, blocks, width, BLOCKS: tl.constexpr):
    """Combine a row's blocks -> (largest logit, its first id)."""
    each = tl.arange(0, BLOCKS)
    tops = tl.load(maxima + at + each, mask=each < blocks, other=float("-inf"))
    best = tl.max(tops, 0)
    first = tl.load(places + at + each, mask=each < blocks, other=width - 1)
    return best, tl.min(tl.where(tops == best, first, width - 1), 0)


@triton.jit
def law_of(
    row,
    at,
    request,
    maxima,
    places,
    sums,
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
        kth, low, limit = bounds(row, width, exclude, heat, top, total, k, share, BLOCK, BITS, REAL, RAW)
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
            row, at * blocks, request, maxima, places, sums, temperature, top_k, top_p, min_p,
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
    ids, mass = weights(row, token, width, exclude, heat, top, kth, least, low, limit, 1, BITS, REAL)
    return tl.sum(tl.where(ids >= 0, mass, 0.0), 0)


REALS = {16: tl.float32, 32: tl.float32, 64: tl.float64}
RAWS = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}


@dataclass(frozen=True)
class Statistics:
    """Hold what `block_statistics` found of rows [rows, V], and what all kernels over them take."""

    maxima: Tensor  # [rows, blocks], float32 (float64 for float64 logits)
    places: Tensor  # int32 [rows, blocks]
    sums: Tensor  # float64 [rows, blocks]
    plain: Tensor  # float64 [rows, blocks, 3]; empty unless wanted
    stride: int
    width: int
    exclude: int
    blocks: int
    constants: dict[str, Any]

    @classmethod
    def of(
        cls,
        flat: Tensor,
        temperature: Tensor,
        rows_each: int,
        exclude: int | None,
        block: int,
        *,
        plain: bool = False,
    ) -> Self:
        """Reduce rows [rows, V], `rows_each` to a request, under the requests' temperatures float64 [n].

        `plain` asks for those of the law at temperature 1 too.
        """
        rows, width = flat.shape
        blocks = triton.cdiv(width, block)
        bits = flat.dtype.itemsize * 8
        real = torch.float64 if bits == 64 else torch.float32
        maxima = flat.new_empty((rows, blocks), dtype=real)
        places = flat.new_empty((rows, blocks), dtype=torch.int32)
        sums = flat.new_empty((rows, blocks), dtype=torch.float64)
        others = sums.new_empty((rows, blocks, 3) if plain else (0,))
        out = -1 if exclude is None else exclude
        block_statistics[(rows, blocks)](
            flat, temperature, maxima, places, sums, others, flat.stride(0), rows_each, width, out, blocks,
            PLAIN=plain, BLOCK=block, REAL=REALS[bits], num_warps=WARPS,
        )  # fmt: skip
        constants = {
            "BLOCK": block,
            "BLOCKS": triton.next_power_of_2(blocks),
            "BITS": bits,
            "REAL": REALS[bits],
            "RAW": RAWS[flat.dtype],
            "num_warps": WARPS,
        }
        return cls(maxima, places, sums, others, flat.stride(0), width, out, blocks, constants)

    def rooms(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return memory for one law a row, as `store_law` keeps it."""
        rows = len(self.maxima)
        return (
            self.maxima.new_empty((rows, 3)),
            self.places.new_empty((rows, 2), dtype=torch.int64),
            self.sums.new_empty((rows, self.constants["BLOCKS"])),
        )
