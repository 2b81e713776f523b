"""The engine's queue: requests that wait for a slot, in the order in which they came."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

from fsm_spec.policy import QUEUE_SEEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsm_spec.policy import Waiting


class WaitingQueue(Mapping[int, "Waiting"]):
    """Hold waiting requests by their numbers, which count arrivals."""

    def __init__(self) -> None:
        self._entries: dict[int, Waiting] = {}
        # Preempted requests are older than all that never ran, as nobody overtakes.
        self._returned: list[int] = []
        self._fresh: deque[int] = deque()

    def __getitem__(self, request: int) -> Waiting:
        return self._entries[request]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def put(self, request: int, entry: Waiting) -> None:
        """Queue a request that has just come."""
        self._entries[request] = entry
        self._fresh.append(request)

    def put_back(self, request: int, entry: Waiting) -> None:
        """Queue a preempted request, before all that came after it."""
        self._entries[request] = entry
        insort(self._returned, request)

    def take(self, request: int) -> Waiting:
        """Take a request out, from wherever it stands."""
        if self._fresh and self._fresh[0] == request:
            self._fresh.popleft()
        elif request in self._returned:
            self._returned.remove(request)
        else:
            self._fresh.remove(request)
        return self._entries.pop(request)

    def head(self) -> list[int]:
        """Give as many requests as an iteration looks at, oldest first."""
        return [*self._returned, *islice(self._fresh, QUEUE_SEEN)]
