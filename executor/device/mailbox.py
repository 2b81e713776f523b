"""The input mailbox: what the host tells the device before a launch, in one copy.

One row a line that changes: the pages it holds from now on, and, where a request comes or goes, its columns, sampling
parameters and stop tokens. Behind the rows stand the texts of newcomers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsm_spec.executor.carry import EMPTY
from fsm_spec.executor.device.control import bits
from fsm_spec.executor.device.state import NO_STOP_ID, STOP_IDS, DeviceState
from fsm_spec.executor.request import Request

Numbers = NDArray[np.int64]
# In front of the columns: line, pages, whether columns are written, whether a request begins.
_HEADS = 4
_PARAMETERS = 5


@dataclass
class Entry:
    """Say what becomes of a line: its pages (None: as they are), columns, and the request that begins there."""

    pages: int | None = None
    columns: Mapping[str, int] | None = None
    request: Request | None = None


@dataclass
class Mailbox:
    """Gather entries by line until they are sent; the last word about a line stands."""

    entries: dict[int, Entry] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)

    def entry(self, line: int) -> Entry:
        """Give the entry of a line."""
        return self.entries.setdefault(line, Entry())

    def pack(self, state: DeviceState, rows: int) -> Numbers:
        """Lay the entries out as `rows` rows, padded with rows for nobody's line, int64 [rows, width]."""
        width = row_width(state)
        packed = np.zeros((rows, width), np.int64)
        packed[:, 0] = state.dump
        names = list(state.columns)
        for row, (line, entry) in zip(packed, self.entries.items(), strict=False):
            if entry.pages is not None:
                self.held[line] = entry.pages
            row[:2] = line, self.held.get(line, 0)
            if entry.columns is not None:
                row[2] = 1
                row[_HEADS : _HEADS + len(names)] = [entry.columns[name] for name in names]
            if entry.request is not None:
                row[3] = 1
                row[_HEADS + len(names) :] = _parameters(entry.request)
        return packed


def row_width(state: DeviceState) -> int:
    """Count the numbers of a row."""
    return _HEADS + len(state.columns) + _PARAMETERS + STOP_IDS


def _parameters(request: Request) -> list[int]:
    sampling = request.sampling
    stop_ids = sorted(request.stop_ids)
    return [
        bits(sampling.temperature),
        sampling.top_k,
        bits(sampling.top_p),
        bits(sampling.min_p),
        request.seed,
        *stop_ids,
        *[NO_STOP_ID] * (STOP_IDS - len(stop_ids)),
    ]


class Opening:
    """Open mail on the device: work that a graph can hold."""

    digest = ""
    states = ("mail",)
    variant = ""

    def __init__(self, state: DeviceState) -> None:
        self.state = state

    def blank(self, size: int) -> Tensor:
        """Give mail about nobody."""
        mail = torch.zeros(size, row_width(self.state), dtype=torch.int64, device=self.state.device)
        mail[:, 0] = self.state.dump
        return mail

    def __call__(self, mail: Tensor) -> list[Tensor]:
        """Follow the rows of a mailbox int64 [rows, width] on the device."""
        state = self.state
        lines, pages = mail[:, 0], mail[:, 1].int()
        changed = torch.where(mail[:, 2] > 0, lines, state.dump)
        begun = torch.where(mail[:, 3] > 0, lines, state.dump)
        at = _HEADS
        for values in state.columns.values():
            values.index_copy_(0, changed, mail[:, at].int())
            at += 1
        for column in state.sampling:
            numbers = mail[:, at].contiguous()
            column.index_copy_(
                0, begun, numbers.view(torch.float64) if column.dtype.is_floating_point else numbers
            )
            at += 1
        state.stop_ids.index_copy_(0, begun, mail[:, at:].contiguous())
        for tokens in state.tokens.values():
            tokens.index_fill_(0, begun, EMPTY)
        state.resize(lines, pages)
        return []
