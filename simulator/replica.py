"""One replica of a cluster: a packed run that gets its requests one by one, and what the cluster remembers of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fsm_spec.simulator import places as p
from fsm_spec.simulator.metrics import AMOUNTS, LEVELS
from fsm_spec.simulator.packed_run import PackedRun
from fsm_spec.simulator.prefix_cache import PrefixCache
from fsm_spec.simulator.timeline import Timeline
from fsm_spec.simulator.workload import Requests

if TYPE_CHECKING:
    from fsm_spec.simulator.prepared import Prepared

Integers = NDArray[np.int64]


@dataclass
class Part:
    """Say which request of the workload a replica's row belongs to: `done` tokens were emitted elsewhere before."""

    request: int
    done: int = 0
    first: bool = True


class Replica:
    """Advance a packed run up to a time, and take requests in between.

    `role` is prefill, decode or both; `up` tells whether it takes requests; `since_ns` and `until_ns` bound the time it
    is paid for.
    """

    def __init__(self, prepared: Prepared, number: int, most: int, since_ns: int, role: str = "both") -> None:
        recalls = prepared.cluster.prefix_cache
        self.number, self.role, self.up = number, role, True
        self.since_ns, self.until_ns = since_ns, -1
        self.parts: list[Part] = []
        self.cache = PrefixCache(prepared.pool.pages)
        self.timeline = Timeline(LEVELS, AMOUNTS)
        self._seen = 0
        ones = np.ones(most, np.int64)
        # Rows are written when requests come; until then there are none.
        empty = Requests(np.zeros(most, np.int64), ones.copy(), ones.copy())
        self._columns = empty
        laws = prepared.laws_of(number)
        self.run = PackedRun(
            prepared.table,
            prepared.policy,
            prepared.pool,
            prepared.cost,
            empty,
            laws,
            keep=True,
            recalls=recalls,
        )
        self._kinds = prepared.laws.kinds
        self.run.window.loaded = 0
        self.run.world[p.LOADED] = self.run.world[p.REQUESTS] = 0

    @property
    def load(self) -> int:
        """Return the requests that it has and that have not ended."""
        world = self.run.world
        return int(world[p.LIVE] + world[p.RETURNED] + self.run.window.loaded - world[p.FRESH])

    @property
    def used_pages(self) -> int:
        """Return the pages that live requests own."""
        return int(self.run.cells[p.PAGES, : self.run.world[p.LIVE]].sum())

    def advance(self, until_ns: int) -> None:
        """Run all iterations that start before a time; raises UserError where nothing can move."""
        while (why := self.run.advance(self.timeline, until_ns)) not in (p.WAITS_UNTIL, p.ENDS):
            if why == p.STUCK:
                raise self.run.stuck()

    def take(self, part: Part, now_ns: int, prompt: int, output: int, hit: int) -> int:
        """Give it a request, of whose prompt `hit` tokens need no prefill; return its row."""
        window, world, row = self.run.window, self.run.world, len(self.parts)
        columns = self._columns
        columns.arrival_ns[row], columns.prompt_tokens[row], columns.output_tokens[row] = (
            now_ns,
            prompt,
            output,
        )
        window.extend(row + 1)
        window.log[p.HIT, row & (window.size - 1)] = hit
        # What a request is like moves with it.
        window.log[p.TEXT_KIND, row & (window.size - 1)] = int(self._kinds(np.array([part.request]))[0])
        self.parts.append(part)
        world[p.LOADED] = world[p.REQUESTS] = row + 1
        return row

    def column(self, place: int) -> Integers:
        """Return a column of its rows, in the order in which they came."""
        found: Integers = self.run.window.log[place, : len(self.parts)]
        return found

    def lost(self) -> list[tuple[Part, int, int, int]]:
        """Return what has not ended: the part, its prompt, its output and the tokens that were emitted."""
        open_rows = np.flatnonzero(self.column(p.FINISH_NS) < 0).tolist()
        return [
            (
                self.parts[row],
                int(self.column(p.PROMPT_TOKENS)[row]),
                int(self.column(p.OUTPUT_TOKENS)[row]),
                int(self.column(p.EMITTED_TOKENS)[row]),
            )
            for row in open_rows
        ]
