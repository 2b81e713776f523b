"""The low-rank update of gated rows: base weights for all rows, adapter weights on top for some, in plain torch."""

from __future__ import annotations

import torch
from torch.nn import functional


def add_low_rank(
    out: torch.Tensor, rows_in: torch.Tensor, rows: torch.Tensor, down: torch.Tensor, up: torch.Tensor
) -> torch.Tensor:
    """Add `up @ down @ x` to the gated rows of `out`, in place, and return it.

    `out` [T, outputs], `rows_in` [T, inputs], `rows` [n] int64 without repeats, `down` [rank, inputs],
    `up` [outputs, rank] with the adapter's scale already in it (LoRA, arXiv:2106.09685 section 4.1).
    Other rows are not touched, not even by adding zero, so that they equal a forward without the adapter bit for bit.
    """
    gated = rows_in.index_select(0, rows)
    return out.index_add_(0, rows, functional.linear(functional.linear(gated, down), up))
