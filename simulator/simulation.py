"""Run one scenario: SimPy carries the time, the engine loop of `fsm_spec.engine` does the rest.

One event an engine iteration at most; simulated time is integer nanoseconds, and a run depends on nothing but its
arguments. An iteration lasts as long as its launches cost; what it emits and finishes counts at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
import simpy
from numpy.typing import NDArray

from fsm_spec.engine import Engine, Iteration
from fsm_spec.errors import UserError
from fsm_spec.policy import Policy, Pool
from fsm_spec.simulator.backend import Laws, SimulatedBackend
from fsm_spec.simulator.conservation import Conservation
from fsm_spec.simulator.cost import CostModel, Work
from fsm_spec.simulator.metrics import AMOUNTS, LEVELS, UNSET, KvUse, RequestLog, Summary, summarise
from fsm_spec.simulator.roofline import step_ns
from fsm_spec.simulator.timeline import Timeline
from fsm_spec.simulator.work import InFlight
from fsm_spec.simulator.workload import ON_FINISH, Requests
from fsm_spec.table import Table
from fsm_spec.tiers import tiers_of
from fsm_spec.trace import TraceWriter

# Iterations without a launch in a row that only admit and preempt: more is a circle, not work.
MOST_EMPTY_ITERATIONS = 1_000
# Load counts as too much when requests of the last third wait twice as long for admission as those of the first,
# and more of them wait when the last one arrives than this many, and than this share of all.
OVERLOAD_GROWTH, OVERLOAD_WAITING, OVERLOAD_SHARE = 2.0, 8, 0.02

NO_LAWS = Laws()
NOTHING = InFlight(0, 0, 0)

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Results:
    """Hold what a run measured; `verdicts` are sentences about the load, none where all is well."""

    summary: Summary
    log: RequestLog
    timeline: Timeline
    admitted_ns: Integers
    iterations: int
    launches: int
    recomputed_slots: int
    verdicts: tuple[str, ...]


class Simulation:
    """Simulate `requests` on one replica: `table` under `policy` and `pool`, priced by `cost`.

    `checked` asserts conservation at every event.
    Raises UserError where a law of the outcomes is missing or a request can never run.
    """

    def __init__(
        self,
        table: Table,
        policy: Policy,
        pool: Pool,
        cost: CostModel,
        requests: Requests,
        laws: Laws = NO_LAWS,
        *,
        trace: TraceWriter | None = None,
        checked: bool = False,
    ) -> None:
        self.requests = requests
        self.cost = cost
        self.log = RequestLog.of(requests)
        self.timeline = Timeline(LEVELS, AMOUNTS)
        self.admitted_ns: Integers = np.full(len(requests), UNSET, np.int64)
        tiers = tiers_of(table, policy)
        self.backend = SimulatedBackend(tiers.largest, self.log, laws, self._launched, tiers.distinct)
        self.conservation = Conservation(self.backend, lambda: self.engine) if checked else None
        self.engine = Engine(table, policy, pool, self.conservation or self.backend, trace)
        self._progress: Callable[[int], None] | None = None
        self._now = 0
        self._device_ns: list[int] = []
        self._sequences = 0
        self._next = 0
        self._finished = 0
        self._empty = 0
        self._launches = 0

    def run(self, progress: Callable[[int], None] | None = None) -> Results:
        """Simulate to the end; `progress` is called with the number of finished requests.

        Raises UserError where the policy can make no progress.
        """
        self._progress = progress
        environment = simpy.Environment(initial_time=0)
        environment.process(self._loop(environment))
        environment.run()
        engine, pool = self.engine, self.engine.pool
        self._record()
        self.timeline.close(self._now)
        kv = KvUse.of(self.timeline, pool.pages, pool.page_size)
        return Results(
            summarise(self.log, self._now, kv),
            self.log,
            self.timeline,
            self.admitted_ns,
            engine.iterations,
            self._launches,
            self.backend.recomputed_slots,
            overload(self.log.arrival_ns, self.admitted_ns, closed=self.requests.concurrency > 0),
        )

    # Time ------------------------------------------------------------------------------------------------------

    def _loop(self, environment: simpy.Environment) -> Generator[simpy.Event, None, None]:
        """Iterate while there is work, sleep until the next arrival while there is none."""
        engine = self.engine
        while True:
            self._now = int(environment.now)
            self._submit_arrived()
            report = engine.iterate() if engine.has_work else None
            if report is None or report.idle:
                arrival = self._next_arrival()
                if arrival is None:
                    if report is not None:
                        raise UserError(self._deadlock())
                    return
                self._record()
                yield environment.timeout(arrival - self._now)
                continue
            self._refuse_circle(report)
            self._note_admitted(report)
            yield environment.timeout(self._iteration_ns())
            self._now = int(environment.now)
            self._note_done(report)

    def _iteration_ns(self) -> int:
        """Combine the launches of an iteration with the host's share, as `CostModel.step_ns` does."""
        device, sequences = sum(self._device_ns), self._sequences
        self._device_ns.clear()
        self._sequences = 0
        return int(step_ns(device, sequences, self.cost.constants))

    def _launched(self, work: Work, flight: InFlight) -> None:
        """Price a launch, and record what is held while it runs."""
        self._record(flight, sum(self._device_ns))
        self._launches += 1
        self._device_ns.append(self.cost.device_ns(work))
        self._sequences = max(self._sequences, work.requests)

    # Requests --------------------------------------------------------------------------------------------------

    def _next_arrival(self) -> int | None:
        """Give the time of the next request that arrives by the clock."""
        if self._next == len(self.requests) or self.requests.arrival_ns[self._next] == ON_FINISH:
            return None
        return int(self.requests.arrival_ns[self._next])

    def _submit_arrived(self) -> None:
        while (arrival := self._next_arrival()) is not None and arrival <= self._now:
            self._submit()

    def _submit(self) -> None:
        """Queue the next request; rows of the log are numbered as the engine numbers requests."""
        index = self._next
        self._next += 1
        self.engine.submit(int(self.requests.prompt_tokens[index]), int(self.requests.output_tokens[index]))

    def _note_admitted(self, report: Iteration) -> None:
        for request in report.admitted:
            if self.admitted_ns[request] == UNSET:
                self.admitted_ns[request] = self._now

    def _note_done(self, report: Iteration) -> None:
        """Write the times of what the iteration emitted and finished; a closed loop goes on."""
        for requests in self.backend.fresh:
            self.log.first_token_ns[requests] = self._now
        self.backend.fresh.clear()
        for request in report.finished:
            self.log.finish_ns[request] = self._now
            if self.requests.concurrency and self._next < len(self.requests):
                self.log.arrival_ns[self._next] = self._now
                self._submit()
        if report.finished:
            self._finished += len(report.finished)
            if self._progress is not None:
                self._progress(self._finished)
        if self.conservation is not None:
            self.conservation.check(self._next)

    # Records ---------------------------------------------------------------------------------------------------

    def _record(self, flight: InFlight = NOTHING, ahead_ns: int = 0) -> None:
        """Record pages, slots by kind and requests from now (plus `ahead_ns`) on, and the new tokens."""
        engine = self.engine
        live = engine.live
        committed = int(engine.columns["kv"][live].sum()) + flight.keep
        levels = (
            engine.used_pages,
            committed,
            flight.provisional,
            flight.scratch,
            len(live),
            len(engine.waiting),
        )
        self.timeline.record(self._now + ahead_ns, levels, (self.backend.tokens,))
        self.backend.tokens = 0

    def _refuse_circle(self, report: Iteration) -> None:
        """Raise UserError where requests are admitted and preempted for ever without a launch."""
        self._empty = 0 if report.launches or report.finished else self._empty + 1
        if self._empty > MOST_EMPTY_ITERATIONS:
            raise UserError(self._deadlock())

    def _deadlock(self) -> str:
        engine = self.engine
        pool, live = engine.pool, len(engine.live)
        return (
            f"{engine.table.name} cannot make progress under the policy {engine.policy.policy}: at"
            f" {self._now / 1e9:.3f} s {live} running requests own {engine.used_pages} of {pool.pages} pages and need"
            f" more, and {len(engine.waiting)} requests wait behind them; take --policy holdback or preempt, more"
            f" --pages or fewer --max-running"
        )


def overload(arrival_ns: Integers, admitted_ns: Integers, *, closed: bool) -> tuple[str, ...]:
    """Say whether requests of an open loop arrive faster than they are served; a closed loop cannot be overloaded."""
    count = len(arrival_ns)
    if closed or count < 3:
        return ()
    waits = (admitted_ns - arrival_ns) / 1e9
    third = count // 3
    first, last = float(waits[:third].mean()), float(waits[-third:].mean())
    behind = int((admitted_ns > arrival_ns[-1]).sum())
    if behind <= max(OVERLOAD_WAITING, OVERLOAD_SHARE * count) or last < OVERLOAD_GROWTH * first:
        return ()
    span = float(arrival_ns[-1] - arrival_ns[0]) / 1e9
    served = (count - behind) / span if span > 0 else 0.0
    message = (
        f"overloaded: requests arrive at {count / span if span > 0 else float('inf'):.3g}/s and are admitted at"
        f" {served:.3g}/s; those of the last third wait {last:.3g} s for admission, those of the first {first:.3g} s;"
        f" latencies grow with the length of the run"
    )
    return (message,)
