"""The requests that live on the device, as the host knows them: their lines, their pages, and the mail about both.

Nothing here waits for the device or runs anything: what is decided gathers in the mailbox until a letter takes it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fsm_spec.executor.device.control import numbers_of
from fsm_spec.executor.device.graphs import Graphs
from fsm_spec.executor.device.mailbox import Mailbox, Newcomer, Taken
from fsm_spec.executor.device.orders import Letter
from fsm_spec.executor.device.pages import DevicePages
from fsm_spec.executor.device.phase import Machine
from fsm_spec.executor.prefix_cache import PrefixCache
from fsm_spec.executor.request import Request
from fsm_spec.table import END, Table

Numbers = NDArray[np.int64]


class Residents:
    """Know who lives on which line, and say to the device what changes of it."""

    def __init__(self, machine: Machine, graphs: Graphs) -> None:
        self.machine = machine
        self.state = machine.state
        self.graphs = graphs
        self.requests: dict[int, Request] = {}
        self.pages = DevicePages(self.state.sizes.pages, self.state.sizes.page_size)
        self.prefixes: PrefixCache | None = None
        # By the engine's numbers, while they are admitted.
        self.lines: dict[int, int] = {}
        self._mail = Mailbox()
        self._free = list(range(self.state.sizes.lines - 1, -1, -1))
        # Lines that were not left neutral by who asked for something.
        self._shaped: set[int] = set()

    def use(self, table: Table, *, admits_here: bool) -> None:
        """Admit by this table from now on; with `admits_here` the device computes the columns of newcomers."""
        self.table = table
        self._admits_here = admits_here

    def resize(self, request: int, pages: int) -> None:
        """Follow the pages a request owns; 0 releases all."""
        if not pages:
            if self.prefixes is not None:
                self.prefixes.leave(request)
            self.pages.release(request)
            return
        self.pages.resize(request, pages)
        line = self.lines.get(request)
        if line is not None:
            self._mail.resize(line, pages)

    def admit(self, number: int, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """Give a request a line, with its text and parameters."""
        request = self.requests[number]
        if request.cached is None:
            request.cached = after["kv"]
        if after["state"] == self.table.codes[END]:
            self.requests.pop(number)
            return
        line = self.lines[number] = self._free.pop()
        found = len(self.pages.block_table(number))
        newcomer = Newcomer(number, request, found * self.pages.page_size, self._asked(line, request))
        columns = before if self._admits_here else after
        self._mail.admit(line, newcomer, self.pages.held(number), found, columns)

    def _asked(self, line: int, request: Request) -> Numbers:
        """Lay out what a request asks of its logits; nothing where that is nothing, and the line says so."""
        neutral = request.controls.neutral
        if neutral and line not in self._shaped:
            return np.zeros(0, np.int64)
        (self._shaped.discard if neutral else self._shaped.add)(line)
        return numbers_of(request, self.machine.vocabulary, self.machine.mask_id)

    def leave(self, number: int, *, known: bool) -> None:
        """Free a request's line; one that is not `known` any more is forgotten."""
        line = self.lines.pop(number, None)
        if line is not None:
            ended = self.table.new_request(0, 0) | {"state": self.table.codes[END]}
            self._mail.leave(line, self.pages.named(number), ended)
            self._free.append(line)
        if not known:
            self.requests.pop(number, None)

    def padded(self, numbers: Numbers) -> Numbers:
        """Give the lines of requests, filled up to a batch size with the line that is nobody's."""
        lines = np.full(self.graphs.bucket(len(numbers)), self.state.padding, np.int64)
        lines[: len(numbers)] = [self.lines[number] for number in numbers.tolist()]
        return lines

    def letter(self) -> tuple[Letter, Taken]:
        """Empty the mailbox into a letter; say who takes pages by it."""
        rows = self.graphs.bucket(len(self._mail.entries)) if self._mail.entries else 0
        whole = self._mail.whole
        mail, taken = self._mail.pack(self.state, rows)
        newcomers = self._mail.newcomers
        heads = (
            mail.reshape(-1),
            np.array(self.pages.returned, np.int64),
            *self._written(),
            np.array(list(newcomers), np.int64),
            np.array([each.hit for each in newcomers.values()], np.int64),
        )
        texts = [each.request.text for each in newcomers.values()]
        asked = [each.controls for each in newcomers.values()]
        self._mail.entries.clear()
        self.pages.returned.clear()
        self.pages.written.clear()
        count = sum(taken.counts) if self.prefixes is not None else 0
        return Letter(rows, whole, tuple(newcomers), count, (*heads, *texts, *asked)), taken

    def _written(self) -> tuple[Numbers, Numbers]:
        """Give the places of block tables that change, and their pages; those of who has left do not matter."""
        width = self.state.sizes.table
        written = {
            self.lines[request] * width + place: page
            for request, place, page in self.pages.written
            if request in self.lines
        }
        return np.array(list(written), np.int64), np.array(list(written.values()), np.int64)
