"""Release and taking of pages in one program, and where slots lie: torch would launch twenty times, and nine.

Floor: 8 bytes moved a page that changes hands, 28 a line. Torch readings: `kernels/fixed/pages.py`; exact.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fsm_spec.kernels.triton.integers import floor_divide, floor_modulo
from fsm_spec.kernels.triton.launch import Specialisation

# Slots that a program of `map_slots` maps.
SLOTS = 256


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


@triton.jit
def map_slots(
    block_table,
    lines,
    slots,
    live,
    found,
    total,
    width,
    pages,
    page_size,
    slot_request,
    slot_place,
    live_request,
    live_place,
    BLOCK: tl.constexpr,
) -> None:
    """Map BLOCK of the total = n * width slots; grid (blocks). Floor: 13 bytes a slot, and 4 a page."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    request, place = at // width, at % width
    slot = tl.load(slots + request * slot_request + place * slot_place, mask=inside, other=0)
    alive = tl.load(live + request * live_request + place * live_place, mask=inside, other=0) != 0
    line = tl.load(lines + request, mask=inside, other=0)
    # Rounding down, as torch divides: where a slot is negative nothing is live, and what is read is the first page.
    number = tl.minimum(tl.maximum(floor_divide(slot, page_size), 0), pages - 1)
    page = tl.load(block_table + line * pages + number, mask=inside & alive, other=0)
    physical = page * page_size + floor_modulo(slot, page_size).to(tl.int32)
    tl.store(found + at, tl.where(alive, physical, -1), mask=inside)


def physical_slots(block_table: Tensor, lines: Tensor, slots: Tensor, live: Tensor, page_size: int) -> Tensor:
    """Launch the kernel of the op `physical_slots`."""
    found = block_table.new_empty(slots.shape)
    live = live.view(torch.int8).expand_as(slots)
    if not found.numel():
        return found
    map_slots[(triton.cdiv(found.numel(), SLOTS),)](
        block_table, lines, slots, live, found, found.numel(), slots.shape[1], block_table.shape[1], page_size,
        *slots.stride(), *live.stride(), BLOCK=SLOTS,
    )  # fmt: skip
    return found


SPECIALISATIONS = (
    Specialisation(
        "256 slots",
        map_slots,
        "*i32:16 *i64:16 *i64:16 *i8:16 *i32:16 i32 i32 i32 i32 i32 i32 i32 i32",
        {"BLOCK": SLOTS},
    ),
    Specialisation(
        "256 lines",
        resize_lines,
        "*i64:16 *i32:16 *i32:16 *i32:16 *i32:16 *i32:16 *i32:16 *i64:16 i32 i32",
        {"LINES": 256},
    ),
)
