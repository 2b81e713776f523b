"""Runs of tokens laid out piece by piece in fixed shapes: the op `lay_tokens`.

The kernel stands in `kernels/triton/pieces.py`; the ragged runner joins slices in place of it (`executor/carry.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("fsm_spec::lay_tokens", mutates_args=("run",), device_types="cpu")
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
    """Put one piece of a run where the pieces before it end, in place: places from start to before stop of each line.

    run int64 [n, room]; source int64 [S, W], read from place `begin` on, at its ends where the piece goes beyond them,
    or None: all places become `fill`; lines int64 [n], which of the source's lines a request's is, or None: its own;
    begin, start and stop int64 [n], or None where they are the same for all, as `numbers` has them in this order.
    """
    lay_tokens_fixed(run, source, lines, numbers, begin, start, stop, fill)


@lay_tokens.register_kernel("cuda")
def _(
    run: Tensor,
    source: Tensor | None,
    lines: Tensor | None,
    numbers: list[int],
    begin: Tensor | None,
    start: Tensor | None,
    stop: Tensor | None,
    fill: int,
) -> None:
    from fsm_spec.kernels.triton import pieces  # noqa: PLC0415 -- a CPU needs no Triton

    pieces.lay_tokens(run, source, lines, numbers, begin, start, stop, fill)


@lay_tokens.register_fake
def _(
    run: Tensor,
    source: Tensor | None,
    lines: Tensor | None,
    numbers: list[int],
    begin: Tensor | None,
    start: Tensor | None,
    stop: Tensor | None,
    fill: int,
) -> None:
    pass


def lay_tokens_fixed(
    run: Tensor,
    source: Tensor | None,
    lines: Tensor | None,
    numbers: list[int],
    begin: Tensor | None,
    start: Tensor | None,
    stop: Tensor | None,
    fill: int,
) -> None:
    """Compute `lay_tokens` in torch."""
    read, first, end = (
        number if each is None else each.unsqueeze(1)
        for number, each in zip(numbers, (begin, start, stop), strict=True)
    )
    place = torch.arange(run.shape[1], device=run.device).unsqueeze(0)
    inside = (place >= first) & (place < end)
    if source is None:
        run.masked_fill_(inside, fill)
        return
    width = source.shape[1]
    own = torch.arange(len(run), device=run.device) if lines is None else lines
    index = own.unsqueeze(1) * width + (place - first + read).clamp(0, width - 1)
    run.copy_(torch.where(inside, source.flatten()[index], run))
