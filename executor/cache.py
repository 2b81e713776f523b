"""The paged KV cache, and the allocator that says which request holds which page."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from fsm_spec.errors import PoolExhausted
from fsm_spec.executor.models.config import ModelConfig


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

    def key(self, layer: int) -> torch.Tensor:
        """View the keys of a layer, [slots, kv_heads, head_dim]."""
        return self.layers[layer][:, 0]

    def value(self, layer: int) -> torch.Tensor:
        """View the values of a layer, [slots, kv_heads, head_dim]."""
        return self.layers[layer][:, 1]

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy slots `source` to slots `target` in all layers; all are read before any is written."""
        self.data[:, target] = self.data[:, source]


class PageAllocator:
    """Hand out pages, lowest first, and keep each request's block table.

    Lowest first keeps the slots of a lone request consecutive, which attention reads without a gather.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        self.pages = pages
        self.page_size = page_size
        self._free = list(range(pages - 1, -1, -1))
        self._tables: dict[Hashable, list[int]] = {}
        self._slots: dict[Hashable, torch.Tensor] = {}
        self._offsets = torch.arange(page_size)

    @property
    def free(self) -> int:
        """Count the pages that no request holds."""
        return len(self._free)

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
        if missing > len(self._free):
            raise PoolExhausted(
                f"request {request} needs {missing} more pages and {len(self._free)} of {self.pages} are free; "
                "use a larger pool or fewer requests at once."
            )
        if missing > 0:
            taken = [self._free.pop() for _ in range(missing)]
            table.extend(taken)
        elif missing < 0:
            self._give_back(table[pages:])
            del table[pages:]
        if missing:
            self._slots[request] = self._expand(table)

    def release(self, request: Hashable) -> None:
        """Give back all pages of a request; one that holds none is left alone."""
        self._give_back(self._tables.pop(request, []))
        self._slots.pop(request, None)

    def slots(self, request: Hashable, start: int, stop: int) -> torch.Tensor:
        """Name the physical slots of the request's slots start:stop, [stop - start] int64."""
        line = self._slots.get(request)
        have = 0 if line is None else len(line)
        if not 0 <= start <= stop <= have:
            raise IndexError(f"request {request} has {have} slots, not {start}:{stop}")
        return self._expand([]) if line is None else line[start:stop]

    def check(self) -> None:
        """Assert that free and held pages are all pages, and that no page is owned twice."""
        held = [page for table in self._tables.values() for page in table]
        assert len(held) + len(self._free) == self.pages, "pages leaked"
        assert len({*held, *self._free}) == self.pages, "a page is owned twice"

    def _give_back(self, pages: list[int]) -> None:
        """Return pages, so that the lowest is taken next."""
        if pages:
            self._free.extend(pages)
            self._free.sort(reverse=True)

    def _expand(self, table: list[int]) -> torch.Tensor:
        """List the slots of the pages of a table, [pages * page_size] int64."""
        starts = torch.tensor(table, dtype=torch.int64) * self.page_size
        return (starts[:, None] + self._offsets).reshape(-1)
