"""The paged KV cache, and the allocator that says which request holds which page."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch

from fsm_spec.errors import PoolExhausted
from fsm_spec.executor.models.config import ModelConfig
from fsm_spec.executor.prefix_cache import CachedPages


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


class PageAllocator:
    """Hand out pages, lowest first, and keep each request's block table.

    Lowest first keeps the slots of a lone request consecutive, which attention reads without a gather.
    Requests may hold full pages together; these stand at the front of their tables, and nobody writes them.
    Pages that are named in `cached` outlive their holders until others are needed.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        self.pages = pages
        self.page_size = page_size
        self.cached = CachedPages()
        self._free = list(range(pages - 1, -1, -1))
        self._holders = [0] * pages
        # Pages with more than one holder, and how often holders have changed.
        self._common: set[int] = set()
        self.changes = 0
        self._tables: dict[Hashable, list[int]] = {}
        self._slots: dict[Hashable, torch.Tensor] = {}
        self._offsets = torch.arange(page_size)

    @property
    def free(self) -> int:
        """Count the pages that no request holds; those that are cached are among them."""
        return len(self._free) + len(self.cached)

    def held(self, request: Hashable) -> int:
        """Count the pages that a request holds."""
        return len(self._tables.get(request, ()))

    def block_table(self, request: Hashable) -> list[int]:
        """List the pages of a request in the order of its slots."""
        return list(self._tables.get(request, ()))

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
                self._free.extend(self.cached.evict(missing - len(self._free)))
                self._free.sort(reverse=True)
            for _ in range(missing):
                table.append(self._free.pop())
                self._holders[table[-1]] = 1
        elif missing < 0:
            self._give_back(table[pages:])
            del table[pages:]
        if missing:
            self._slots[request] = self._expand(table)

    def release(self, request: Hashable) -> None:
        """Give back all pages of a request; one that holds none is left alone."""
        self._give_back(self._tables.pop(request, []))
        self._slots.pop(request, None)

    def hold(self, request: Hashable, pages: Sequence[int]) -> None:
        """Begin the table of a request that holds nothing with pages that are cached, or that others hold."""
        assert not self._tables.get(request), f"request {request} holds pages already"
        for page in pages:
            self._join(page)
        self._tables[request] = list(pages)
        self._slots[request] = self._expand(self._tables[request])

    def exchange(self, request: Hashable, place: int, page: int) -> None:
        """Let a request hold another page of the same text in place of its own, which goes back."""
        table = self._tables[request]
        if table[place] == page:
            return
        self._join(page)
        own, table[place] = table[place], page
        self._give_back([own])
        self._slots[request] = self._expand(table)

    def _join(self, page: int) -> None:
        """Add a holder to a page."""
        if self._holders[page] == 0:
            self.cached.wake(page)
        else:
            self._common.add(page)
        self._holders[page] += 1
        self.changes += 1

    def holders(self, page: int) -> int:
        """Count the requests that hold a page."""
        return self._holders[page]

    def common(self, request: Hashable) -> list[int]:
        """List the pages at the front of a request's table that have other holders as well."""
        found: list[int] = []
        for page in self._tables.get(request, ()) if self._common else ():
            if page not in self._common:
                break
            found.append(page)
        return found

    def slots(self, request: Hashable, start: int, stop: int) -> torch.Tensor:
        """Name the physical slots of the request's slots start:stop, [stop - start] int64."""
        line = self._slots.get(request)
        have = 0 if line is None else len(line)
        if not 0 <= start <= stop <= have:
            raise IndexError(f"request {request} has {have} slots, not {start}:{stop}")
        return self._expand([]) if line is None else line[start:stop]

    def check(self) -> None:
        """Assert that free, cached and held pages are all pages, and that each is counted with all its holders."""
        held = [page for table in self._tables.values() for page in table]
        distinct = set(held)
        assert len(distinct) + len(self._free) + len(self.cached) == self.pages, "pages leaked"
        assert len({*distinct, *self._free, *self.cached}) == self.pages, "a page is free and in use"
        for page in distinct:
            assert held.count(page) == self._holders[page], "a page is owned twice"
        assert self._common == {page for page in distinct if self._holders[page] > 1}, "a page is owned twice"
        for table in self._tables.values():
            several = [self._holders[page] for page in table]
            assert several == sorted(several, reverse=True), "a page behind one's own has other holders"

    def _give_back(self, pages: Sequence[int]) -> None:
        """Leave pages; where nobody else holds them, the lowest is taken next, and cached ones rest.

        The last page rests first, so that the front of a text, which more texts begin with, is evicted last.
        """
        left = False
        self.changes += 1
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page] == 1:
                self._common.discard(page)
            elif self._holders[page] == 0 and not self.cached.rest(page):
                self._free.append(page)
                left = True
        if left:
            self._free.sort(reverse=True)

    def _expand(self, table: list[int]) -> torch.Tensor:
        """List the slots of the pages of a table, [pages * page_size] int64."""
        starts = torch.tensor(table, dtype=torch.int64) * self.page_size
        return (starts[:, None] + self._offsets).reshape(-1)
