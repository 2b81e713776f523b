"""What operators find in a launch: which counts are drawn in which state, how large they can be, and by which law."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fsm_spec.budget import Rate, best_total, grant, share
from fsm_spec.counts import KNOWN, draws_of
from fsm_spec.errors import UserError
from fsm_spec.simulator.acceptance import Acceptance, Unmasking
from fsm_spec.simulator.lookup import Lookup
from fsm_spec.simulator.mixture import Mixture
from fsm_spec.simulator.work import WorkCounter
from fsm_spec.table import Table


class Drawn:
    """Hold what a table says of the outcomes of its launches; each tier's table has its own.

    `draws` are the counts by state, in the order of the operators; `leads` are the table's.
    """

    def __init__(self, table: Table) -> None:
        self.counter = WorkCounter(table)
        self.draws = {state.name: draws_of(table, state.name) for state in table.states}
        self.leads = table.leads


def drawn(table: Table) -> Drawn:
    """Give what a table says of the outcomes of its launches."""
    known: Drawn = table.cached("drawn", lambda: Drawn(table))
    return known


def draft_sources(table: Table) -> dict[tuple[str | None, str], tuple[str, ...]]:
    """Give the states that make the drafts that are judged, by model (None: the target) and operator.

    Texts and models accept the drafts of each source at rates of their own.
    """
    judges = filter(None, (table.judge(state.name) for state in table.states))
    judged = {judge.accepted if judge.op == "accept" else judge.read["tree"] for judge in judges}
    found: dict[tuple[str | None, str], tuple[str, ...]] = {}
    for row in table.rows:
        read = {piece.name for name, pieces in row.carries if name in judged for piece in pieces}
        for state in row.sources if read else ():
            forward = table.state(state).forward
            plan = table.forwards[forward] if forward is not None else None
            for op in plan.operators if plan is not None else ():
                if plan is not None and read & set(op.out):
                    known = found.get((plan.model, op.op), ())
                    found[plan.model, op.op] = known if state in known else (*known, state)
    return found


class Law(Protocol):
    """Draw the counts of an operator, keyed by request and round."""

    @property
    def seed(self) -> int:
        """Give the seed."""

    @property
    def purpose(self) -> int:
        """Give the purpose that keeps its numbers apart from others."""

    def tails(self, most: int) -> NDArray[np.float64]:
        """Give the chance that a count of 0..`most` exceeds i, [rows, most], never rising: all that a run needs.

        There is one row, or one for each kind of request and each judgement before, as `mixture.Mixture` has them.
        """


class Known:
    """Draw nothing: the count is the one that its range leaves."""

    seed = 0
    purpose = 0

    def tails(self, most: int) -> NDArray[np.float64]:
        """Give no chance to exceed anything, [1, most]."""
        return np.zeros((1, most))


class Untrimmed:
    """Draw nothing: every draft is granted, as the confidences that a budget weighs are the model's."""

    seed = 0
    purpose = 0

    def tails(self, most: int) -> NDArray[np.float64]:
        """Give certainty that all are exceeded but the last, [1, most]."""
        return np.ones((1, most))


@dataclass(frozen=True)
class Granted:
    """Grant drafts by a verify budget, drawing nothing: how many in all follows from the requests of a launch.

    `survival`, float64 [g], is the chance that a draft and all before it are accepted, the same for every request: a
    simulation knows no confidences, and those of a calibrated head have this mean. `rate` says what rows cost,
    `earlier` whether the total may look past a dip (`budget.py`), `running` how many requests a launch has at most.
    """

    survival: tuple[float, ...]
    rate: Rate
    earlier: bool
    running: int
    seed = 0
    purpose = 0

    def tails(self, most: int) -> NDArray[np.float64]:
        """Give the drafts granted in all, by the requests of a launch, in the first column of [running + 1, most]."""
        totals = np.zeros((self.running + 1, most))
        for requests in range(1, self.running + 1):
            totals[requests, 0] = self.granted(requests).sum()
        return totals

    def granted(self, requests: int) -> NDArray[np.int64]:
        """Grant the drafts of a launch of so many requests, int64 [requests].

        As all survive alike, a total is shared out evenly, and what is left over goes to the first requests: a
        compiled run needs the total alone.
        """
        chances = np.tile(np.array(self.survival), (requests, 1))
        if self.earlier:
            return share(chances, best_total(chances, self.rate))
        return grant(chances, self.rate)


class Laws(NamedTuple):
    """Hold the laws that outcomes are drawn from; None where a spec has no operator that needs one.

    Without a budget every draft is granted.
    """

    acceptance: Acceptance | Mixture | None = None
    lookup: Lookup | None = None
    unmasking: Unmasking | None = None
    budget: Granted | None = None

    def kinds(self, requests: ArrayLike) -> NDArray[np.int64]:
        """Give the kind of each request, int64 [n], by which its drafts are accepted."""
        if self.acceptance is None:
            return np.zeros(np.shape(requests), np.int64)
        return self.acceptance.kinds(requests)

    def of(self, op: str, table: Table) -> Law:
        """Give the law of an operator's counts; raises UserError where none was given."""
        laws: dict[str, Law | None] = {
            KNOWN: Known(),
            "budget": self.budget or Untrimmed(),
            "accept": self.acceptance,
            "lookup": self.lookup,
            "unmask": self.unmasking,
        }
        law = laws.get(op)
        if law is None:
            raise UserError(
                f"{table.name} has the operator {op}, whose results depend on model and text; give --{op}"
            )
        return law
