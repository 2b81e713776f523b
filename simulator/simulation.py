"""Run one scenario: SimPy carries what comes from outside, compiled iterations what lies between.

Simulated time is integer nanoseconds, and a run depends on nothing but its arguments. A run that is traced or checked
goes through the engine step by step (`stepped_run.py`), any other through compiled code (`packed_run.py`); both give
the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import simpy
from numpy.typing import NDArray

from fsm_spec.errors import UserError
from fsm_spec.policy import Policy, Pool
from fsm_spec.simulator.cost import CostModel
from fsm_spec.simulator.metrics import (
    AMOUNTS,
    LEVELS,
    KvUse,
    RequestLog,
    Summary,
    Tally,
    Usage,
)
from fsm_spec.simulator.outcomes import Laws
from fsm_spec.simulator.overload import Overload, saturation
from fsm_spec.simulator.packed_run import PackedRun
from fsm_spec.simulator.rounds import RoundLog
from fsm_spec.simulator.sketch import MOST_EXACT
from fsm_spec.simulator.stepped_run import SteppedRun
from fsm_spec.simulator.timeline import Timeline
from fsm_spec.simulator.workload import Requests
from fsm_spec.table import Table
from fsm_spec.trace import TraceWriter

NO_LAWS = Laws()

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Results:
    """Hold what a run measured; `verdicts` are sentences about the load, none where all is well.

    `rows` are those of all requests, None where there were more than the run keeps; `exact` tells whether
    percentiles are.
    """

    summary: Summary
    rows: RequestLog | None
    timeline: Timeline
    iterations: int
    launches: int
    recomputed_slots: int
    usage: Usage
    exact: bool
    verdicts: tuple[str, ...]

    @property
    def log(self) -> RequestLog:
        """Give the rows of all requests; raises UserError where these are too many to be kept."""
        if self.rows is None:
            raise UserError(
                f"the rows of {self.summary.requests} requests are not kept; take --parquet, or fewer requests"
            )
        return self.rows

    @property
    def admitted_ns(self) -> Integers:
        """Give the time at which each request was first admitted; raises as `log` does."""
        return self.log.admitted_ns


class Simulation:
    """Simulate `requests` on one replica: `table` under `policy` and `pool`, priced by `cost`.

    `checked` asserts conservation at every event; it, a `trace` and a log of `rounds` make the run go step by step, as
    `stepwise` does. Where it `recalls`, preempted requests find those of their pages that nobody took meanwhile.

    Raises UserError where a law of the outcomes is missing or a request can never run.
    """

    def __init__(  # noqa: PLR0913 - the parts of a scenario, and three ways to run it
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
        stepwise: bool = False,
        recalls: bool = False,
        rounds: RoundLog | None = None,
        most_kept: int = MOST_EXACT,
    ) -> None:
        self.requests = requests
        self._most_kept = most_kept
        self.pool = pool
        self._places = policy.max_running
        self.timeline = Timeline(LEVELS, AMOUNTS)
        self.replica: SteppedRun | PackedRun
        if stepwise or checked or trace is not None or rounds is not None:
            if recalls:
                raise UserError(
                    "a run step by step forgets what preempted requests computed; leave out --prefix-cache, or --trace"
                    " and --perfetto"
                )
            self.replica = SteppedRun(
                table, policy, pool, cost, requests, laws, trace=trace, checked=checked, rounds=rounds
            )
        else:
            keep = len(requests) <= most_kept
            self.replica = PackedRun(table, policy, pool, cost, requests, laws, keep=keep, recalls=recalls)

    def compile(self) -> None:
        """Compile what the run calls, or load what was compiled before; else `run` does so."""
        if isinstance(self.replica, PackedRun):
            self.replica.compile()

    def run(
        self,
        progress: Callable[[int], None] | None = None,
        take: Callable[[RequestLog], None] | None = None,
    ) -> Results:
        """Simulate to the end; `progress` is called with the number of finished requests, `take` with their rows.

        Raises UserError where the policy can make no progress.
        """
        keep = len(self.requests) <= self._most_kept
        rows: list[RequestLog] = []
        tally = Tally(self._most_kept)
        load = Overload(self.requests.arrival_ns, closed=self.requests.concurrency > 0)

        def taken(log: RequestLog) -> None:
            tally.add(log)
            load.add(log.first, log.arrival_ns, log.admitted_ns, log.finish_ns)
            if keep:
                rows.append(log)
            if take is not None:
                take(log)

        environment = simpy.Environment(initial_time=0)
        environment.process(self.replica.loop(environment, self.timeline, taken, progress))
        environment.run()
        end_ns = int(environment.now)
        self.timeline.close(end_ns)
        return Results(
            tally.summary(
                end_ns,
                KvUse.of(self.timeline, self.pool.pages, self.pool.page_size, self.replica.tier_totals),
            ),
            rows[0] if keep else None,
            self.timeline,
            self.replica.iterations,
            self.replica.launches,
            self.replica.recomputed_slots,
            self.replica.usage(),
            tally.exact,
            load.verdicts() or saturation(self.timeline, self.pool.pages, self._places),
        )
