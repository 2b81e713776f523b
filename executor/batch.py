"""The rows of one launch while they are collected: blocks of groups first, then prefill chunks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from fsm_spec.executor.models.drafter import ContextRows
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.executor.request import Tokens


@dataclass
class Batch:
    """Collect the parts of a RowBatch, request after request."""

    ids: list[Tokens] = field(default_factory=list)
    positions: list[NDArray[np.int64]] = field(default_factory=list)
    slots: list[torch.Tensor] = field(default_factory=list)
    row_start: list[int] = field(default_factory=lambda: [0])
    context: list[torch.Tensor] = field(default_factory=list)
    masks: list[torch.Tensor] = field(default_factory=list)
    wanted: list[NDArray[np.int64]] = field(default_factory=list)
    gated: list[NDArray[np.bool_]] = field(default_factory=list)
    any_gated: bool = False
    # For draft models: hidden states beside the rows, and rows without queries.
    features: list[torch.Tensor] = field(default_factory=list)
    silent: list[ContextRows] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Count the rows so far."""
        return self.row_start[-1]

    def rows(self) -> RowBatch:
        """Join the parts."""
        return RowBatch(
            token_ids=torch.from_numpy(_joined(self.ids)),
            positions=torch.from_numpy(_joined(self.positions)),
            slots=self.slots[0] if len(self.slots) == 1 else torch.cat(self.slots),
            row_start=self.row_start,
            context_slots=self.context,
            masks=self.masks,
            logits_rows=torch.from_numpy(_joined(self.wanted) if self.wanted else np.zeros(0, np.int64)),
            adapter_rows=torch.from_numpy(np.concatenate(self.gated)) if self.any_gated else None,
        )

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


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
