"""Input ids of rows, read from carries, texts or outputs in fixed shapes: the op `gather_ids`.

The kernel stands in `kernels/triton/gather.py`; the ragged runner reads slices in place of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fsm_spec.kernels.unmask import MASKED


@torch.library.custom_op("fsm_spec::gather_ids", mutates_args=(), device_types="cpu")
def gather_ids(
    source: Tensor, lines: Tensor, start: Tensor, count: int, mask_id: int, vocabulary: int
) -> Tensor:
    """Read `count` ids of each of n requests behind a start -> int64 [n, count].

    source int64 [S, W], a line a request; lines int64 [n], which line is a request's; start int64 [n]. Masked places
    become `mask_id`; what is no token, as dead rows read, becomes one; places beyond a line read its ends.
    """
    return gather_ids_fixed(source, lines, start, count, mask_id, vocabulary)


@gather_ids.register_kernel("cuda")
def _(source: Tensor, lines: Tensor, start: Tensor, count: int, mask_id: int, vocabulary: int) -> Tensor:
    from fsm_spec.kernels.triton import gather  # noqa: PLC0415 -- a CPU needs no Triton

    return gather.gather_ids(source, lines, start, count, mask_id, vocabulary)


@gather_ids.register_fake
def _(
    source: Tensor,
    lines: Tensor,
    start: Tensor,  # noqa: ARG001 -- the op's signature
    count: int,
    mask_id: int,  # noqa: ARG001
    vocabulary: int,  # noqa: ARG001
) -> Tensor:
    return source.new_empty(lines.shape[0], count)


def gather_ids_fixed(
    source: Tensor, lines: Tensor, start: Tensor, count: int, mask_id: int, vocabulary: int
) -> Tensor:
    """Compute `gather_ids` in torch."""
    width = source.shape[1]
    places = start.unsqueeze(1) + torch.arange(count, device=start.device)
    ids = source.flatten()[lines.unsqueeze(1) * width + places.clamp(0, width - 1)]
    return torch.where(ids == MASKED, mask_id, ids).clamp(0, vocabulary - 1)
