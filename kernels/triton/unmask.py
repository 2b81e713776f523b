"""The `unmask` operator as Triton kernels: statistics of blocks, a proposal an open row, then the block of a request.

Floor: the logits of open rows read once (rows * V * their width in bytes); bounds cost reads from L2.
Torch reading: `kernels/fixed/unmask.py`. Draws differ from it as `law.py` says; confidence is exp(logit - maximum) /
total and entropy log(total) - mean score here, where the reading adds float32 terms: a row whose confidence or entropy
is within 1e-6 of a bound, or of another row's, may fall on the other side.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.triton.launch import Specialisation
from fsm_spec.kernels.triton.law import drawn, law_of
from fsm_spec.kernels.triton.randomness import uniform
from fsm_spec.kernels.triton.scores import BLOCK as BLOCK_OF_ROWS
from fsm_spec.kernels.triton.scores import WARPS, Statistics, plain_law

# As `kernels/unmask.py` and `kernels/randomness.py` number them.
MASKED, DRAFT = tl.constexpr(-2), tl.constexpr(2)


@triton.jit
def propose_rows(
    logits,
    maxima,
    places,
    sums,
    near,
    plain,
    temperature,
    top_k,
    top_p,
    min_p,
    seeds,
    positions,
    turns,
    tokens,
    counts,
    proposed,
    confidence,
    entropy,
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
    """Draw the token of one open row, and its confidence and the row's entropy at temperature 1."""
    at = tl.program_id(0)
    request = at // rows_each
    if (tl.load(tokens + at) == MASKED) & (at % rows_each < tl.load(counts + request)):
        row = logits + at.to(tl.int64) * stride
        heat, top, kth, least, low, limit, found = law_of(
            row, at * blocks, request, maxima, places, sums, near + at * BLOCK, temperature, top_k, top_p, min_p,
            width, exclude, blocks, BLOCK, BLOCKS, BITS, REAL, RAW,
        )  # fmt: skip
        # The turn salts the position, as `kernels/randomness.py:salted` does.
        name = tl.load(positions + at) + (tl.load(turns + request) << 32)
        share = uniform(tl.load(seeds + request), name, DRAFT)
        token = drawn(
            row, width, exclude, heat, top, kth, least, low, limit, found, share, BLOCK, BLOCKS, BITS, REAL
        )
        best, total, spread = plain_law(plain, at * blocks, blocks, BLOCKS)
        chance = tl.exp(tl.load(row + token).to(tl.float64) - best) / total
        tl.store(proposed + at, token.to(tl.int64))
        tl.store(confidence + at, chance.to(REAL))
        tl.store(entropy + at, spread)


@triton.jit
def ranked(key, ROWS: tl.constexpr):
    """Return each row's place in descending order of its key, the lower row first on ties."""
    each = tl.arange(0, ROWS)
    ahead = (key[None, :] > key[:, None]) | ((key[None, :] == key[:, None]) & (each[None, :] < each[:, None]))
    return tl.sum(ahead.to(tl.int32), 1)


@triton.jit
def fill_blocks(
    tokens,
    counts,
    proposed,
    confidence,
    entropy,
    quota,
    last,
    first,
    stop_ids,
    rest,
    filled,
    rows_each,
    RULE: tl.constexpr,
    THRESHOLD: tl.constexpr,
    BOUND: tl.constexpr,
    HAS_LAST: tl.constexpr,
    HAS_FIRST: tl.constexpr,
    STOPS: tl.constexpr,
    ROWS: tl.constexpr,
    REAL: tl.constexpr,
):
    """Commit the rows of one request that its rule chooses, and freeze what stands behind a stop token."""
    request = tl.program_id(0)
    each = tl.arange(0, ROWS)
    inside = each < rows_each
    at = request * rows_each + each
    token = tl.load(tokens + at, mask=inside, other=0)
    live = inside & (each < tl.load(counts + request))
    masked = live & (token == MASKED)
    choice = tl.load(proposed + at, mask=masked, other=0)
    sure = tl.load(confidence + at, mask=masked, other=float("-inf"))
    bar = tl.full([], THRESHOLD, REAL)
    certain = tl.sum((masked & ((sure > bar) | ((sure == bar) & (RULE == "threshold")))).to(tl.int32), 0)
    if RULE == "sequential":
        rank = tl.cumsum(masked.to(tl.int32), 0) - 1
        number = tl.load(quota + request).to(tl.int32)
    elif RULE == "entropy":
        spread = tl.load(entropy + at, mask=masked, other=float("inf"))
        rank = ranked(-spread, ROWS)
        before = (rank[None, :] <= rank[:, None]) & masked[None, :]
        reached = tl.sum(tl.where(before, spread[None, :], 0.0), 1)
        number = tl.sum((masked & (reached <= tl.full([], BOUND, tl.float64))).to(tl.int32), 0)
    else:
        rank = ranked(sure, ROWS)
        number = certain
        if RULE == "schedule":
            number = tl.load(quota + request).to(tl.int32)
        elif RULE == "dynamic":
            number = tl.maximum(tl.load(quota + request).to(tl.int32), certain)
    committed = masked & (rank < tl.maximum(number, 1))
    if HAS_LAST:
        committed = committed | (masked & (tl.load(last + request) != 0))
    block = tl.where(committed, choice, token)
    if STOPS > 0:
        begin = 0
        if HAS_FIRST:
            begin = tl.load(first + request).to(tl.int32)
        stop = each < 0
        for number_of in tl.static_range(STOPS):
            stop = stop | (block == tl.load(stop_ids + request * STOPS + number_of))
        stop = stop & live & (each >= begin)
        earliest = tl.min(tl.where(stop, each, ROWS), 0)
        word = tl.sum(tl.where(each == earliest, block, 0), 0)
        block = tl.where(live & (each > earliest) & (block == MASKED), word, block)
    tl.store(filled + at, block, mask=inside)
    tl.store(rest + request, tl.sum((live & (block == MASKED)).to(tl.int64), 0))


def unmask(
    rule: str,
    logits: Tensor,
    tokens: Tensor,
    counts: Tensor,
    sampling: SamplingColumns,
    positions: Tensor,
    turns: Tensor,
    threshold: float,
    quota: Tensor | None,
    bound: float,
    last: Tensor | None,
    first: Tensor | None,
    stop_ids: Tensor | None,
    exclude: int | None,
    block: int = BLOCK_OF_ROWS,
) -> tuple[Tensor, Tensor]:
    """Commit as `kernels.fixed.unmask.unmask` does -> (rest int64 [n], filled int64 [n, r])."""
    n, r, width = logits.shape
    flat = logits.reshape(n * r, width)
    tokens = tokens.contiguous()
    found = Statistics.of(flat, sampling.temperature, r, exclude, block, plain=True)
    proposed = torch.empty_like(tokens)
    confidence, entropy = found.maxima.new_empty((n, r)), found.sums.new_empty((n, r))
    propose_rows[(n * r,)](
        flat, found.maxima, found.places, found.sums, found.room(), found.plain, *sampling,
        positions.contiguous(), turns, tokens, counts, proposed, confidence, entropy,
        found.stride, r, width, found.exclude, found.blocks, RAW=found.raw, **found.constants,
    )  # fmt: skip
    rest, filled = torch.empty_like(counts), torch.empty_like(tokens)
    none = counts
    fill_blocks[(n,)](
        tokens, counts, proposed, confidence, entropy,
        none if quota is None else quota,
        none if last is None else last.view(torch.int8),
        none if first is None else first,
        none if stop_ids is None else stop_ids.contiguous(),
        rest, filled, r,
        RULE=rule, THRESHOLD=threshold, BOUND=bound, HAS_LAST=last is not None, HAS_FIRST=first is not None,
        STOPS=0 if stop_ids is None else stop_ids.shape[1], ROWS=triton.next_power_of_2(r),
        REAL=found.constants["REAL"], num_warps=4,
    )  # fmt: skip
    return rest, filled


_IDS = "*i64:16"
_ROWS = (
    "*bf16:16 *fp32:16 *i32:16 *fp64:16 *i32:16 *fp64:16 *fp64:16 *i64:16 *fp64:16 *fp64:16 *i64:16 "
    f"{_IDS} {_IDS} {_IDS} {_IDS} {_IDS} *fp32:16 *fp64:16 i32:16 i32 i32:16 i32 i32"
)
_SHAPE = {"BLOCK": 2048, "BLOCKS": 128, "BITS": 16, "REAL": tl.float32, "RAW": tl.bfloat16}
_FILL = f"{_IDS} {_IDS} {_IDS} *fp32:16 *fp64:16 {_IDS} *i8:16 {_IDS} {_IDS} {_IDS} {_IDS} i32"
SPECIALISATIONS = (
    Specialisation("bf16", propose_rows, _ROWS, _SHAPE, warps=WARPS),
    *(
        Specialisation(
            f"{rule}, 32 rows",
            fill_blocks,
            _FILL,
            {
                "RULE": rule,
                "THRESHOLD": 0.9,
                "BOUND": 0.5,
                "HAS_LAST": True,
                "HAS_FIRST": True,
                "STOPS": 2,
                "ROWS": 32,
                "REAL": tl.float32,
            },
        )
        for rule in ("dynamic", "entropy")
    ),
)
