"""What a launch gives in the simulator: drawn counts, counted work and occupancy; no clock, no decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsm_spec import life_cycle
from fsm_spec.domain import column_bounds
from fsm_spec.engine import Args, Group, Launch
from fsm_spec.errors import UserError
from fsm_spec.expression import Const, Expr
from fsm_spec.linear import bounds
from fsm_spec.simulator.acceptance import Acceptance
from fsm_spec.simulator.ahead import Ahead, Law
from fsm_spec.simulator.cost import Work
from fsm_spec.simulator.lookup import Lookup
from fsm_spec.simulator.metrics import RequestLog
from fsm_spec.simulator.work import InFlight, WorkCounter
from fsm_spec.step import Columns, Step, evaluate
from fsm_spec.table import NO_STOP, Table


class Draw(NamedTuple):
    """Name one count that a forward's operators find: the argument, the operator, and the most it can be."""

    name: str
    op: str
    most: Expr
    drafts: str = ""


class Drawn:
    """Hold what a table says of the outcomes of its launches; each tier's table has its own."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.counter = WorkCounter(table)
        self.draws = {state.name: draws_of(table, state.name) for state in table.states}
        self.judged = {
            state: draw for state, draws in self.draws.items() for draw in draws if draw.op == "accept"
        }
        self.lead = self._leads()

    def _leads(self) -> dict[int, int]:
        """Give, by row, the tokens emitted before the accepted drafts, to know which drafts a cut loses."""
        leads = {}
        for row in self.table.rows:
            judged = self.judged.get(row.event)
            before = 0
            for piece in row.emit:
                if judged is not None and piece.name == judged.drafts:
                    leads[row.index] = before
                    break
                length = piece.length(Const(1))
                before += length.value if isinstance(length, Const) else 0
        return leads


def draws_of(table: Table, state: str) -> tuple[Draw, ...]:
    """List the counts that the operators of a state's forward find, in order."""
    forward = table.state(state).forward
    if forward is None:
        return ()
    plan = table.forwards[forward]
    return tuple(
        Draw(count.name, op.op, count.most, op.drafts.name if op.drafts else "")
        for op in plan.operators
        for count in op.counts
    )


def most_drafts(table: Table, op: str) -> int:
    """Give the largest count that operators of this kind find under the table's parameters; 0 without any."""
    limits = column_bounds({column.name: column.max for column in table.columns}, len(table.states))
    found = [
        bounds(draw.most, limits)[1]
        for state in table.states
        for draw in draws_of(table, state.name)
        if draw.op == op
    ]
    return max(found, default=0)


class Laws(NamedTuple):
    """Hold the laws that outcomes are drawn from; None where a spec has no operator that needs one."""

    acceptance: Acceptance | None = None
    lookup: Lookup | None = None


class SimulatedBackend:
    """Draw the outcomes of launches; count work, slots and requests as they go.

    `launched` is called at each launch with its work and the slots in flight; `fresh` collects the requests that
    emitted their first token in this iteration. `tables` are all that a policy's tiers may choose from.
    """

    def __init__(
        self,
        table: Table,
        log: RequestLog,
        laws: Laws,
        launched: Callable[[Work, InFlight], None],
        tables: Sequence[Table] = (),
    ) -> None:
        self.log = log
        self.laws = laws
        self.launched = launched
        self.fresh: list[NDArray[np.int64]] = []
        self.recomputed_slots = 0
        self.tokens = 0
        self._rounds = {state.name for state in table.states if state.round}
        self._accepted = np.zeros(len(log.emitted), np.int64)
        self.use(table)
        ops = {draw.op for draws in self.drawn.draws.values() for draw in draws}
        most = {op: max(most_drafts(each, op) for each in (table, *tables)) for op in ops}
        self._ahead = {op: Ahead(self._law(op), most[op], len(log.emitted)) for op in ops}

    def use(self, table: Table) -> None:
        """Draw for this table from now on."""
        self.table = table
        self.drawn: Drawn = table.cached("drawn", lambda: Drawn(table))

    def launch(self, launch: Launch) -> list[Args]:
        """Count a launch and draw what its operators find."""
        self.launched(*self.drawn.counter.count(launch))
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
        if not self.table.events[event].emits:
            return
        self.log.emitted[requests] += done.emitted
        self.tokens += int(done.emitted.sum())
        if event == life_cycle.FIRST:
            self.log.prefill_emitted[requests] += done.emitted
        if not before["emitted"].all():
            self.fresh.append(requests[(before["emitted"] == 0) & (done.emitted > 0)])
        if event in self.drawn.judged and (done.transition & 1).any():
            self._uncount(requests, done)

    def resize(self, request: int, pages: int) -> None:
        """Follow a request's pages; the engine's own counts say it all here."""

    def _law(self, op: str) -> Law:
        """Give the law of an operator's counts; raises UserError where none was given."""
        acceptance, lookup = self.laws
        if op == "accept" and acceptance is not None:
            return acceptance.accepted
        if op == "lookup" and lookup is not None:
            return lookup.found
        raise UserError(
            f"{self.table.name} has the operator {op}, whose results depend on model and text; give --{op}"
        )

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
        count = self._ahead[draw.op].draw(most, requests, rounds)
        if draw.op == "accept":
            log.drafted[requests] += most
            log.accepted[requests] += count
            self._accepted[requests] = count
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
            lead = self.drawn.lead.get(int(done.transition[index]) // 2)
            if lead is not None:
                request = requests[index]
                kept = max(0, int(done.emitted[index]) - lead)
                self.log.accepted[request] -= max(0, int(self._accepted[request]) - kept)
