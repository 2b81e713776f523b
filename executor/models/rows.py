"""The rows of one forward: what every row plan, prefill chunk or mixed batch is handed to the model as.

`RowBatch` holds live rows alone, laid out by the host; `FixedRows` holds every row of a plan for every request of a
bucket, dead ones too, so that its shapes are the same in each round; `JoinedRows` holds several of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class RowBatch:
    """Hold T rows of B requests; the rows of request b are `row_start[b]:row_start[b + 1]`.

    The slots of all rows are distinct: two rows of one position have two slots.
    A row sees its request's context, and the rows of its own block that its mask line names; a mask that is wider
    than the block speaks of the last context slots as well.
    """

    token_ids: torch.Tensor
    """[T] int64"""
    positions: torch.Tensor
    """[T] int64, the position the rotary embedding turns a row to"""
    slots: torch.Tensor
    """[T] int64, page * page_size + offset: where a row's K and V are written"""
    row_start: list[int]
    """B + 1 row offsets, not decreasing"""
    context_slots: torch.Tensor
    """[B, C] int64, the committed prefix of each request in the order of positions; any slots behind it"""
    context: list[int]
    """B lengths of the committed prefixes, C at most"""
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

    def context_of(self, request: int) -> torch.Tensor:
        """Give the slots of one request's committed prefix."""
        return self.context_slots[request, : self.context[request]]


@dataclass(frozen=True)
class FixedRows:
    """Hold R rows of each of n requests; row r of request i is row i * R + r.

    A row sees its request's first `context` slots, by the block table, and those of the M `block_slots` whose bit is
    set in its line of the mask (`kernels/fixed/attention.py`). Dead rows have slot -1 and see nothing.
    """

    token_ids: torch.Tensor
    """[n * R] int64"""
    positions: torch.Tensor
    """[n * R] int64"""
    slots: torch.Tensor
    """[n, R] int32, page * page_size + offset, -1 where nothing is written"""
    block_table: torch.Tensor
    """[n, P] int32, pages"""
    context: torch.Tensor
    """[n] int32"""
    block_slots: torch.Tensor
    """[n, M] int32, -1 where there is none"""
    mask: torch.Tensor
    """[n or 1, R, ceil(M / 32)] int32, packed"""
    logits_rows: torch.Tensor
    """[L] int64, the rows whose logits are wanted"""
    page_size: int
    adapter_rows: torch.Tensor | None = None
    """[n * R] bool, the rows that run with adapter weights; None runs all rows on base weights"""
    attention: str = "auto"
    """the backend of attention (`kernels/backends.py`)"""

    @property
    def parts(self) -> tuple[FixedRows, ...]:
        """Give the rows that are attended by one launch: all."""
        return (self,)


@dataclass(frozen=True)
class JoinedRows:
    """Hold rows of several shapes for one forward, one part behind the other.

    Products with weights run once for all parts; only K and V are written, and attention runs, part by part. K and V
    of all parts are written before any of them is attended, so rows of one part see those of another by their slots.
    """

    parts: tuple[FixedRows, ...]

    @cached_property
    def token_ids(self) -> torch.Tensor:
        """Give the token ids [T] int64."""
        return torch.cat([part.token_ids for part in self.parts])

    @cached_property
    def positions(self) -> torch.Tensor:
        """Give the positions [T] int64."""
        return torch.cat([part.positions for part in self.parts])

    @cached_property
    def logits_rows(self) -> torch.Tensor:
        """Give the rows whose logits are wanted [L] int64, by their numbers among all."""
        numbers, first = [], 0
        for part in self.parts:
            numbers.append(part.logits_rows + first)
            first += len(part.positions)
        return torch.cat(numbers)

    @cached_property
    def adapter_rows(self) -> torch.Tensor | None:
        """Give the rows that run with adapter weights [T] bool; None runs all rows on base weights."""
        if all(part.adapter_rows is None for part in self.parts):
            return None
        gates = [
            torch.zeros_like(part.positions, dtype=torch.bool)
            if part.adapter_rows is None
            else part.adapter_rows
            for part in self.parts
        ]
        return torch.cat(gates)


ForwardRows = RowBatch | FixedRows | JoinedRows
