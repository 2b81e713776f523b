"""The rows of one launch while they are collected: blocks of groups first, then prefill chunks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from fsm_spec.executor.cache import PageAllocator
from fsm_spec.executor.models.drafter import ContextRows
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.executor.request import Tokens

Integers = NDArray[np.int64]


@dataclass
class Batch:
    """Collect the parts of a RowBatch, each of one or more requests; `total` counts the rows so far."""

    allocator: PageAllocator
    total: int = 0
    lines: list[Integers] = field(default_factory=list)
    counts: list[Integers] = field(default_factory=list)
    ids: list[Tokens] = field(default_factory=list)
    positions: list[Integers] = field(default_factory=list)
    slots: list[Integers] = field(default_factory=list)
    context: list[Integers] = field(default_factory=list)
    masks: list[torch.Tensor] = field(default_factory=list)
    wanted: list[Integers] = field(default_factory=list)
    # By part; None where no row of it is gated.
    gated: list[NDArray[np.bool_] | None] = field(default_factory=list)
    # For draft models: hidden states beside the rows, and rows without queries.
    features: list[torch.Tensor] = field(default_factory=list)
    silent: list[ContextRows] = field(default_factory=list)

    def add(
        self,
        lines: Integers,
        counts: Integers,
        ids: Tokens,
        positions: Integers,
        slots: Integers,
        context: Integers,
        masks: list[torch.Tensor],
        gated: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add T rows of n requests, `counts` [n] of each, in `slots` [T] of the request behind its first `context` [n].

        `lines` [n] are those of their block tables.
        """
        self.total += len(ids)
        self.lines.append(lines)
        self.counts.append(counts)
        self.ids.append(ids)
        self.positions.append(positions)
        self.slots.append(slots)
        self.context.append(context)
        self.masks += masks
        self.gated.append(gated)

    def rows(self) -> RowBatch:
        """Join the parts, and find their slots in the cache."""
        lines, counts, context = _joined(self.lines), _joined(self.counts), _joined(self.context)
        slots = self.allocator.physical(lines.repeat(counts), _joined(self.slots))
        return RowBatch(
            token_ids=torch.from_numpy(_joined(self.ids)),
            positions=torch.from_numpy(_joined(self.positions)),
            slots=torch.from_numpy(slots),
            row_start=[0, *counts.cumsum().tolist()],
            context_slots=torch.from_numpy(self.allocator.fronts(lines, context)),
            context=context.tolist(),
            masks=self.masks,
            logits_rows=torch.from_numpy(_joined(self.wanted) if self.wanted else np.zeros(0, np.int64)),
            adapter_rows=self._adapter_rows(),
        )

    def _adapter_rows(self) -> torch.Tensor | None:
        if all(part is None for part in self.gated):
            return None
        whole = [
            np.zeros(len(ids), np.bool_) if part is None else part
            for ids, part in zip(self.ids, self.gated, strict=True)
        ]
        return torch.from_numpy(np.concatenate(whole))

    def joined_features(self) -> torch.Tensor | None:
        """Join the hidden states beside the rows, [T, width]; None where the model reads none."""
        return torch.cat(self.features) if self.features else None

    def context_rows(self) -> ContextRows:
        """Join the rows without queries."""
        return ContextRows(
            torch.cat([rows.features for rows in self.silent]),
            torch.cat([rows.positions for rows in self.silent]),
            torch.cat([rows.slots for rows in self.silent]),
        )


def _joined(parts: list[Integers]) -> Integers:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
