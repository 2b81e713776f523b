"""Runs of tokens laid out piece by piece: the kernel of `lay_tokens`. Torch reading: `kernels/fixed/pieces.py`.

Floor: 16 bytes moved a token of the piece; what counts is that it is one launch, where torch takes eleven.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fsm_spec.kernels.triton.launch import Specialisation

BLOCK = 256


@triton.jit
def number_of(values, number, request, inside):
    """Load a number of each request; without values it is the same for all."""
    if values is not None:
        return tl.load(values + request, mask=inside, other=0)
    return (request * 0 + number).to(tl.int64)


@triton.jit(do_not_specialize=["begin_number", "start_number", "stop_number", "fill"])
def lay_piece(
    run,
    source,
    lines,
    begin,
    start,
    stop,
    begin_number,
    start_number,
    stop_number,
    fill,
    total,
    room,
    width,
    BLOCK: tl.constexpr,
) -> None:
    """Write those of BLOCK of the total = n * room places that are the piece's; grid (blocks)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    request = at // room
    place = (at % room).to(tl.int64)
    first = number_of(start, start_number, request, inside)
    mine = inside & (place >= first) & (place < number_of(stop, stop_number, request, inside))
    if source is not None:
        index = place - first + number_of(begin, begin_number, request, inside)
        index = tl.minimum(tl.maximum(index, 0), width - 1)
        line = request.to(tl.int64)
        if lines is not None:
            line = tl.load(lines + request, mask=inside, other=0)
        value = tl.load(source + line * width + index, mask=mine, other=0)
    else:
        value = tl.zeros([BLOCK], tl.int64) + fill
    tl.store(run + at, value, mask=mine)


def lay_tokens(
    run: Tensor,
    source: Tensor | None,
    lines: Tensor | None,
    numbers: list[int],
    begin: Tensor | None,
    start: Tensor | None,
    stop: Tensor | None,
    fill: int,
) -> None:
    """Launch the kernel of the op `lay_tokens`."""
    if not run.numel():
        return
    width = 0
    if source is not None:
        source, width = source.contiguous(), source.shape[1]
    lay_piece[(triton.cdiv(run.numel(), BLOCK),)](
        run, source, lines, begin, start, stop, *numbers, fill, run.numel(), run.shape[1], width, BLOCK=BLOCK
    )


_NUMBERS = "i32 i32 i32 i32 i32 i32 i32"
SPECIALISATIONS = (
    Specialisation(
        "of a carry",
        lay_piece,
        f"*i64:16 *i64:16 *i64:16 *i64:16 *i64:16 *i64:16 {_NUMBERS}",
        {"BLOCK": BLOCK},
    ),
    Specialisation(
        "masks",
        lay_piece,
        f"*i64:16 *i64:16 *i64:16 {_NUMBERS}",
        {"source": None, "lines": None, "begin": None, "BLOCK": BLOCK},
    ),
)
