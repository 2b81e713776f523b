"""Rows of logits in blocks: how a block is read and ordered, and what it adds to its row's law.

Floor of `block_statistics`: logits read once (rows * V * their width in bytes); 16 bytes written a block.
Torch reading: the maximum, argmax and softmax of `kernels/fixed/law.py`; sums are float64 in another order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
import triton
import triton.language as tl
from torch import Tensor

from fsm_spec.kernels.triton.launch import Specialisation

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
    if tl.float32 == REAL:
        return tl.div_rn(value, temperature)
    return value / temperature


@triton.jit
def loaded(row, start, width, exclude, BLOCK: tl.constexpr):
    """Load a block of a row -> (ids, which are tokens, logits); `exclude` (-1: none) is no token, but has a logit.

    A mask that may differ between neighbours would cost a load a logit, so that `exclude` cannot be part of it.
    """
    ids = start + tl.arange(0, BLOCK)
    inside = ids < width
    return ids, inside & (ids != exclude), tl.load(row + ids, mask=inside, other=float("-inf"))


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
    value = tl.where(there, raw.to(REAL), float("-inf"))
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
def best_of(maxima, places, at, blocks, width, BLOCKS: tl.constexpr):
    """Combine a row's blocks -> (largest logit, its first id)."""
    each = tl.arange(0, BLOCKS)
    tops = tl.load(maxima + at + each, mask=each < blocks, other=float("-inf"))
    best = tl.max(tops, 0)
    first = tl.load(places + at + each, mask=each < blocks, other=width - 1)
    return best, tl.min(tl.where(tops == best, first, width - 1), 0)


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
    raw: Any  # Triton's type of the logits

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
            "num_warps": WARPS,
        }
        return cls(
            maxima, places, sums, others, flat.stride(0), width, out, blocks, constants, RAWS[flat.dtype]
        )

    def room(self) -> Tensor:
        """Return memory for the tokens that `bounds.list_nearest` lists of each row."""
        return self.places.new_empty((len(self.places), self.constants["BLOCK"]))

    def rooms(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return memory for one law a row, as `store_law` keeps it."""
        rows = len(self.maxima)
        return (
            self.maxima.new_empty((rows, 3)),
            self.places.new_empty((rows, 2), dtype=torch.int64),
            self.sums.new_empty((rows, self.constants["BLOCKS"])),
        )


_STATISTICS = "*bf16:16 *fp64:16 *fp32:16 *i32:16 *fp64:16 *fp64:16 i32:16 i32 i32:16 i32 i32"
SPECIALISATIONS = tuple(
    Specialisation(
        "bf16, with the plain law" if plain else "bf16",
        block_statistics,
        _STATISTICS,
        {"PLAIN": plain, "BLOCK": BLOCK, "REAL": tl.float32},
        warps=WARPS,
    )
    for plain in (False, True)
)
