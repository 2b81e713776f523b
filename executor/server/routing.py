"""Which replica a request goes to: where the most of its prompt is already, else where the least runs, or is known.

What a replica holds is known approximately: the pages of text that were sent there, and that its answers added, as
many as its pool has. A wrong guess costs a prefill and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import takewhile

import numpy as np

from fsm_spec import prefix_cache as rules
from fsm_spec.executor.prefix_cache import extend_keys
from fsm_spec.policy import Pool
from fsm_spec.table import Table

# So many requests more than the least busy replica has, and a prefix is worth no more waiting (a choice, not measured).
IMBALANCE = 8


class PrefixRouter:
    """Remember the pages of text of each replica, by the chained keys that prefix caches use."""

    def __init__(self, table: Table, pool: Pool) -> None:
        self._size = pool.page_size
        self._most = pool.pages
        self._ahead = rules.lookahead(table)
        self._known: dict[int, OrderedDict[bytes, None]] = {}

    def choose(self, prompt: Sequence[int], loads: Mapping[int, int]) -> tuple[int, int]:
        """Give a replica of `loads` (jobs by replica), and how many of the prompt's pages it is known to hold."""
        keys = self._keys(prompt)
        least = min(loads.values())
        found = {
            replica: self._held(replica, keys) if load - least <= IMBALANCE else 0
            for replica, load in loads.items()
        }
        best = min(loads, key=lambda each: (-found[each], loads[each], len(self._known.get(each, ()))))
        return best, found[best]

    def note(self, replica: int, text: Sequence[int]) -> None:
        """Remember that a replica has a text, and forget what it has had no use for longest."""
        known = self._known.setdefault(replica, OrderedDict())
        for key in self._keys(text):
            known[key] = None
            known.move_to_end(key)
        while len(known) > self._most:
            known.popitem(last=False)

    def forget(self, replica: int) -> None:
        """Forget all of a replica's pages: it begins anew."""
        self._known.pop(replica, None)

    def _held(self, replica: int, keys: list[bytes]) -> int:
        known = self._known.get(replica, OrderedDict())
        return sum(1 for _ in takewhile(known.__contains__, keys))

    def _keys(self, text: Sequence[int]) -> list[bytes]:
        keys: list[bytes] = []
        pages = max(len(text) - self._ahead, 0) // self._size
        extend_keys(keys, b"", np.asarray(text, np.int64), pages, size=self._size, ahead=self._ahead)
        return keys
