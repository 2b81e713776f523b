"""A run of one replica step by step, through `fsm_spec.engine`: the reference, and the way of traced and checked runs.

One event an engine iteration at most. `packed_run.py` does the same in compiled code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
import simpy
from numpy.typing import NDArray

from fsm_spec.engine import Engine, Iteration
from fsm_spec.errors import UserError
from fsm_spec.launch import Launch
from fsm_spec.policy import Policy, Pool
from fsm_spec.simulator import roofline
from fsm_spec.simulator.backend import SimulatedBackend
from fsm_spec.simulator.conservation import Conservation
from fsm_spec.simulator.cost import CostModel, Work
from fsm_spec.simulator.metrics import BOUNDS, LEVELS, UNSET, RequestLog, Usage, add_tier
from fsm_spec.simulator.outcomes import Laws
from fsm_spec.simulator.rounds import RoundLog
from fsm_spec.simulator.stuck import MOST_EMPTY_ITERATIONS, stuck
from fsm_spec.simulator.timeline import Timeline
from fsm_spec.simulator.work import InFlight
from fsm_spec.simulator.workload import ON_FINISH, Requests
from fsm_spec.table import WAIT, Table
from fsm_spec.tiers import tiers_of
from fsm_spec.trace import TraceWriter

NOTHING = InFlight(0, 0, 0)

Integers = NDArray[np.int64]


class SteppedRun:
    """Hold an engine with a simulated backend, and the clock around it; `checked` asserts conservation at every event.

    Raises UserError where a law of the outcomes is missing or a request can never run.
    """

    def __init__(  # noqa: PLR0913 - the parts of a scenario, and what watches it
        self,
        table: Table,
        policy: Policy,
        pool: Pool,
        cost: CostModel,
        requests: Requests,
        laws: Laws,
        *,
        trace: TraceWriter | None = None,
        checked: bool = False,
        rounds: RoundLog | None = None,
    ) -> None:
        self.requests = requests
        self.cost = cost
        self.log = RequestLog.of(requests)
        tiers = tiers_of(table, policy)
        self._tiers = tiers
        self.tier_totals: dict[int, list[int]] = {}
        self._counted = [0] * len(LEVELS)
        self.backend = SimulatedBackend(
            tiers.largest, self.log, laws, self._launched, self._count_tier, tiers.distinct
        )
        self.conservation = Conservation(self.backend, lambda: self.engine) if checked else None
        self.engine = Engine(table, policy, pool, self.conservation or self.backend, trace)
        self.launches = 0
        self._rounds = rounds
        self._emitted: dict[int, int] = {}
        self._timeline: Timeline | None = None
        self._progress: Callable[[int], None] | None = None
        self._now = 0
        self._device_ns: list[int] = []
        self._sequences = 0
        self._next = 0
        self._finished = 0
        self._empty = 0
        self._busy_ns = 0
        self._bound_ns = np.zeros(len(BOUNDS), np.int64)
        self._used = np.zeros((len(roofline.PARTS), roofline.COLUMNS))
        self._dwell_ns = [0] * len(table.states)
        self._by_state = [0] * len(table.states)
        self._recorded_ns = 0

    @property
    def iterations(self) -> int:
        """Count the engine's iterations."""
        return self.engine.iterations

    @property
    def recomputed_slots(self) -> int:
        """Count the slots whose KV was given up and is computed again."""
        return self.backend.recomputed_slots

    def usage(self) -> Usage:
        """Give what the run used: device time, operations and bytes, and time by state."""
        return Usage.of(self.engine.table, self._busy_ns, self._used, self._dwell_ns)

    # Time ------------------------------------------------------------------------------------------------------

    def loop(
        self,
        environment: simpy.Environment,
        timeline: Timeline,
        take: Callable[[RequestLog], None],
        progress: Callable[[int], None] | None,
    ) -> Generator[simpy.Event, None, None]:
        """Iterate while there is work, sleep until the next arrival where there is none; `take` gets all rows.

        Raises UserError where the policy can make no progress.
        """
        engine = self.engine
        self._timeline, self._progress = timeline, progress
        while True:
            self._now = int(environment.now)
            self._submit_arrived()
            report = engine.iterate() if engine.has_work else None
            if report is None or report.idle:
                arrival = self._next_arrival()
                self._record()
                if arrival is None:
                    self._count_tier()
                    if report is not None:
                        raise self._stuck()
                    take(self.log)
                    return
                yield environment.timeout(arrival - self._now)
                continue
            self._refuse_circle(report)
            self._note_admitted(report)
            start_ns = self._now
            yield environment.timeout(self._iteration_ns())
            self._now = int(environment.now)
            if self._rounds is not None:
                self._close_round(self._rounds, start_ns)
            self._note_done(report)

    def _iteration_ns(self) -> int:
        """Combine the launches of an iteration with the host's share, as `CostModel.step_ns` does."""
        device, sequences = sum(self._device_ns), self._sequences
        self._device_ns.clear()
        self._sequences = 0
        self._busy_ns += device
        return int(roofline.step_ns(device, sequences, self.cost.constants))

    def _close_round(self, rounds: RoundLog, start_ns: int) -> None:
        """Note what each request of an iteration got."""
        now = {request: int(self.log.emitted[request]) for request in rounds.requests}
        got = {request: total - self._emitted.get(request, 0) for request, total in now.items()}
        self._emitted |= now
        rounds.close(start_ns, self._now, got)

    def _launched(self, launch: Launch, work: Work, flight: InFlight) -> None:
        """Price a launch, and record what is held while it runs."""
        self._record(flight, sum(self._device_ns))
        self.launches += 1
        ns = self.cost.device_ns(work)
        if ns:
            roofline.use(self.cost.priced(work), self._used, self._bound_ns)
        if self._rounds is not None:
            self._rounds.launch(launch, self._now + sum(self._device_ns), ns, work.rows)
        self._device_ns.append(ns)
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
            if self.log.admitted_ns[request] == UNSET:
                self.log.admitted_ns[request] = self._now

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
        assert self._timeline is not None
        amounts = (self.backend.tokens, *self._bound_ns.tolist())
        self._timeline.record(self._now + ahead_ns, levels, amounts)
        self._bound_ns[:] = 0
        self.backend.tokens = 0
        self._dwell(self._now + ahead_ns)

    def _count_tier(self) -> None:
        """Add what was held since the last time to the tier that ran up to now."""
        size = self._tiers.size(self.backend.table)
        if size is None or self._timeline is None:
            return
        self._timeline.close(max(self._now, self._timeline.now_ns))
        totals = self._timeline.totals()
        add_tier(self.tier_totals, size, totals, self._counted)
        self._counted = totals

    def _dwell(self, now_ns: int) -> None:
        """Add the time since the last record to the states that requests were in."""
        engine = self.engine
        passed = now_ns - self._recorded_ns
        self._dwell_ns = [
            total + passed * count for total, count in zip(self._dwell_ns, self._by_state, strict=True)
        ]
        self._recorded_ns = now_ns
        states = engine.columns["state"][engine.live]
        self._by_state = np.bincount(states, minlength=len(self._by_state)).tolist()
        self._by_state[engine.table.codes[WAIT]] = len(engine.waiting)

    def _refuse_circle(self, report: Iteration) -> None:
        """Raise UserError where requests are admitted and preempted for ever without a launch."""
        self._empty = 0 if report.launches or report.finished else self._empty + 1
        if self._empty > MOST_EMPTY_ITERATIONS:
            raise self._stuck()

    def _stuck(self) -> UserError:
        engine = self.engine
        return stuck(
            engine.table,
            engine.policy,
            engine.pool,
            now_ns=self._now,
            running=len(engine.live),
            waiting=len(engine.waiting),
            used_pages=engine.used_pages,
        )
