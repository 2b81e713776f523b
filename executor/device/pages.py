"""The host's books of a device's pages: how many each request holds, and which those are, once the device has said so.

Free pages are a list on the device, and so is who takes which of them; their numbers come back with results. Pages that
the prefix cache has named stay out of that list until the host gives them back (`returned`), whoever holds them.
Who holds them is in `executor/page_holders.py`, as for the allocator of `executor/cache.py`; here only counts are known
at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from fsm_spec.executor.page_holders import PageHolders


class DevicePages(PageHolders):
    """Count the pages of requests, and hold the numbers of those that are known, from the front of each table."""

    def __init__(self, pages: int, page_size: int) -> None:
        super().__init__(pages, page_size)
        # Pages in the device's list, with those that go back to it by the next mail.
        self.listed = pages
        self._held: dict[Hashable, int] = {}
        # Pages that go back to the device's list, and places of tables that change: request, place, page.
        self.returned: list[int] = []
        self.written: list[tuple[int, int, int]] = []

    @property
    def free(self) -> int:
        """Count the pages that no request holds; those that are cached are among them."""
        return self.listed + len(self.cached)

    def held(self, request: int) -> int:
        """Count the pages that a request holds."""
        return self._held.get(request, 0)

    def named(self, request: int) -> int:
        """Count the pages at the front of a request's table that the cache has named."""
        table = self._tables.get(request, ())
        return next((place for place, page in enumerate(table) if not self.cached.names(page)), len(table))

    def resize(self, request: int, pages: int) -> None:
        """Let a request hold so many pages; the device takes or gives back those at the end of its table."""
        missing = pages - self.held(request)
        if missing > self.listed:
            self._free_pages(self.cached.evict(missing - self.listed))
        assert missing <= self.listed, "the scheduler has counted"
        self.listed -= missing
        self._held[request] = pages
        table = self._tables.setdefault(request, [])
        assert pages >= self.named(request), "pages that others may hold stay"
        self._leave(table[pages:])  # the device returns them itself
        del table[pages:]

    def release(self, request: int) -> None:
        """Forget a request; the pages that the cache has named rest there once nobody else holds them."""
        named = self.named(request)
        self.listed += self._held.pop(request, 0) - named
        # The device returns those that have no name.
        self._leave(self._tables.pop(request, []))

    def learn(self, request: int, pages: Sequence[int]) -> None:
        """Note the numbers of pages that a request took, behind those that are known; nobody knows one that left."""
        if request in self._held:
            table = self._tables[request]
            # What was given back meanwhile is the device's again.
            kept = pages[: self._held[request] - len(table)]
            table += kept
            self._holders.update(dict.fromkeys(kept, 1))

    def hold(self, request: Hashable, pages: Sequence[int]) -> None:
        """Begin the table of a request that holds nothing with pages that are cached, or that others hold."""
        assert not self._held.get(request), f"request {request} holds pages already"
        super().hold(request, pages)
        self._held[request] = len(pages)

    def check(self) -> None:
        """Assert that listed, cached and held pages are all pages, and that each is counted with all its holders."""
        distinct = self._check_holders()
        unknown = sum(self._held.values()) - sum(map(len, self._tables.values()))
        assert len(distinct) + unknown + self.listed + len(self.cached) == self.pages, "pages leaked"

    def _free_pages(self, pages: Sequence[int]) -> None:
        """Return pages by their numbers to the device's list."""
        self.returned += pages
        self.listed += len(pages)

    def _write(self, request: Hashable, first: int, end: int) -> None:
        """Tell the device of a table's places by the next mail."""
        assert isinstance(request, int)
        table = self._tables[request]
        self.written += [(request, place, table[place]) for place in range(first, end)]
