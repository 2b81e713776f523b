"""The input mailbox: what the host tells the device before a launch, in one copy.

One row a line that changes: the pages it holds from now on, and, where a request comes or goes, its columns, sampling
parameters and stop tokens. Behind the rows stand the texts of newcomers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsm_spec.executor.carry import EMPTY
from fsm_spec.executor.device.control import bits
from fsm_spec.executor.device.state import NO_STOP_ID, STOP_IDS, DeviceState
from fsm_spec.executor.request import Request

Numbers = NDArray[np.int64]
# In front of the columns: line, pages that stay, those that are there, all, whether columns are written, whether a
# request begins. The first four say all of a line that only gets more pages, or fewer.
_HEADS, _PAGES = 6, 4
_PARAMETERS = 5


@dataclass
class Entry:
    """Say what becomes of a line: its pages, columns (None: as they are), and the request that begins there.

    Of the pages that the line held before, the first `stays` are not given back; of those that it holds from now on,
    the first `starts` are not taken from the list of free ones.
    """

    stays: int
    starts: int
    pages: int
    columns: Mapping[str, int] | None = None
    newcomer: Newcomer | None = None


@dataclass(frozen=True)
class Newcomer:
    """Hold a request that begins on a line: its number, tokens whose KV it found, and what it asks of its logits."""

    number: int
    request: Request
    hit: int
    controls: Numbers


@dataclass(frozen=True)
class Taken:
    """Say which requests take how many pages by a mail, in the order of its rows."""

    numbers: list[int]
    counts: list[int]


class Mailbox:
    """Gather entries by line until they are sent; the last word about a line stands."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self._held: dict[int, int] = {}
        self._numbers: dict[int, int] = {}

    def entry(self, line: int) -> Entry:
        """Give the entry of a line."""
        if line not in self.entries:
            held = self._held.get(line, 0)
            self.entries[line] = Entry(held, held, held)
        return self.entries[line]

    def resize(self, line: int, pages: int) -> None:
        """Let a line hold so many pages; what was given back in between is taken anew."""
        entry = self.entry(line)
        entry.pages, entry.starts = pages, min(entry.starts, pages)
        if entry.newcomer is None:
            entry.stays = entry.starts

    def admit(
        self, line: int, newcomer: Newcomer, pages: int, found: int, columns: Mapping[str, int]
    ) -> None:
        """Let a request begin on a line that is free, with `found` pages that it need not take."""
        entry = self.entry(line)
        entry.pages, entry.starts, entry.newcomer, entry.columns = pages, found, newcomer, columns

    def leave(self, line: int, named: int, columns: Mapping[str, int]) -> None:
        """Let the request of a line go; its first `named` pages are not the list's."""
        entry = self.entry(line)
        if entry.newcomer is None:
            entry.stays = min(entry.stays, named)
        entry.pages, entry.starts, entry.newcomer, entry.columns = 0, 0, None, columns

    @property
    def newcomers(self) -> dict[int, Newcomer]:
        """Give the requests that begin, by line."""
        return {line: entry.newcomer for line, entry in self.entries.items() if entry.newcomer is not None}

    @property
    def whole(self) -> bool:
        """Tell whether a line gets more than another number of pages."""
        return any(entry.columns is not None or entry.newcomer is not None for entry in self.entries.values())

    def pack(self, state: DeviceState, rows: int) -> tuple[Numbers, Taken]:
        """Lay the entries out as `rows` rows, padded with rows for nobody's line, int64 [rows, width]."""
        packed = np.zeros((rows, row_width(state, whole=self.whole)), np.int64)
        packed[:, 0] = state.dump
        names = list(state.columns)
        taken = Taken([], [])
        for row, (line, entry) in zip(packed, self.entries.items(), strict=False):
            self._held[line] = entry.pages
            row[:4] = line, entry.stays, entry.starts, entry.pages
            if entry.columns is not None:
                row[4] = 1
                row[_HEADS : _HEADS + len(names)] = [entry.columns[name] for name in names]
            if entry.newcomer is not None:
                self._numbers[line] = entry.newcomer.number
                row[5] = 1
                row[_HEADS + len(names) :] = _parameters(entry.newcomer.request)
            if entry.pages > entry.starts:
                taken.numbers.append(self._numbers[line])
                taken.counts.append(entry.pages - entry.starts)
        return packed, taken


def row_width(state: DeviceState, *, whole: bool) -> int:
    """Count the numbers of a row: pages alone, or the whole of it."""
    return _HEADS + len(state.columns) + _PARAMETERS + STOP_IDS if whole else _PAGES


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
    """Open mail on the device: work that a graph can hold.

    Most mail moves pages alone, between the rounds of requests that live: it is opened in five launches, where mail
    about those who come or go takes some thirty.
    """

    digest = ""
    states = ("mail",)

    def __init__(self, state: DeviceState, *, whole: bool) -> None:
        self.state = state
        self.whole = whole
        self.variant = "" if whole else "pages"
        self.width = row_width(state, whole=whole)

    def blank(self, size: int) -> Tensor:
        """Give mail about nobody."""
        mail = torch.zeros(size, self.width, dtype=torch.int64, device=self.state.device)
        mail[:, 0] = self.state.dump
        return mail

    def __call__(self, mail: Tensor) -> list[Tensor]:
        """Follow the rows of a mailbox int64 [rows, width] on the device."""
        lines = mail[:, 0].contiguous()
        if self.whole:
            self._rewrite(lines, mail)
        moved = mail[:, 1:_PAGES].t().int().contiguous()
        self.state.resize(lines, moved[0], moved[1], moved[2])
        return []

    def _rewrite(self, lines: Tensor, mail: Tensor) -> None:
        """Write columns of lines that change, and parameters of requests that begin."""
        state = self.state
        changed = torch.where(mail[:, 4] > 0, lines, state.dump)
        begun = torch.where(mail[:, 5] > 0, lines, state.dump)
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
