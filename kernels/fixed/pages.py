"""Pages of resident requests in fixed shapes: what requests hold too much returns, then the others take theirs."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("fsm_spec::resize_pages", mutates_args=("held", "block_table", "free", "free_count"))
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
    """Let lines int64 [m] hold `want` pages, in place: all is given back before anything is taken.

    `stays`, `starts`, `want` int32 [m]: of what a line holds, all but its first `stays` pages return; of what it is to
    hold, all but the first `starts` are taken. They differ where other requests hold the pages in front as well.
    Shapes: held int32 [s] and block_table int32 [s, p] of all lines; free int32 [pages + 1], a stack of free pages
    whose last place takes what is dropped; free_count int64 [1]. Each line stands once, but for one that neither
    gives nor takes; that enough pages are free, the caller has counted.
    """
    resize_torch(lines, stays, starts, want, held, block_table, free, free_count)


@resize_pages.register_kernel("cuda")
def _(
    lines: Tensor,
    stays: Tensor,
    starts: Tensor,
    want: Tensor,
    held: Tensor,
    block_table: Tensor,
    free: Tensor,
    free_count: Tensor,
) -> None:
    from fsm_spec.kernels.triton import pages as kernels  # noqa: PLC0415 -- a CPU needs no Triton

    # The kernel reads them side by side, whatever they were cut from.
    lines, stays, starts, want = (each.contiguous() for each in (lines, stays, starts, want))
    kernels.resize_pages(lines, stays, starts, want, held, block_table, free, free_count)


@resize_pages.register_fake
def _(
    lines: Tensor,
    stays: Tensor,
    starts: Tensor,
    want: Tensor,
    held: Tensor,
    block_table: Tensor,
    free: Tensor,
    free_count: Tensor,
) -> None:
    pass


def resize_torch(
    lines: Tensor,
    stays: Tensor,
    starts: Tensor,
    want: Tensor,
    held: Tensor,
    block_table: Tensor,
    free: Tensor,
    free_count: Tensor,
) -> None:
    """Give back and take pages in plain torch, as `resize_pages` says."""
    have = held.index_select(0, lines)
    table = block_table.index_select(0, lines)
    place = torch.arange(table.shape[1], dtype=torch.int32, device=lines.device)
    gives = ((place >= stays.unsqueeze(1)) & (place < have.unsqueeze(1))).flatten()
    rank = gives.long().cumsum(0)
    into = torch.where(gives, free_count + rank - 1, len(free) - 1)
    free.index_copy_(0, into, table.flatten())
    free_count.add_(rank[-1])
    takes = ((place >= starts.unsqueeze(1)) & (place < want.unsqueeze(1))).flatten()
    rank = takes.long().cumsum(0)
    pages = free.index_select(0, (free_count - rank).clamp(min=0))
    table = torch.where(takes, pages, table.flatten()).view_as(table)
    free_count.sub_(rank[-1])
    block_table.index_copy_(0, lines, table)
    held.index_copy_(0, lines, want)


@torch.library.custom_op("fsm_spec::physical_slots", mutates_args=(), device_types="cpu")
def physical_slots(block_table: Tensor, lines: Tensor, slots: Tensor, live: Tensor, page_size: int) -> Tensor:
    """Map slots of requests to the cache's -> int32 [n, m], page * page_size + offset; -1 where not live.

    block_table int32 [s, p] of all lines; lines int64 [n]; slots int64 [n, m], at the table's ends where beyond them;
    live bool, of a shape that expands to [n, m].
    """
    return physical_torch(block_table, lines, slots, live, page_size)


@physical_slots.register_kernel("cuda")
def _(block_table: Tensor, lines: Tensor, slots: Tensor, live: Tensor, page_size: int) -> Tensor:
    from fsm_spec.kernels.triton import pages as kernels  # noqa: PLC0415 -- a CPU needs no Triton

    return kernels.physical_slots(block_table, lines, slots, live, page_size)


@physical_slots.register_fake
def _(
    block_table: Tensor,
    lines: Tensor,  # noqa: ARG001 -- the op's signature
    slots: Tensor,
    live: Tensor,  # noqa: ARG001
    page_size: int,  # noqa: ARG001
) -> Tensor:
    return block_table.new_empty(slots.shape)


def physical_torch(block_table: Tensor, lines: Tensor, slots: Tensor, live: Tensor, page_size: int) -> Tensor:
    """Map slots in plain torch, as `physical_slots` says."""
    table = block_table.index_select(0, lines)
    page = table.gather(1, (slots // page_size).clamp(0, table.shape[1] - 1))
    return torch.where(live, page * page_size + slots % page_size, -1).int()
