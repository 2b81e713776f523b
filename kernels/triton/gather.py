"""Input ids of rows, read from carries, texts or outputs: the kernel of `gather_ids`.

Torch reading: `kernels/fixed/gather.py`.

Floor: 16 bytes moved an id; what counts is that it is one launch, where torch takes eight.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fsm_spec.kernels.triton.launch import Specialisation
from fsm_spec.kernels.unmask import MASKED

BLOCK = 256


@triton.jit
def read_ids(
    source,
    lines,
    start,
    ids,
    total,
    count,
    width,
    mask_id,
    vocabulary,
    NONE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Read BLOCK of the total = n * count ids; grid (blocks). NONE is what masked places hold."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    request = at // count
    place = tl.load(start + request, mask=inside, other=0) + at % count
    place = tl.minimum(tl.maximum(place, 0), width - 1)
    line = tl.load(lines + request, mask=inside, other=0)
    found = tl.load(source + line * width + place, mask=inside, other=0)
    found = tl.where(found == NONE, mask_id, found)
    tl.store(ids + at, tl.minimum(tl.maximum(found, 0), vocabulary - 1), mask=inside)


def gather_ids(
    source: Tensor, lines: Tensor, start: Tensor, count: int, mask_id: int, vocabulary: int
) -> Tensor:
    """Launch the kernel of the op `gather_ids`."""
    ids = source.new_empty((len(lines), count))
    total = ids.numel()
    read_ids[(triton.cdiv(total, BLOCK),)](
        source,
        lines,
        start,
        ids,
        total,
        count,
        source.shape[1],
        mask_id,
        vocabulary,
        NONE=MASKED,
        BLOCK=BLOCK,
    )
    return ids


SPECIALISATIONS = (
    Specialisation(
        "int64",
        read_ids,
        "*i64:16 *i64:16 *i64:16 *i64:16 i32 i32 i32 i32 i32",
        {"NONE": MASKED, "BLOCK": BLOCK},
    ),
)
