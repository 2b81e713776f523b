"""What compiled iterations read of one table: its function, and arrays of its states, segments and draws.

A policy with tiers has several tables; they have the same states, rows and columns, so one run goes on under another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsm_spec.counts import most_drafts
from fsm_spec.language.expression import Const, Expr
from fsm_spec.plan import KIND_OF_FATE, KINDS
from fsm_spec.policy import Policy, block_rows, headroom
from fsm_spec.simulator import places as p
from fsm_spec.simulator.draws import seeded
from fsm_spec.simulator.outcomes import Laws, drawn
from fsm_spec.simulator.table_code import FILL, TableCode
from fsm_spec.table import Table

Integers = NDArray[np.int64]


class Chances(NamedTuple):
    """Hold the laws of outcomes, in the order of `ops`.

    `survival` is the chance that a count exceeds i, float64 [rows, most]; the rows of a law stand from its `first` on,
    one, or one for each kind of request and each judgement before. `starts` are the seed and the purpose of each
    law's numbers, uint64 [laws, 2].
    """

    ops: tuple[str, ...]
    first: tuple[int, ...]
    survival: NDArray[np.float64]
    starts: NDArray[np.uint64]

    @classmethod
    def of(cls, tables: Sequence[Table], laws: Laws) -> Chances:
        """Give the chances for the largest counts of all tables; raises UserError where a law is missing."""
        ops = tuple(sorted({draw.op for draws in drawn(tables[0]).draws.values() for draw in draws}))
        most = [max(most_drafts(table, op) for table in tables) for op in ops]
        found = [laws.of(op, tables[0]) for op in ops]
        tails = [law.tails(count) for law, count in zip(found, most, strict=True)]
        first = np.cumsum([0, *map(len, tails)]).tolist()
        survival = np.zeros((first[-1] + 1, max(most, default=0) + 1))
        starts = np.zeros((len(ops) + 1, 2), np.uint64)
        for index, (law, rows) in enumerate(zip(found, tails, strict=True)):
            survival[first[index] : first[index + 1], : most[index]] = rows
            starts[index] = seeded(law.seed)[0], law.purpose
        return cls(ops, tuple(first), survival, starts)


class PackedTable:
    """Hold the arrays of one table under a policy; `chances` are the laws by which counts are drawn."""

    def __init__(self, table: Table, policy: Policy, chances: Chances) -> None:
        self.table = table
        self._policy = policy
        self._chances = chances
        self._drawn = drawn(table)
        self._plans = {
            state.name: table.forwards[state.forward] for state in table.states if state.forward is not None
        }
        assert table.fill is not None
        self.code = TableCode(table, {FILL: [table.fill], **self._queries()})
        self.states, self.segments, self.visible, self.drawing = self._states()
        leads = self._drawn.leads
        self.leads = np.array([leads.get(row.index, -1) for row in table.rows], np.int64)

    def _queries(self) -> dict[str, list[Expr]]:
        """List, by state, what must be computed for each request of a launch: largest counts, then rows of segments."""
        queries = {}
        for state, draws in self._drawn.draws.items():
            values: list[Expr] = [draw.most for draw in draws if not isinstance(draw.most, Const)]
            plan = self._plans.get(state)
            if plan is not None and self._drawn.counter.constant(state) is None:
                values += [segment.count for segment in plan.segments]
            queries[f"rows of {state}"] = values
        return queries

    def _states(self) -> tuple[Integers, Integers, Integers, Integers]:
        """Give the arrays of states, of their segments, of the sums of their masks, and of their draws."""
        table, code = self.table, self.code
        states = np.zeros((len(table.states), p.STATE), np.int64)
        widest = max((len(plan.segments) for plan in self._plans.values()), default=0)
        segments = np.zeros((len(states), max(widest, 1), p.SEGMENT), np.int64)
        drawn = max(map(len, self._drawn.draws.values()), default=0)
        drawing = np.zeros((len(states), max(drawn, 1), p.DRAW), np.int64)
        masks: list[Integers] = []
        for index, state in enumerate(table.states):
            row = states[index]
            row[p.ROUND], row[p.MID_ROUND] = state.round, not state.round and not state.built_in
            row[p.AHEAD] = headroom(table, self._policy)[index]
            row[p.BLOCK_ROWS] = block_rows(table)[index]
            row[p.QUERY] = code.what.get(f"rows of {state.name}", -1)
            if state.name in code.what:
                row[p.EVENT], row[p.EMITS] = code.what[state.name], table.events[state.name].emits
            at = self._place_draws(drawing[index], row, state.name)
            plan = self._plans.get(state.name)
            if plan is None:
                continue
            row[p.HAS_ROWS], row[p.SEGMENTS] = plan.target_rows > 0, len(plan.segments)
            row[p.DRAFTS] = plan.model is not None
            block = self._drawn.counter.constant(state.name)
            if block is not None:
                row[p.CONSTANT] = True
                row[p.ROWS : p.SCRATCHED + 1] = block
                continue
            row[p.SHAPE] = _shape(plan.mask)
            row[p.MASK], row[p.MASK_SIZE] = sum(map(len, masks)), plan.rows + 1
            masks.append(summed(plan.mask))
            for each, segment in enumerate(plan.segments):
                sampled = sum(operator.rows.count(segment.name) for operator in plan.operators)
                segments[index, each] = (
                    at + each,
                    segment.first,
                    segment.logits != "none",
                    segment.adapter,
                    sampled,
                    KINDS.index(KIND_OF_FATE[segment.kv]),
                )
        return states, segments, np.concatenate([*masks, np.zeros(1, np.int64)]), drawing

    def _place_draws(self, drawing: Integers, row: Integers, state: str) -> int:
        """Fill in the draws of a state; give the row of cells behind the largest counts that are computed."""
        at = self.code.results
        row[p.DRAWS] = len(self._drawn.draws[state])
        for each, draw in enumerate(self._drawn.draws[state]):
            known = isinstance(draw.most, Const)
            argument = self.code.argument(state, draw.name)
            law = self._chances.ops.index(draw.op)
            first, end = self._chances.first[law : law + 2]
            most = draw.most.value if isinstance(draw.most, Const) else 0
            judges, grants = draw.op == "accept", draw.op == "budget" and end - first > 1
            varies = end - first > 1 and not grants
            drawing[each] = law, argument, 0 if known else at, most, judges, draw.down, first, varies, grants
            at += not known
        return at


def _shape(mask: NDArray[np.bool_]) -> int:
    """Name the shape of a mask: of the usual ones, the number of live rows says how many pairs there are."""
    if mask.all():
        return p.FULL
    return p.CAUSAL if (mask == np.tril(np.ones_like(mask))).all() else p.ANY


def summed(mask: NDArray[np.bool_]) -> Integers:
    """Sum a block mask from its first row and column on, so that four numbers give any rectangle: int64 [(n + 1)^2]."""
    sums = np.zeros((len(mask) + 1, len(mask) + 1), np.int64)
    sums[1:, 1:] = mask.cumsum(0).cumsum(1)
    return sums.reshape(-1)
