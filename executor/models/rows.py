"""The rows of one forward: what every row plan, prefill chunk or mixed batch is handed to the model as."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RowBatch:
    """Hold T rows of B requests; the rows of request b are `row_start[b]:row_start[b + 1]`.

    The slots of all rows are distinct: two rows of one position have two slots.
    A row sees its request's `context_slots`, and the rows of its own block that its mask line names; a mask that is
    wider than the block speaks of the last context slots as well.
    """

    token_ids: torch.Tensor
    """[T] int64"""
    positions: torch.Tensor
    """[T] int64, the position the rotary embedding turns a row to"""
    slots: torch.Tensor
    """[T] int64, page * page_size + offset: where a row's K and V are written"""
    row_start: list[int]
    """B + 1 row offsets, not decreasing"""
    context_slots: list[torch.Tensor]
    """B tensors of int64: the committed prefix in the order of positions"""
    masks: list[torch.Tensor]
    """B bool tensors [rows, n], n >= rows: `mask[i, j]` says whether row i sees the j-th of the n last slots"""
    logits_rows: torch.Tensor
    """[L] int64, the rows whose logits are wanted"""
    adapter_rows: torch.Tensor | None = None
    """[T] bool, the rows that run with adapter weights; None runs all rows on base weights"""

    @property
    def requests(self) -> int:
        """Count the requests."""
        return len(self.row_start) - 1
