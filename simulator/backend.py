"""What a launch gives in the simulator: drawn counts, counted work and occupancy; no clock, no decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fsm_spec import life_cycle
from fsm_spec.counts import Draw, most_drafts
from fsm_spec.language.expression import Const, Expr
from fsm_spec.launch import Args, Group, Launch
from fsm_spec.simulator.ahead import Ahead
from fsm_spec.simulator.cost import Work
from fsm_spec.simulator.metrics import RequestLog
from fsm_spec.simulator.outcomes import Laws, drawn
from fsm_spec.simulator.places import AFTER_ALL, AFTER_REJECTION, AT_START, LASTS
from fsm_spec.simulator.work import InFlight
from fsm_spec.step import Columns, Step, evaluate
from fsm_spec.table import NO_STOP, Table


class SimulatedBackend:
    """Draw the outcomes of launches; count work, slots and requests as they go.

    `launched` is called at each launch with its work and the slots in flight, `resized` where another tier's table
    is about to run; `fresh` collects the requests that
    emitted their first token in this iteration. `tables` are all that a policy's tiers may choose from.
    """

    def __init__(
        self,
        table: Table,
        log: RequestLog,
        laws: Laws,
        launched: Callable[[Launch, Work, InFlight], None],
        resized: Callable[[], None],
        tables: Sequence[Table] = (),
    ) -> None:
        self.log = log
        self.laws = laws
        self.launched = launched
        self._resized = resized
        self.fresh: list[NDArray[np.int64]] = []
        self.recomputed_slots = 0
        self.tokens = 0
        self._rounds = {state.name for state in table.states if state.round}
        self._accepted = np.zeros(len(log.emitted), np.int64)
        self.table = table
        self.drawn = drawn(table)
        ops = {draw.op for draws in self.drawn.draws.values() for draw in draws}
        most = {op: max(most_drafts(each, op) for each in (table, *tables)) for op in ops}
        self._ahead = {op: Ahead(laws.of(op, table), most[op], len(log.emitted)) for op in sorted(ops)}
        self._kinds = laws.kinds(np.arange(len(log.emitted)))
        self._last = np.full(len(log.emitted), AT_START, np.int64)

    def use(self, table: Table) -> None:
        """Draw for this table from now on."""
        self._resized()
        self.table = table
        self.drawn = drawn(table)

    def launch(self, launch: Launch) -> list[Args]:
        """Count a launch and draw what its operators find."""
        self.launched(launch, *self.drawn.counter.count(launch))
        return [self._results(group) for group in launch.groups]

    def stops(
        self, event: str, requests: NDArray[np.int64], columns: Columns, args: Args
    ) -> NDArray[np.int32]:
        """Give no stop token ever: a simulated request ends at its length."""
        del event, columns, args  # the protocol's; nothing depends on them
        return np.full(len(requests), NO_STOP, np.int32)

    def settle(self, event: str, requests: NDArray[np.int64], before: Columns, done: Step) -> None:
        """Count emitted tokens, first tokens, and slots whose KV is given up."""
        if event == life_cycle.PREEMPT:
            self.log.preemptions[requests] += 1
            self.recomputed_slots += int(before["kv"].sum())
            self._last[requests] = AT_START
        if not self.table.events[event].emits:
            return
        self.log.emitted[requests] += done.emitted
        self.tokens += int(done.emitted.sum())
        if event == life_cycle.FIRST:
            self.log.prefill_emitted[requests] += done.emitted
        if not before["emitted"].all():
            self.fresh.append(requests[(before["emitted"] == 0) & (done.emitted > 0)])
        if (done.transition & 1).any():
            self._uncount(requests, done)

    def resize(self, request: int, pages: int) -> None:
        """Follow a request's pages; the engine's own counts say it all here."""

    def _results(self, group: Group) -> Args:
        log, requests = self.log, group.requests
        if group.state in self._rounds:
            log.rounds[requests] += 1
        if self.drawn.counter.has_rows(group.state):
            log.forwards[requests] += 1
        return {draw.name: self._draw(draw, group) for draw in self.drawn.draws[group.state]}

    def _draw(self, draw: Draw, group: Group) -> NDArray[np.int32]:
        log, requests = self.log, group.requests
        most = self._most(draw.most, group)
        rounds = log.rounds[requests]
        if draw.op == "budget" and self.laws.budget is not None:
            return np.minimum(self.laws.budget.granted(len(most)), most).astype(np.int32)
        row = self._kinds[requests] * LASTS + self._last[requests]
        count = self._ahead[draw.op].draw(most, requests, rounds, row)
        if draw.down:
            count = most - count
        if draw.op == "accept":
            log.drafted[requests] += most
            log.accepted[requests] += count
            self._accepted[requests] = count
            found = np.where(count < most, AFTER_REJECTION, AFTER_ALL)
            self._last[requests] = np.where(most > 0, found, self._last[requests])
        return count

    def _most(self, most: Expr, group: Group) -> NDArray[np.int32]:
        """Give the largest count for each request; constants, the usual case, need no table."""
        if isinstance(most, Const):
            return np.full(len(group.requests), most.value, np.int32)
        values: NDArray[np.int32] = evaluate(self.table, most, group.columns, np)
        return values

    def _uncount(self, requests: NDArray[np.int64], done: Step) -> None:
        """Take back accepted drafts behind the cut: only emitted tokens count."""
        for index in np.flatnonzero(done.transition & 1).tolist():
            lead = self.drawn.leads.get(int(done.transition[index]) // 2)
            if lead is not None:
                request = requests[index]
                kept = max(0, int(done.emitted[index]) - lead)
                self.log.accepted[request] -= max(0, int(self._accepted[request]) - kept)
