"""The prefix cache: which full pages hold the KV of which text, and what a waiting request finds.

A page is found by a key: a digest of all text up to its end, of the weights under which its KV was written, and of
the draft models whose KV lies in the same page (`fsm_spec/prefix_cache.py` says what may enter). Pages that nobody
holds rest (`page_holders.py`) until the pool needs them, least recently used out first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fsm_spec import prefix_cache as rules
from fsm_spec.executor.page_holders import PageHolders
from fsm_spec.executor.request import Request, Tokens
from fsm_spec.step import Columns
from fsm_spec.table import Table

_KEY_BYTES = 16


class PrefixCache:
    """Find and leave pages for the requests of one session: the engine's `Prefixes`.

    `requests` are those that the runner knows, by number; `view` says under which weights and draft models KV is
    written here.
    """

    def __init__(
        self, table: Table, allocator: PageHolders, requests: Mapping[int, Request], view: str
    ) -> None:
        self.allocator = allocator
        self.requests = requests
        self._root = hashlib.blake2b(view.encode(), digest_size=_KEY_BYTES).digest()
        self._ahead = rules.lookahead(table)
        # Pages at the front of each request's table that are the cache's.
        self._entered: dict[int, int] = {}

    @property
    def changes(self) -> int:
        """Count the changes of who holds which page so far."""
        return self.allocator.changes

    def find(self, request: int) -> list[int]:
        """Give the pages that hold the front of a waiting request's text, in order.

        A request that scores its prompt finds none, as each of its rows must run.
        """
        held = self.requests[request]
        if held.scores is not None and held.scores.wants_prompt:
            return []
        size = self.allocator.page_size
        found = []
        for key in self._keys(held, max(held.length - self._ahead, 0) // size):
            page = self.allocator.cached.page_of(key)
            if page is None:
                break
            found.append(page)
        return found

    def held(self, page: int) -> bool:
        """Tell whether a request holds a page."""
        return self.allocator.holders(page) > 0

    def common(self, request: int) -> Sequence[int]:
        """Give the front pages of a request that have other holders as well."""
        return self.allocator.common(request)

    def hold(self, request: int, pages: Sequence[int]) -> None:
        """Let a newcomer hold pages that it found."""
        self.allocator.hold(request, pages)
        self._entered[request] = len(pages)

    def follow(self, table: Table, event: str, requests: NDArray[np.int64], after: Columns) -> None:
        """Leave the pages that an event has filled, by the columns [n] after it, to requests that come later."""
        if rules.commits(table, event):
            full = rules.committed(table, event, after) // self.allocator.page_size
            for number, pages in zip(requests.tolist(), full.tolist(), strict=True):
                self.enter(number, pages)

    def enter(self, request: int, pages: int) -> None:
        """Leave the first pages of a request, which are full and committed, to those that come later.

        Where somebody was faster, the request goes on with that page, and gives its own back.
        """
        entered = self._entered.get(request, 0)
        if pages <= entered:
            return
        table = self.allocator.block_table(request)
        keys = self._keys(self.requests[request], pages)
        for place in range(entered, pages):
            known = self.allocator.cached.page_of(keys[place])
            if known is None:
                self.allocator.cached.enter(keys[place], table[place])
            else:
                self.allocator.exchange(request, place, known)
        self._entered[request] = pages

    def leave(self, request: int) -> None:
        """Forget how far the table of a request is the cache's, as it gives all pages back."""
        self._entered.pop(request, None)

    def _keys(self, request: Request, pages: int) -> list[bytes]:
        """Give the keys of a text's first pages, each computed once."""
        keys = request.page_keys
        if len(keys) < pages:
            size = self.allocator.page_size
            extend_keys(keys, self._root, request.text, pages, size=size, ahead=self._ahead)
        return keys[:pages]


def extend_keys(keys: list[bytes], root: bytes, text: Tokens, pages: int, *, size: int, ahead: int) -> None:
    """Add the keys of a text's pages up to `pages`, each of the page's `size` tokens, `ahead` more, and the key before.

    The first page's stands on `root`. `text` is int64 [n].
    """
    while len(keys) < pages:
        start = len(keys) * size
        tokens = text[start : start + size + ahead].tobytes()
        last = keys[-1] if keys else root
        keys.append(hashlib.blake2b(last + tokens, digest_size=_KEY_BYTES).digest())


def view_of(parts: Iterable[object]) -> str:
    """Describe the weights and draft models whose KV a cache holds; adapter rows never enter, so it is the base."""
    return "\n".join(["base", *map(repr, parts)])
