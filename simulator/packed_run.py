"""A run packed into plain arrays, advanced by compiled code: one replica, its requests, and what is counted of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator
from dataclasses import fields

import numpy as np
import simpy
from numpy.typing import NDArray

from fsm_spec import life_cycle
from fsm_spec.decision import ADMISSIONS
from fsm_spec.errors import UserError
from fsm_spec.policy import QUEUE_SEEN, Policy, Pool, most_headroom
from fsm_spec.simulator import places as p
from fsm_spec.simulator import roofline
from fsm_spec.simulator.cost import CostModel, Work
from fsm_spec.simulator.free_queue import NOBODY, PAGES
from fsm_spec.simulator.metrics import AMOUNTS, BOUNDS, LEVELS, RequestLog, Usage, add_tier
from fsm_spec.simulator.outcomes import Laws
from fsm_spec.simulator.packed_table import Chances, PackedTable
from fsm_spec.simulator.run_loop import advance
from fsm_spec.simulator.stuck import MOST_EMPTY_ITERATIONS, stuck
from fsm_spec.simulator.table_code import FILL
from fsm_spec.simulator.timeline import Timeline
from fsm_spec.simulator.window import Window
from fsm_spec.simulator.workload import Requests
from fsm_spec.table import END, PREFILL, WAIT, Table
from fsm_spec.tiers import tiers_of

FOREVER = 2**62
# Launches of an iteration whose prices are remembered apart; those of longer rounds share the last place.
LAUNCHES_APART = 4
# Requests on their way, at first, where rows are not kept: about 10 MB.
WINDOW = 65_536
# Iterations between two looks at the clock: about 10 ms.
MOST_ITERATIONS = 4_096

Integers = NDArray[np.int64]


class PackedRun:
    """Hold the arrays of one replica's run, and advance them; nothing here decides anything.

    Where it does not `keep` the rows of its requests, memory does not grow with their number. Where it `recalls`, a
    preempted request finds those of its pages that nobody took meanwhile (`free_queue.py`).

    Raises UserError where a law is missing, or for the first request that can never run.
    """

    def __init__(
        self,
        table: Table,
        policy: Policy,
        pool: Pool,
        cost: CostModel,
        requests: Requests,
        laws: Laws,
        *,
        keep: bool = True,
        recalls: bool = False,
    ) -> None:
        self.policy, self.pool, self.cost = policy, pool, cost
        self._tiers = tiers_of(table, policy)
        self.table = self._tiers.largest
        chances = Chances.of(self._tiers.distinct, laws)
        self.survival, self.starts = chances.survival, chances.starts
        self._packed = {
            self._tiers.size(each): PackedTable(each, policy, chances) for each in self._tiers.distinct
        }
        # The table of the rounds that run now; with tiers another one may follow at each iteration.
        self.now = self._packed[self._tiers.size(self.table)]
        live = min(len(requests), policy.max_running, pool.pages) + QUEUE_SEEN + 1
        # Where all live requests of a closed loop finish at once, as many others start.
        self._margin = live + 1
        self.window = Window(table, policy, pool, requests, len(requests) if keep else WINDOW, laws.kinds)
        self.cells = np.zeros((max(each.code.rows for each in self._packed.values()), live), np.int64)
        self.queue = np.zeros((2 * live, 3), np.int64)
        self.returned = np.zeros(live, np.int64)
        # Each waiting request may own a run, and each run may have one of nobody's pages before it.
        self.freed = np.full((2 * live + 3, 2), NOBODY, np.int64)
        self.freed[0, PAGES] = pool.pages
        self.world = self._world(requests)
        self.world[p.RECALLS] = recalls
        self.world[p.RUNS_FREE] = 1
        self.tier_totals: dict[int, list[int]] = {}
        self._counted = [0] * p.LEVELS
        # No level is larger than this, so that no integral over the span overflows.
        self._span_ns = 2**61 // max(pool.pages * pool.page_size, len(requests), 1)
        self.work = np.zeros(len(fields(Work)), np.int64)
        self.parts = np.zeros((LAUNCHES_APART, len(roofline.PARTS), roofline.COLUMNS))
        self.known = np.zeros((LAUNCHES_APART, roofline.ROW_COUNTS), np.int64)
        self.used = np.zeros((len(roofline.PARTS), roofline.COLUMNS))
        self.dwell = np.zeros((2, len(table.states)), np.int64)
        self.dwell_ns = [0] * len(table.states)
        self.levels = np.zeros((2, p.LEVELS), np.int64)
        self.bound_ns = np.zeros(len(BOUNDS), np.int64)
        self._load()

    def compile(self) -> None:
        """Compile, or load what was compiled before, all that `advance` calls."""
        for size in self._packed:
            self.now = self._packed[size]
            self.advance(Timeline(LEVELS, AMOUNTS), until_ns=-1, most=0)

    def loop(
        self,
        environment: simpy.Environment,
        timeline: Timeline,
        take: Callable[[RequestLog], None],
        progress: Callable[[int], None] | None,
    ) -> Generator[simpy.Event, None, None]:
        """Run until the next event of the environment, again and again; `take` gets the rows of requests, in order.

        Raises UserError where the policy can make no progress.
        """
        finished = 0
        while True:
            until_ns = int(min(environment.peek(), FOREVER))
            why = self.advance(timeline, until_ns)
            if progress is not None and self.world[p.FINISHED] > finished:
                finished = int(self.world[p.FINISHED])
                progress(finished)
            if why == p.STUCK:
                raise self.stuck()
            if why == p.LOADS:
                self.window.finished(int(self.world[p.NEXT]), take)
                self._load()
            now_ns = until_ns if why == p.WAITS_UNTIL else int(self.world[p.NOW_NS])
            yield environment.timeout(now_ns - int(environment.now))
            if why == p.ENDS:
                take(self.window.rest())
                return

    def _load(self) -> None:
        """Write the rows of requests to come."""
        self.window.load(int(self.world[p.NEXT]), self._margin)
        self.world[p.LOADED], self.world[p.WINDOW] = self.window.loaded, self.window.size - 1

    def advance(self, timeline: Timeline, until_ns: int = FOREVER, most: int = MOST_ITERATIONS) -> int:
        """Run iterations that start before `until_ns`; give why it came back, and bring the timeline up to date."""
        world = self.world
        line = np.zeros((p.LEVELS + len(AMOUNTS), timeline.points), np.int64)
        if not world[p.WIDTH_NS]:
            world[p.WIDTH_NS] = world[p.BUCKET_END_NS] = timeline.width_ns
        world[p.ITERATIONS_LEFT] = most
        world[p.STOP_NS] = world[p.NOW_NS] + self._span_ns
        while True:
            now = self.now
            why = advance(
                now.code.function,
                world,
                now.states,
                self.cells,
                self.window.log,
                self.queue,
                self.returned,
                self.freed,
                now.segments,
                now.visible,
                now.drawing,
                now.leads,
                self.survival,
                self.starts,
                self.work,
                self.cost.constants,
                self.cost.curves,
                self.parts,
                self.known,
                self.used,
                self.dwell,
                line,
                self.levels,
                self.bound_ns,
                until_ns,
            )
            if self._tiers.param is not None:
                self._count_tier(timeline, line)
            if why != p.RESIZES:
                break
            self._resize(int(world[p.AT_ROUND]))
        # Integrals grow beyond 64 bits over a long run, so they are kept as Python's integers.
        self.dwell_ns = [
            total + more for total, more in zip(self.dwell_ns, self.dwell[0].tolist(), strict=True)
        ]
        self.dwell[0] = 0
        timeline.absorb(int(world[p.WIDTH_NS]), int(world[p.LINE_NS]), line.tolist(), self.levels.tolist())
        return int(why)

    def _count_tier(self, timeline: Timeline, line: Integers) -> None:
        """Add what was held since the last time to the tier that ran; `line` is not in the timeline yet."""
        sums = line[: p.LEVELS].sum(axis=1).tolist()
        totals = [before + more for before, more in zip(timeline.totals(), sums, strict=True)]
        size = self._tiers.size(self.now.table)
        assert size is not None
        add_tier(self.tier_totals, size, totals, self._counted)
        self._counted = totals

    def _resize(self, running: int) -> None:
        """Go on under the table for so many requests at a round point."""
        tiers, world = self._tiers, self.world
        self.now = self._packed[tiers.size(tiers.table(running))]
        place = bisect_left(tiers.bounds, running)
        world[p.FEWEST] = tiers.bounds[place - 1] + 1 if place else 0
        world[p.MOST] = tiers.bounds[place] if place < len(tiers.bounds) else FOREVER

    # Results ---------------------------------------------------------------------------------------------------

    @property
    def iterations(self) -> int:
        """Count the iterations."""
        return int(self.world[p.ITERATIONS])

    @property
    def launches(self) -> int:
        """Count the launches."""
        return int(self.world[p.LAUNCHES])

    @property
    def recomputed_slots(self) -> int:
        """Count the slots whose KV was given up and is computed again."""
        return int(self.world[p.RECOMPUTED] - self.world[p.HIT_SLOTS])

    def usage(self) -> Usage:
        """Give what the run used: device time, operations and bytes, and time by state."""
        return Usage.of(self.table, int(self.world[p.BUSY_NS]), self.used, self.dwell_ns)

    def stuck(self) -> UserError:
        """Give the error of a run in which nothing can move."""
        world = self.world
        return stuck(
            self.table,
            self.policy,
            self.pool,
            now_ns=int(world[p.NOW_NS]),
            running=int(world[p.LIVE]),
            waiting=int(world[p.RETURNED] + world[p.NEXT] - world[p.FRESH]),
            used_pages=int(self.cells[p.PAGES, : world[p.LIVE]].sum()),
        )

    def _world(self, requests: Requests) -> Integers:
        table, policy, pool, code = self.table, self.policy, self.pool, self.now.code
        what = code.what
        values = {
            p.ADMISSION: ADMISSIONS.index(policy.admit),
            p.MIXED: policy.prefill.mixed,
            p.BUDGET: policy.prefill.tokens,
            p.MAX_RUNNING: policy.max_running,
            p.POOL_PAGES: pool.pages,
            p.PAGE_SIZE: pool.page_size,
            p.GROW: pool.pages_of(most_headroom(table, policy)),
            p.QUEUE_SEEN: QUEUE_SEEN,
            p.CONCURRENCY: requests.concurrency,
            p.REQUESTS: len(requests),
            p.MARGIN: self._margin,
            p.WAIT: table.codes[WAIT],
            p.PREFILL: table.codes[PREFILL],
            p.END: table.codes[END],
            p.ON_ADMIT: what[life_cycle.ADMIT],
            p.ON_CHUNK: what[life_cycle.CHUNK],
            p.ON_FIRST: what[life_cycle.FIRST],
            p.ON_PREEMPT: what[life_cycle.PREEMPT],
            p.FILL_OF: what[FILL],
            p.FIRST_EMITS: table.events[life_cycle.FIRST].emits,
            p.ARGS: code.args,
            p.RESULTS: code.results,
            p.MOST_EMPTY: MOST_EMPTY_ITERATIONS,
            p.TIERED: self._tiers.param is not None,
            # No number of requests fits before the first one is known.
            p.FEWEST: FOREVER,
        }
        world = np.zeros(p.WORLD, np.int64)
        world[list(values)] = list(values.values())
        return world
