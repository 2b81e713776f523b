"""Which requests begin with the same text: the identity of each full page of a prompt, as prefix caches hash it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fsm_spec.errors import UserError

Integers = NDArray[np.int64]

# Identities of pages: kind in the highest bits, then whose text it is, then the page's place in it.
_OWN, _SESSION, _GROUP, _BLOCK = (np.int64(kind) << np.int64(60) for kind in range(4))
_PLACES = np.int64(2**24)


@dataclass(frozen=True)
class Prefixes:
    """Say whose text each request's prompt is, all int64 [requests].

    The first `shared` tokens are those of `group`; behind them stands the text of `session`, which only grows, so that
    a page of it depends on its place alone. -1 means text of the request's own. Traces with block hashes give
    `blocks` (see `TraceColumns`) instead.
    """

    session: Integers
    group: Integers
    shared: int = 0
    blocks: Integers | None = None
    block_start: Integers | None = None
    block_tokens: int = 0

    def pages(self, request: int, page_size: int, tokens: int) -> Integers:
        """Return the identities of the full pages in the first `tokens` tokens of a request's text, in order."""
        places = np.arange(tokens // page_size, dtype=np.int64)
        if self.blocks is not None and self.block_start is not None:
            return self._of_blocks(request, page_size, places)
        session, group = int(self.session[request]), int(self.group[request])
        kind, owner = (_SESSION, session) if session >= 0 else (_OWN, request)
        ids = kind + np.int64(owner) * _PLACES + places
        if group >= 0:
            inside = (places + 1) * page_size <= self.shared
            ids[inside] = _GROUP + np.int64(group) * _PLACES + places[inside]
        return ids

    def _of_blocks(self, request: int, page_size: int, places: Integers) -> Integers:
        """Cut hashed blocks into pages; pages behind them (the output) are the request's own."""
        assert self.blocks is not None
        assert self.block_start is not None
        mine = self.blocks[self.block_start[request] : self.block_start[request + 1]]
        first = places * page_size
        block = first // self.block_tokens
        ids = _OWN + np.int64(request) * _PLACES + places
        # The last block is hashed with its prompt's end, so only blocks that lie before it are shared in part.
        inside = block < len(mine)
        ids[inside] = (
            _BLOCK + mine[block[inside]] * _PLACES + (first[inside] % self.block_tokens) // page_size
        )
        return ids

    def check(self, page_size: int) -> None:
        """Raise UserError where pages do not divide the blocks of a trace."""
        if self.block_tokens and self.block_tokens % page_size:
            raise UserError(
                f"pages of {page_size} tokens do not divide the trace's blocks of {self.block_tokens};"
                " take a --page-size that does, such as 64"
            )
