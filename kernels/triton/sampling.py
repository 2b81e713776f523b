"""The `sample` operator as Triton kernels: statistics of blocks, then a draw a row.

Floor: logits read once (rows * V * their width in bytes), and a wanted law written once (rows * V * 4 bytes); the law's
bounds cost reads from L2 (`law.py`). Torch reading: `kernels/fixed/sampling.py`; `law.py` says where rounding may
differ, and a token differs only where its random number falls within that rounding of a boundary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.law import as_real
from fsm_spec.kernels.triton.launch import Specialisation
from fsm_spec.kernels.triton.law import drawn, law_of, weights, whole
from fsm_spec.kernels.triton.randomness import uniform
from fsm_spec.kernels.triton.scores import BLOCK as BLOCK_OF_ROWS
from fsm_spec.kernels.triton.scores import WARPS, Statistics, best_of


@triton.jit
def sample_rows(
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
    tokens,
    laws,
    stride,
    rows_each,
    width,
    exclude,
    blocks,
    PURPOSE: tl.constexpr,
    DRAWS: tl.constexpr,
    LAW: tl.constexpr,
    POINT: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BITS: tl.constexpr,
    REAL: tl.constexpr,
    RAW: tl.constexpr,
):
    """Choose the token of one row, by its law (DRAWS) or its best; write its law (LAW) or a point mass (POINT)."""
    at = tl.program_id(0)
    row = logits + at.to(tl.int64) * stride
    request = at // rows_each
    _, token = best_of(maxima, places, at * blocks, blocks, width, BLOCKS)
    if DRAWS or (LAW and not POINT):
        heat, top, kth, least, low, limit, found = law_of(
            row, at * blocks, request, maxima, places, sums, near + at * BLOCK, temperature, top_k, top_p, min_p,
            width, exclude, blocks, BLOCK, BLOCKS, BITS, REAL, RAW,
        )  # fmt: skip
        if DRAWS:
            share = uniform(tl.load(seeds + request), tl.load(positions + at), PURPOSE)
            token = drawn(
                row,
                width,
                exclude,
                heat,
                top,
                kth,
                least,
                low,
                limit,
                found,
                share,
                BLOCK,
                BLOCKS,
                BITS,
                REAL,
            )
        if LAW:
            total = whole(found, REAL)
            for start in range(0, width, BLOCK):
                ids, mass = weights(
                    row, start, width, exclude, heat, top, kth, least, low, limit, BLOCK, BITS, REAL
                )
                tl.store(laws + at.to(tl.int64) * width + ids, mass / total, mask=ids < width)
    if LAW and POINT:
        for start in range(0, width, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            tl.store(laws + at.to(tl.int64) * width + ids, (ids == token).to(REAL), mask=ids < width)
    tl.store(tokens + at, token.to(tl.int64))


def sample(
    logits: Tensor,
    sampling: SamplingColumns,
    positions: Tensor,
    purpose: int,
    rule: str,
    *,
    exclude: int | None,
    want_law: bool,
    block: int = BLOCK_OF_ROWS,
) -> tuple[Tensor, Tensor]:
    """Choose tokens as `kernels.fixed.sampling.sample_torch` does -> (tokens [n, r], laws, empty unless wanted)."""
    n, r, width = logits.shape
    flat = logits.reshape(n * r, width)
    found = Statistics.of(flat, sampling.temperature, r, exclude, block)
    tokens = torch.empty((n, r), dtype=torch.int64, device=logits.device)
    laws = as_real(logits[:0]).new_empty((n, r, width) if want_law else (0,))
    sample_rows[(n * r,)](
        flat, found.maxima, found.places, found.sums, found.room(), *sampling, positions.contiguous(), tokens, laws,
        found.stride, r, width, found.exclude, found.blocks,
        PURPOSE=purpose, DRAWS=rule == "law", LAW=want_law, POINT=rule == "argmax", RAW=found.raw, **found.constants,
    )  # fmt: skip
    return tokens, laws


_COLUMNS = "*fp64:16 *i64:16 *fp64:16 *fp64:16 *i64:16"
_STATISTICS = "*fp32:16 *i32:16 *fp64:16 *i32:16"
_ROWS = f"*bf16:16 {_STATISTICS} {_COLUMNS} *i64:16 *i64:16 *fp32:16 i32:16 i32 i32:16 i32 i32"
_SHAPE = {"BLOCK": 2048, "BLOCKS": 128, "BITS": 16, "REAL": tl.float32, "RAW": tl.bfloat16}
SPECIALISATIONS = (
    Specialisation(
        "draws, bf16",
        sample_rows,
        _ROWS,
        {"PURPOSE": 1, "DRAWS": True, "LAW": False, "POINT": False, **_SHAPE},
        warps=WARPS,
    ),
    Specialisation(
        "draws and law, bf16",
        sample_rows,
        _ROWS,
        {"PURPOSE": 2, "DRAWS": True, "LAW": True, "POINT": False, **_SHAPE},
        warps=WARPS,
    ),
)
