"""The paged KV cache, and the allocator that says which request holds which page."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fsm_spec.errors import PoolExhausted
from fsm_spec.executor.models.config import ModelConfig
from fsm_spec.executor.page_holders import PageHolders

Integers = NDArray[np.int64]
_FIRST_LINES, _FIRST_PAGES = 16, 64


class PagedCache:
    """Hold K and V of all layers in one tensor [layers, pages * page_size, 2, kv_heads, head_dim].

    K and V of a slot lie side by side, so that a row is written by one copy and a prefix is read by one gather.
    On a CPU a bfloat16 model keeps its cache in float32: attention reads float32 3 to 5 times as fast
    (`kernels/attention.py`), and the cache loses nothing to rounding. On a GPU it is as wide as the weights.
    """

    def __init__(
        self,
        config: ModelConfig,
        pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.pages = pages
        self.page_size = page_size
        self.dtype = dtype
        if torch.device(device).type == "cpu":
            self.dtype = torch.float64 if dtype == torch.float64 else torch.float32
        shape = (config.layers, pages * page_size, 2, config.kv_heads, config.head_dim)
        # Zeros and not empty: attention gathers padding slots with weight 0, and 0 * NaN is NaN.
        self.data = torch.zeros(shape, dtype=self.dtype, device=device)
        self.layers = [self.data.select(0, layer) for layer in range(config.layers)]
        # Hears of moves, where other processes hold other heads of the same slots.
        self.echo: Callable[[torch.Tensor, torch.Tensor], None] | None = None

    def key(self, layer: int) -> torch.Tensor:
        """View the keys of a layer, [slots, kv_heads, head_dim]."""
        return self.layers[layer][:, 0]

    def value(self, layer: int) -> torch.Tensor:
        """View the values of a layer, [slots, kv_heads, head_dim]."""
        return self.layers[layer][:, 1]

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy slots `source` to slots `target` in all layers; all are read before any is written."""
        if self.echo is not None:
            self.echo(source, target)
        self.data[:, target] = self.data[:, source]


class PageAllocator(PageHolders):
    """Hand out pages, lowest first, and keep each request's block table.

    Lowest first keeps the slots of a lone request consecutive, which attention reads without a gather.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        super().__init__(pages, page_size)
        # A heap, so that the lowest page is at hand whatever came back.
        self._free = list(range(pages))
        # The tables as one array, a line for each request: all slots of its pages, 0 behind the last one.
        self._slots = np.zeros((_FIRST_LINES, _FIRST_PAGES * page_size), np.int64)
        self._lengths = np.zeros(_FIRST_LINES, np.int64)
        self._lines: dict[Hashable, int] = {}
        self._free_lines = list(range(_FIRST_LINES - 1, -1, -1))
        self._offsets = np.arange(page_size)

    @property
    def free(self) -> int:
        """Count the pages that no request holds; those that are cached are among them."""
        return len(self._free) + len(self.cached)

    def held(self, request: Hashable) -> int:
        """Count the pages that a request holds."""
        return len(self._tables.get(request, ()))

    def resize(self, request: Hashable, pages: int) -> None:
        """Take or give back pages at the end of a request's table until it holds `pages`.

        Raises PoolExhausted, and changes nothing, where too few pages are free.
        """
        table = self._tables.setdefault(request, [])
        missing = pages - len(table)
        if missing > self.free:
            raise PoolExhausted(
                f"request {request} needs {missing} more pages and {self.free} of {self.pages} are free; "
                "use a larger pool or fewer requests at once."
            )
        if missing > 0:
            if missing > len(self._free):
                self._free_pages(self.cached.evict(missing - len(self._free)))
            for _ in range(missing):
                table.append(heapq.heappop(self._free))
                self._holders[table[-1]] = 1
        elif missing < 0:
            self._free_pages(self._leave(table[pages:]))
            del table[pages:]
            self._slots[self._lines[request], pages * self.page_size :] = 0
        if missing:
            self._write(request, pages - max(missing, 0), pages)

    def release(self, request: Hashable) -> None:
        """Give back all pages of a request; one that holds none is left alone."""
        self._free_pages(self._leave(self._tables.pop(request, [])))
        line = self._lines.pop(request, None)
        if line is not None:
            self._slots[line] = self._lengths[line] = 0
            self._free_lines.append(line)

    def slots(self, request: Hashable, start: int, stop: int) -> torch.Tensor:
        """Name the physical slots of the request's slots start:stop, [stop - start] int64."""
        own = np.arange(start, stop)
        have = self.held(request) * self.page_size
        if not 0 <= start <= stop <= have:
            raise IndexError(f"request {request} has {have} slots, not {start}:{stop}")
        return torch.from_numpy(self.physical(self.lines([request]), own) if len(own) else own)

    def lines(self, requests: Iterable[Hashable]) -> Integers:
        """Name requests that hold pages as `physical` and `fronts` take them, [n]."""
        return np.array([self._lines[request] for request in requests], np.int64)

    def physical(self, lines: Integers, slots: Integers) -> Integers:
        """Map requests' own slots through their block tables; both arrays broadcast to the result's shape."""
        if bool((slots >= self._lengths[lines]).any()):
            raise IndexError("a slot lies behind the pages of its request")
        return self._slots[lines, slots]

    def fronts(self, lines: Integers, lengths: Integers) -> Integers:
        """Name the first slots of requests, [n, at least the longest]; behind a request's own stand any slots."""
        pages = -(-int(lengths.max()) // self.page_size)
        return self._slots[lines, : pages * self.page_size]

    def check(self) -> None:
        """Assert that free, cached and held pages are all pages, and that each is counted with all its holders."""
        distinct = self._check_holders()
        assert len(distinct) + len(self._free) + len(self.cached) == self.pages, "pages leaked"
        assert len({*distinct, *self._free, *self.cached}) == self.pages, "a page is free and in use"

    def _free_pages(self, pages: Sequence[int]) -> None:
        """Take back pages; the lowest is taken next."""
        for page in pages:
            heapq.heappush(self._free, page)

    def _write(self, request: Hashable, first: int, end: int) -> None:
        """Bring a request's line of the array up to its table."""
        table = self._tables[request]
        line = self._lines.get(request)
        if line is None:
            line = self._lines[request] = self._take_line()
        size, (lines, room) = self.page_size, self._slots.shape
        if len(table) * size > room:
            more = np.zeros((lines, max(len(table) * size - room, room)), np.int64)
            self._slots = np.concatenate([self._slots, more], 1)
        for index in range(first, end):
            self._slots[line, index * size : (index + 1) * size] = self._offsets + table[index] * size
        self._lengths[line] = len(table) * size

    def _take_line(self) -> int:
        if not self._free_lines:
            lines = len(self._lengths)
            self._slots = np.concatenate([self._slots, np.zeros_like(self._slots)])
            self._lengths = np.concatenate([self._lengths, np.zeros_like(self._lengths)])
            self._free_lines = list(range(2 * lines - 1, lines - 1, -1))
        return self._free_lines.pop()
