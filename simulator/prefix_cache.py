"""A prefix cache of one replica: full committed pages by the identity of their text, least recently used out."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class PrefixCache:
    """Remember which pages' text was computed; pages of live requests and of the cache share one pool.

    Only full pages of committed tokens enter, never slots of drafts, masks or noise. A page that a request finds is
    computed no more, but its copy is counted as its own: the pool's use errs on the safe side.
    """

    def __init__(self, pages: int) -> None:
        self._pool = pages
        self._known: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        """Return the pages it remembers."""
        return len(self._known)

    def find(self, pages: Integers) -> int:
        """Return how many leading pages it remembers, and mark them as used."""
        count = 0
        for page in pages.tolist():
            if page not in self._known:
                break
            self._known.move_to_end(page)
            count += 1
        return count

    def peek(self, pages: Integers) -> int:
        """Return how many leading pages it remembers, without marking them."""
        known = self._known
        return next((index for index, page in enumerate(pages.tolist()) if page not in known), len(pages))

    def insert(self, pages: Integers, used_pages: int) -> None:
        """Remember pages, as many as the live requests leave room for."""
        for page in pages.tolist():
            self._known[page] = None
            self._known.move_to_end(page)
        while len(self._known) > max(0, self._pool - used_pages):
            self._known.popitem(last=False)

    def clear(self) -> None:
        """Forget all pages, as a replica that fails does."""
        self._known.clear()
