"""Release and taking of pages in one program, where torch would launch twenty.

Floor: 8 bytes moved a page that changes hands, 28 a line. Torch reading: `kernels/fixed/pages.py`; exact.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fsm_spec.kernels.triton.launch import Specialisation


@triton.jit
def resize_lines(
    lines, stays, starts, want, held, block_table, free, free_count, count, width, LINES: tl.constexpr
) -> None:
    """Give back what lines hold above `stays`, then take from `starts` to `want`, a lane a line; grid (1,)."""
    each = tl.arange(0, LINES)
    inside = each < count
    line = tl.load(lines + each, mask=inside, other=0)
    have = tl.load(held + line, mask=inside, other=0)
    wish = tl.load(want + each, mask=inside, other=0)
    stay = tl.load(stays + each, mask=inside, other=0)
    start = tl.load(starts + each, mask=inside, other=0)
    gives, takes = tl.maximum(have - stay, 0), tl.maximum(wish - start, 0)
    table = block_table + line * width
    pages = tl.load(free_count)
    into = free + pages + (tl.cumsum(gives, 0) - gives)
    for page in range(tl.max(gives, 0)):
        given = page < gives
        tl.store(into + page, tl.load(table + stay + page, mask=given, other=0), mask=given)
    pages += tl.sum(gives, 0)
    # What one lane gave, another takes.
    tl.debug_barrier()
    last = free + pages - 1 - (tl.cumsum(takes, 0) - takes)
    for page in range(tl.max(takes, 0)):
        taken = page < takes
        tl.store(table + start + page, tl.load(last - page, mask=taken, other=0), mask=taken)
    tl.store(held + line, wish, mask=inside)
    tl.store(free_count, pages - tl.sum(takes, 0))


def resize_pages(
    lines: Tensor,
    stays: Tensor,
    starts: Tensor,
    want: Tensor,
    held: Tensor,
    block_table: Tensor,
    free: Tensor,
    free_count: Tensor,
) -> None:
    """Launch the kernel of the op `resize_pages`."""
    resize_lines[(1,)](
        lines, stays, starts, want, held, block_table, free, free_count, len(lines), block_table.shape[1],
        LINES=triton.next_power_of_2(max(len(lines), 2)),
    )  # fmt: skip


SPECIALISATIONS = (
    Specialisation(
        "256 lines",
        resize_lines,
        "*i64:16 *i32:16 *i32:16 *i32:16 *i32:16 *i32:16 *i32:16 *i64:16 i32 i32",
        {"LINES": 256},
    ),
)
