"""Who holds which page: tables of pages whose front ones several requests may hold, whoever hands the pages out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence

# Evicting a few pages together keeps those that one request takes side by side, which attention reads in place.
_TOGETHER, _SHARE = 16, 8


class CachedPages:
    """Name pages by the keys of their text; those that nobody holds are in the order of their last use."""

    def __init__(self) -> None:
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._unheld: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        """Count the pages that nobody holds."""
        return len(self._unheld)

    def __iter__(self) -> Iterator[int]:
        """Yield the pages that nobody holds, the next to be evicted first."""
        return iter(self._unheld)

    def page_of(self, key: bytes) -> int | None:
        """Give the page that holds a key's text; None where there is none."""
        return self._page_of.get(key)

    def names(self, page: int) -> bool:
        """Tell whether a page has a name here."""
        return page in self._key_of

    def enter(self, key: bytes, page: int) -> None:
        """Name a page that a request holds; neither has been named before."""
        assert key not in self._page_of, "a text has two pages"
        assert page not in self._key_of, "a page has two texts"
        self._page_of[key] = page
        self._key_of[page] = key

    def rest(self, page: int) -> bool:
        """Keep a page that its last holder leaves, if it has a key."""
        if page not in self._key_of:
            return False
        self._unheld[page] = None
        return True

    def wake(self, page: int) -> None:
        """Take a page out of those that may be evicted, as somebody holds it again."""
        del self._unheld[page]

    def evict(self, least: int) -> list[int]:
        """Give back at least so many of the pages that nobody holds, least recently used first."""
        count = max(least, min(_TOGETHER, len(self._unheld) // _SHARE))
        pages = [self._unheld.popitem(last=False)[0] for _ in range(count)]
        for page in pages:
            del self._page_of[self._key_of.pop(page)]
        return pages


class PageHolders(ABC):
    """Keep the page tables of requests, and count the holders of each page.

    Requests may hold full pages together; these stand at the front of their tables, and nobody writes them.
    Pages that are named in `cached` outlive their holders until others are needed.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        self.pages = pages
        self.page_size = page_size
        self.cached = CachedPages()
        # How often holders have changed.
        self.changes = 0
        self._tables: dict[Hashable, list[int]] = {}
        self._holders: dict[int, int] = {}
        # Pages with more than one holder.
        self._common: set[int] = set()

    def block_table(self, request: Hashable) -> list[int]:
        """List the known pages of a request in the order of its slots."""
        return list(self._tables.get(request, ()))

    def holders(self, page: int) -> int:
        """Count the requests that hold a page."""
        return self._holders.get(page, 0)

    def common(self, request: Hashable) -> list[int]:
        """List the pages at the front of a request's table that have other holders as well."""
        found: list[int] = []
        for page in self._tables.get(request, ()) if self._common else ():
            if page not in self._common:
                break
            found.append(page)
        return found

    def hold(self, request: Hashable, pages: Sequence[int]) -> None:
        """Begin the table of a request that holds nothing with pages that are cached, or that others hold."""
        assert not self._tables.get(request), f"request {request} holds pages already"
        for page in pages:
            self._join(page)
        self._tables[request] = list(pages)
        self._write(request, 0, len(pages))

    def exchange(self, request: Hashable, place: int, page: int) -> None:
        """Let a request hold another page of the same text in place of its own, which goes back."""
        table = self._tables[request]
        if table[place] == page:
            return
        self._join(page)
        own, table[place] = table[place], page
        self._free_pages(self._leave([own]))
        self._write(request, place, place + 1)

    def _join(self, page: int) -> None:
        """Add a holder to a page."""
        if page in self._holders:
            self._common.add(page)
        else:
            self.cached.wake(page)
        self._holders[page] = self._holders.get(page, 0) + 1
        self.changes += 1

    def _leave(self, pages: Sequence[int]) -> list[int]:
        """Take a holder from pages; those that nobody holds rest where they are cached, and the others are given.

        The last page rests first, so that the front of a text, which more texts begin with, is evicted last.
        """
        self.changes += 1
        gone = []
        for page in reversed(pages):
            left = self._holders[page] - 1
            if left:
                self._holders[page] = left
                if left == 1:
                    self._common.discard(page)
                continue
            del self._holders[page]
            if not self.cached.rest(page):
                gone.append(page)
        return gone

    @abstractmethod
    def _free_pages(self, pages: Sequence[int]) -> None:
        """Take back pages that nobody holds."""

    @abstractmethod
    def _write(self, request: Hashable, first: int, end: int) -> None:
        """Follow a request's table, which has changed from `first` to `end`."""

    def _check_holders(self) -> set[int]:
        """Assert that each page is counted with all its holders; give the pages that are known to be held."""
        held = [page for table in self._tables.values() for page in table]
        distinct = set(held)
        assert {page: held.count(page) for page in distinct} == self._holders, "a page is owned twice"
        assert self._common == {page for page in distinct if self._holders[page] > 1}, "a page is owned twice"
        assert not distinct & set(self.cached), "a page rests and is held"
        for table in self._tables.values():
            several = [self._holders[page] for page in table]
            assert several == sorted(several, reverse=True), "a page behind one's own has other holders"
        return distinct
