"""Slots written, kept and trimmed: row plan, checker and executor agree at every launch of every shipped spec.

A toy model reads back what lies in each slot, so that what was kept can be compared with the text itself.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from fsm_spec.checker.properties import Judge
from fsm_spec.compile import compile_table
from fsm_spec.engine import Engine
from fsm_spec.executor.cache import PageAllocator
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.executor.request import Request
from fsm_spec.executor.runner import Runner
from fsm_spec.executor.toy import ToyCache, ToyModel
from fsm_spec.executor.toy_drafters import toy_drafters
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.language.expression import evaluate
from fsm_spec.launch import Group
from fsm_spec.load import load, shipped
from fsm_spec.oracle import holding, oracle
from fsm_spec.plan import ForwardPlan
from fsm_spec.policy import Policy, Pool
from fsm_spec.table import Table
from fsm_spec.trace import STEP_FIELDS, TraceWriter, header

VOCABULARY, MASK, REQUESTS, LIMIT = 5, 4, 3, 9
POOL = Pool(18, 4)


class Watched(Runner):
    """Compare each forward's slots with the row plan, and each step with the checker's books."""

    rows: RowBatch
    launched: list[Group]
    written: dict[int, deque[list[int]]]

    def __init__(self, table: Table) -> None:
        super().__init__(
            table,
            self,
            ToyCache(POOL.pages * POOL.page_size),
            PageAllocator(POOL.pages, POOL.page_size),
            vocabulary=VOCABULARY,
            mask_id=MASK,
            drafters=toy_drafters(table, POOL.pages * POOL.page_size, VOCABULARY),
        )
        self.toy = ToyModel(VOCABULARY)
        self.launched = []
        self.written = {}

    def forward(self, rows: RowBatch, cache: ToyCache) -> torch.Tensor:
        """Be the model: hold rows to the plan of the launch's groups, then let the toy answer."""
        self._compare(rows)
        return self.toy.forward(rows, cache)

    def forward_captured(
        self, rows: RowBatch, cache: ToyCache, capture: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Give hidden states too, for draft models that read them."""
        self._compare(rows)
        return self.toy.forward_captured(rows, cache, capture)

    def _compare(self, rows: RowBatch) -> None:
        slots, at = rows.slots.tolist(), 0
        for group in self.launched:
            if forward_of(self.table, group.state).model is not None:
                continue
            for member, request in enumerate(group.requests.tolist()):
                planned = self._planned(group, member)
                self.written[request][-1] = planned
                if planned:
                    own = self.allocator.slots(request, 0, max(planned) + 1)
                    assert own[planned].tolist() == slots[at : at + len(planned)]
                    at += len(planned)
                self._hold_text(request, int(group.columns["kv"][member]))

    def launch(self, launch: Any) -> Any:  # noqa: ANN401 -- the protocol's
        """Remember the groups; requests without rows have written nothing."""
        self.launched = launch.groups
        for group in launch.groups:
            for request in group.requests.tolist():
                self.written.setdefault(request, deque()).append([])
        return super().launch(launch)

    def _planned(self, group: Group, member: int) -> list[int]:
        """List the slots that the row plan gives, row after row."""
        values = {name: int(column[member]) for name, column in group.columns.items()}
        plan = forward_of(self.table, group.state)
        counts = [evaluate(segment.count, values) for segment in plan.segments]
        held = holding(self.table, values)
        # The plan's rows by what becomes of their KV are what step and simulator count as held beside kv.
        by_fate = dict.fromkeys(("keep", "provisional", "scratch"), 0)
        for segment, count in zip(plan.segments, counts, strict=True):
            by_fate[segment.kv] += count
        assert (by_fate["provisional"], by_fate["scratch"]) == (held["provisional"], held["scratch"])
        assert values["kv"] + by_fate["keep"] == held["committed"]
        starts = [evaluate(segment.slot, values) for segment in plan.segments]
        return [start + row for start, count in zip(starts, counts, strict=True) for row in range(count)]

    def _hold_text(self, request: int, kv: int) -> None:
        """Compare committed KV with the text: its tokens, at their positions, by the weights of the target."""
        own, cache = self.allocator.slots(request, 0, kv), self.cache
        assert self.requests[request].text[:kv].tolist() == cache.tokens[own].tolist()
        assert list(range(kv)) == cache.positions[own].tolist()
        assert not cache.gates[own].any()


def forward_of(table: Table, state: str) -> ForwardPlan:
    """Give the plan of the forward that runs in a state."""
    return table.forwards[str(table.state(state).forward)]


def run(table: Table, text: str, seed: int) -> tuple[Watched, int]:
    """Run a few requests in a pool that presses them; give the runner and the number of rounds compared."""
    source = random.Random(seed)
    records: list[dict[str, Any]] = []
    runner = Watched(table)
    policy = Policy(policy="preempt", admit="preempt")
    engine = Engine(
        table, policy, POOL, runner, TraceWriter(records, header(table, policy, POOL, text, "executor"))
    )
    for number in range(REQUESTS):
        prompt = [source.randrange(VOCABULARY - 1) for _ in range(source.randrange(1, 7))]
        limit = source.randrange(LIMIT // 2, LIMIT)
        request = Request(prompt, limit, SamplingParams(1.2), seed + number, stop_ids=[3])
        runner.add(engine.submit(len(prompt), limit), request)
    judge, compared = Judge(table), 0
    columns: dict[int, dict[str, int]] = {}
    read = 0
    while engine.has_work:
        engine.iterate()
        assert len(records) > read, "the run stands still"
        for record in records[read:]:
            if "arrive" in record:
                columns[record["arrive"]] = table.new_request(record["prompt"], record["limit"])
            if "event" in record:
                compared += follow(table, judge, columns, record, runner.written)
        read = len(records)
    return runner, compared


def follow(
    table: Table,
    judge: Judge,
    columns: dict[int, dict[str, int]],
    record: dict[str, Any],
    written: dict[int, deque[list[int]]],
) -> int:
    """Judge a recorded step as the checker does, and compare what it wrote, kept and trimmed; count rounds."""
    _, request, event, args, _, after, _ = (record[field] for field in STEP_FIELDS)
    before = columns[request]
    outcome = oracle(table, before, event, args)
    assert outcome.columns == after
    assert () == judge.broken(before, args, outcome)
    columns[request] = after
    state = table.states[before["state"]]
    if event != state.name or state.forward is None:
        return 0
    kv, kept, slots = before["kv"], after["kv"] - before["kv"], written[request].popleft()
    if forward_of(table, event).model is not None:
        assert (0, []) == (kept, slots)
        return 0
    row = table.rows[outcome.transition // 2]
    if not outcome.transition % 2:
        assert evaluate(row.keep, {**before, **table.codes, **args}) == kept
    # Written above kv without a hole, or nothing; what is not kept of it is trimmed.
    assert set(slots) <= set(range(kv, kv + len(set(slots))))
    assert 0 <= kept <= len(set(slots))
    assert judge.used(before, after) == max([kv, after["kv"], *(slot + 1 for slot in slots)])
    return 1


@pytest.mark.parametrize("spec", sorted(shipped()))
def test_slots_agree(spec: str) -> None:
    """A row in a slot of its own choosing, a kept row that is no text, a count that differs: each shows here."""
    loaded = load(spec)
    table = compile_table(loaded.spec, check=True, line_of=loaded.line_of)
    compared = 0
    for seed in range(3):
        runner, rounds = run(table, loaded.text, seed)
        assert POOL.pages == runner.allocator.free
        compared += rounds
    assert compared > 5
