"""The host's books of a device's pages: how many each request holds, and which those are, once the device has said so.

Free pages are a list on the device, and so is who takes which of them; their numbers come back with results. Pages that
the prefix cache has named stay out of that list until the host gives them back (`returned`), whoever holds them.
The rules are those of `executor/cache.py:PageAllocator`; here only counts are known at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from fsm_spec.executor.prefix_cache import CachedPages


class DevicePages:
    """Count the pages of requests, and hold the numbers of those that are known, from the front of each table."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.pages = pages
        self.page_size = page_size
        self.cached = CachedPages()
        # Pages in the device's list, with those that go back to it by the next mail.
        self.listed = pages
        self._held: dict[int, int] = {}
        self._tables: dict[int, list[int]] = {}
        self._holders: dict[int, int] = {}
        self._common: set[int] = set()
        self.changes = 0
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

    def block_table(self, request: int) -> list[int]:
        """List the known pages of a request in the order of its slots."""
        return list(self._tables.get(request, ()))

    def named(self, request: int) -> int:
        """Count the pages at the front of a request's table that the cache has named."""
        table = self._tables.get(request, ())
        return next((place for place, page in enumerate(table) if not self.cached.names(page)), len(table))

    def resize(self, request: int, pages: int) -> None:
        """Let a request hold so many pages; the device takes or gives back those at the end of its table."""
        missing = pages - self.held(request)
        if missing > self.listed:
            for page in self.cached.evict(missing - self.listed):
                self._give_back(page)
        assert missing <= self.listed, "the scheduler has counted"
        self.listed -= missing
        self._held[request] = pages
        table = self._tables.setdefault(request, [])
        assert pages >= self.named(request), "pages that others may hold stay"
        for page in table[pages:]:
            del self._holders[page]
        del table[pages:]

    def release(self, request: int) -> None:
        """Forget a request; the pages that the cache has named rest there once nobody else holds them."""
        named = self.named(request)
        table = self._tables.pop(request, [])
        self.listed += self._held.pop(request, 0) - named
        self.changes += 1
        for page in table[named:]:
            del self._holders[page]
        # The last page rests first, so that the front of a text is evicted last.
        for page in reversed(table[:named]):
            self._holders[page] -= 1
            if self._holders[page] == 1:
                self._common.discard(page)
            elif self._holders[page] == 0:
                self.cached.rest(page)

    def learn(self, request: int, pages: Sequence[int]) -> None:
        """Note the numbers of pages that a request took, behind those that are known; nobody knows one that left."""
        if request in self._held:
            table = self._tables[request]
            # What was given back meanwhile is the device's again.
            kept = pages[: self._held[request] - len(table)]
            table += kept
            self._holders.update(dict.fromkeys(kept, 1))

    def hold(self, request: int, pages: Sequence[int]) -> None:
        """Begin the table of a request that holds nothing with pages that are cached, or that others hold."""
        assert not self.held(request), f"request {request} holds pages already"
        for page in pages:
            self._join(page)
        self._tables[request] = list(pages)
        self._held[request] = len(pages)
        self.written += [(request, place, page) for place, page in enumerate(pages)]

    def exchange(self, request: int, place: int, page: int) -> None:
        """Let a request hold another page of the same text in place of its own, which goes back."""
        table = self._tables[request]
        if table[place] == page:
            return
        self._join(page)
        own, table[place] = table[place], page
        self._give_back(own)
        self.changes += 1
        self.written.append((request, place, page))

    def _join(self, page: int) -> None:
        """Add a holder to a page."""
        if self._holders[page] == 0:
            self.cached.wake(page)
        else:
            self._common.add(page)
        self._holders[page] += 1
        self.changes += 1

    def _give_back(self, page: int) -> None:
        """Return a page by its number to the device's list."""
        del self._holders[page]
        self.returned.append(page)
        self.listed += 1

    def holders(self, page: int) -> int:
        """Count the requests that hold a page."""
        return self._holders.get(page, 0)

    def common(self, request: int) -> list[int]:
        """List the pages at the front of a request's table that have other holders as well."""
        table = self._tables.get(request, ())
        end = next((place for place, page in enumerate(table) if page not in self._common), len(table))
        return list(table[:end])

    def check(self) -> None:
        """Assert that listed, cached and held pages are all pages, and that each is counted with all its holders."""
        known = [page for table in self._tables.values() for page in table]
        distinct = set(known)
        unknown = sum(self._held.values()) - len(known)
        assert len(distinct) + unknown + self.listed + len(self.cached) == self.pages, "pages leaked"
        assert not distinct & set(self.cached), "a page rests and is held"
        assert set(self._holders) == distinct | set(self.cached), "a page is counted that nobody holds"
        for page in distinct:
            assert known.count(page) == self._holders[page], "a page is owned twice"
        assert self._common == {page for page in distinct if self._holders[page] > 1}, "a page is owned twice"
