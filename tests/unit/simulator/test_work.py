"""Work counted from row plans: against a count row by row."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.language.expression import evaluate
from fsm_spec.launch import Chunk, Group, Launch
from fsm_spec.load import load, shipped
from fsm_spec.simulator import roofline
from fsm_spec.simulator.cost import Work
from fsm_spec.simulator.preparation import prepare
from fsm_spec.simulator.scenario import Scenario
from fsm_spec.simulator.work import WorkCounter
from fsm_spec.table import Table


def group(table: Table, state: str, kv: list[int], found: list[int]) -> Group:
    """Make a group of requests in one state."""
    columns: dict[str, NDArray[np.int32]] = {name: np.zeros(len(kv), np.int32) for name in table.column_names}
    columns["kv"] = np.array(kv, np.int32)
    columns["state"] += table.codes[state]
    if "found" in columns:
        columns["found"] = np.array(found, np.int32)
    return Group(state, np.arange(len(kv)), columns)


def by_rows(table: Table, state: str, kv: list[int], found: list[int]) -> Work:
    """Count the same row by row, by the plain meaning of a plan."""
    plan = table.forwards[table.state(state).forward or ""]
    total = Work()
    for committed, drafts in zip(kv, found, strict=True):
        columns = {**dict.fromkeys(table.column_names, 0), "kv": committed, "found": drafts}
        counts = [evaluate(segment.count, columns) for segment in plan.segments]
        rows = [
            (s, s.first + i) for s, count in zip(plan.segments, counts, strict=True) for i in range(count)
        ]
        if not rows:
            continue
        if plan.model is not None:  # no rows of the target
            total += Work(drafting_rows=len(rows), drafting_context=committed)
            continue
        live = [row for _, row in rows]
        seen = int(plan.mask[np.ix_(live, live)].sum())
        read = [name for operator in plan.operators for name in operator.rows]
        total += Work(
            requests=1,
            rows=len(rows),
            logits_rows=sum(segment.logits != "none" for segment, _ in rows),
            adapter_rows=sum(segment.adapter for segment, _ in rows),
            context_tokens=committed,
            attention_pairs=committed * len(rows) + seen,
            sampled_rows=sum(read.count(segment.name) for segment, _ in rows),
        )
    return total


@cache
def counted(spec: str) -> tuple[Table, WorkCounter]:
    """Compile a shipped spec once, and give its counter."""
    table = compile_table(load(spec).spec)
    return table, WorkCounter(table)


requests = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 4)), min_size=1, max_size=6)


@pytest.mark.parametrize("spec", sorted(shipped()))
@settings(max_examples=25, deadline=None)
@given(requests=requests)
def test_work_is_that_of_the_live_rows(spec: str, requests: list[tuple[int, int]]) -> None:
    """Dead rows cost nothing, and the block mask decides which rows see which."""
    table, counter = counted(spec)
    kv, found = [kv for kv, _ in requests], [count for _, count in requests]
    for state in table.states:
        if state.forward is None:
            continue
        work, flight = counter.count(Launch((group(table, state.name, kv, found),), ()))
        assert by_rows(table, state.name, kv, found) == work
        assert work.rows == sum(flight)


def test_chunks_are_causal_and_give_logits_at_their_end() -> None:
    """A prompt in two chunks sees as many pairs as in one, and is sampled once."""
    counter = WorkCounter(compile_table(load("ar").spec))
    whole, _ = counter.count(Launch((), (Chunk(0, 0, 100, last=True),)))
    first, _ = counter.count(Launch((), (Chunk(0, 0, 60, last=False),)))
    second, flight = counter.count(Launch((), (Chunk(0, 60, 40, last=True),)))
    assert 100 * 101 // 2 == whole.attention_pairs == first.attention_pairs + second.attention_pairs
    assert (0, 1) == (first.sampled_rows, second.logits_rows)
    assert (60, 40) == (second.context_tokens, flight.keep)


def test_a_forward_without_rows_has_no_work() -> None:
    """A lookup reads text, not the model."""
    table = compile_table(load("ngram").spec)
    counter = WorkCounter(table)
    assert Work() == counter.count(Launch((group(table, "propose", [10, 20], [0, 0]),), ()))[0]
    assert [False, True] == [counter.has_rows(name) for name in ("propose", "verify")]


def test_a_draft_model_costs_its_own_forwards() -> None:
    """Each forward of a draft model is priced where it runs, by its live rows; states that draft take time.

    With nothing accepted a round of draft_lm reads a new token (none in the first) and the pending one, then drafts.
    """
    scenario = Scenario(
        spec="draft_lm",
        params={"g": 3},
        model="smollm2-135m",
        hardware="h100",
        arrivals="closed:2",
        input="16",
        output="8",
        requests=4,
        accept="geometric:0",
        drafter="4",
    )
    prepared = prepare(scenario)
    simulation = prepared.simulation()
    results = simulation.run()
    rows = results.summary.rounds * 4 - results.summary.requests
    assert prepared.cost.drafter is not None
    flops = 2 * prepared.cost.drafter.parameters(prepared.model) * rows
    assert flops == pytest.approx(results.usage.parts[roofline.DRAFTER, roofline.FLOPS])
    assert min(results.usage.dwell_ns[state] for state in ("extend", "go_on", "verify")) > 0
    stepped = prepared.simulation(checked=True).run()
    assert stepped.usage.to_dict() == results.usage.to_dict()
    # STEPS and ROWS are the spec's; without draft forwards of its own they are the option's.
    assert prepare(scenario.model_copy(update={"drafter": "4:9:9"})).cost.drafter == prepared.cost.drafter
    with pytest.raises(UserError, match='--drafter "4" is unknown'):
        prepare(scenario.model_copy(update={"spec": "ar", "params": {}, "accept": None}))
