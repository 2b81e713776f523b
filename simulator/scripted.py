"""Run a recorded trace again: decisions and operator results come from the records, everything else from the engine.

Budgets, arrivals and counts depend on time and on a model, so they are fed; transitions, columns and pages are not,
so they must come out as recorded, whoever wrote the trace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsm_spec import life_cycle
from fsm_spec.engine import Engine
from fsm_spec.errors import TraceDivergence, UserError
from fsm_spec.launch import Args, Launch
from fsm_spec.policy import Plan
from fsm_spec.replay import table_of
from fsm_spec.simulator.conservation import Conservation
from fsm_spec.step import Columns, Step
from fsm_spec.table import STOP, Table
from fsm_spec.trace import TraceWriter, header

Record = Mapping[str, Any]
# Steps that come from outside an iteration: a client that goes away, a stop string.
OUTSIDE = (life_cycle.ABORT, life_cycle.HALT)


def rerun(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Run a trace again, its header first, and give the records that this run writes.

    Equal records (but for the header's `source`) say that both sides took the same steps. Pages, slots and requests
    are held to conservation at every event. Raises TraceDivergence where the run asks for another step than the
    trace has next, UserError for records that are no trace.
    """
    stream = iter(records)
    head = next(stream, {})
    if "trace" not in head:
        raise UserError("the first record is no trace header; is this a trace?")
    table, policy, pool = table_of(head)
    written: list[dict[str, Any]] = []
    script = Script(table)
    books = Conservation(script, lambda: engine)
    writer = TraceWriter(written, header(table, policy, pool, head["spec"], "simulator"))
    engine = Engine(table, policy, pool, books, writer, planner=script.plan)
    submitted = 0
    for record in stream:
        if "arrive" in record:
            script.finish(engine, submitted, books)
            submitted += 1
            engine.submit(record["prompt"], record["limit"])
        elif "plan" in record:
            script.finish(engine, submitted, books)
            script.decision = record["plan"]
        elif record["event"] in OUTSIDE:
            script.finish(engine, submitted, books)
            script.expect(record)
            _from_outside(engine, record)
        else:
            script.expect(record)
    script.finish(engine, submitted, books)
    return written


def _from_outside(engine: Engine, record: Record) -> None:
    if record["event"] == life_cycle.HALT:
        engine.halt(record["request"], record["args"]["at"])
    else:
        engine.abort(record["request"])


class Script:
    """Feed the engine from records: a backend, and the planner beside it."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._steps: dict[int, deque[Record]] = {}
        self.decision: Mapping[str, Any] | None = None

    def expect(self, record: Record) -> None:
        """Take a recorded step as the next one of its request."""
        self._steps.setdefault(record["request"], deque()).append(record)

    def finish(self, engine: Engine, submitted: int, books: Conservation) -> None:
        """Run the iteration whose plan and steps have been read; raises TraceDivergence if steps are left over."""
        if self.decision is not None:
            engine.iterate()
            self.decision = None
        books.check(submitted)
        for request, steps in self._steps.items():
            if steps:
                raise TraceDivergence(
                    f"request {request} does not take the recorded step {steps[0]['event']}"
                )

    def plan(self, engine: Engine) -> Plan:
        """Give the recorded decisions of the next iteration."""
        decision = self.decision
        assert decision is not None
        live = engine.requests[engine.live].tolist()
        index = {request: place for place, request in enumerate(live)}
        pages, shared = dict(decision["pages"]), dict(decision.get("shared", ()))
        hits = dict(decision.get("hits", ()))
        admitted = [request for request, *_ in decision["admit"]]
        try:
            return Plan(
                preempt=tuple(index[request] for request in decision["preempt"]),
                pages=np.array([pages[request] for request in live], np.int32),
                run=np.array([index[request] for request in decision["run"]], np.int64),
                chunks=tuple((index[request], tokens) for request, tokens in decision["chunks"]),
                admit=tuple(taken for _, taken, _ in decision["admit"]),
                admit_chunks=tuple(tokens for _, _, tokens in decision["admit"]),
                blocked=tuple(index[request] for request in decision["blocked"]),
                tier=decision.get("tier"),
                hits=tuple(hits.get(request, 0) for request in admitted),
                shared=tuple(shared.get(request, 0) for request in [*live, *admitted]),
            )
        except KeyError as error:
            raise TraceDivergence(f"the plan names request {error}, which is not live here") from None

    def launch(self, launch: Launch) -> list[Args]:
        """Give the recorded results of every group's operators."""
        return [
            {
                arg.name: np.array(
                    [
                        self._next(request, group.state)["args"][arg.name]
                        for request in group.requests.tolist()
                    ],
                    np.int32,
                )
                for arg in self._table.events[group.state].args
            }
            for group in launch.groups
        ]

    def stops(
        self, event: str, requests: NDArray[np.int64], columns: Columns, args: Args
    ) -> NDArray[np.int32]:
        """Give the recorded places of stop tokens."""
        del columns, args  # the protocol's
        return np.array([self._next(request, event)["args"][STOP] for request in requests.tolist()], np.int32)

    def settle(self, event: str, requests: NDArray[np.int64], before: Columns, done: Step) -> None:
        """Tick off the recorded step of each request."""
        del before, done  # what they hold is in the records that this run writes
        for request in requests.tolist():
            self._next(request, event)
            self._steps[request].popleft()

    def resize(self, request: int, pages: int) -> None:
        """Follow a request's pages; the books beside this backend do."""

    def use(self, table: Table) -> None:
        """Follow the tier: events and arguments have the same names under every size."""

    def _next(self, request: int, event: str) -> Record:
        """Give the next recorded step of a request, which must be this event."""
        steps = self._steps.get(request)
        if not steps:
            raise TraceDivergence(f"request {request} takes the step {event}, and the trace has none")
        if steps[0]["event"] != event:
            raise TraceDivergence(
                f"request {request} takes the step {event}, the trace has {steps[0]['event']}"
            )
        return steps[0]
