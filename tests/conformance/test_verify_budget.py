"""Verify budgets by policy: what verifying costs decides how many drafts are judged, and never which tokens come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pytest

from fsm_spec.errors import UserError
from fsm_spec.executor.device.place import CpuPlace
from fsm_spec.executor.device.resident import Resident
from fsm_spec.executor.generate import Options, Session, trace_header
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.load import load, shipped
from fsm_spec.policy import Policy, Pool
from fsm_spec.table import Table
from fsm_spec.trace import TraceWriter

PROMPTS = [[3 + index, 5, 7, 9 + index] for index in range(4)]
TOKENS = 20
Tables = Callable[..., Table]


class Executor(Protocol):
    """Be the fixture of that name (`conftest.py`)."""

    def run(self, table: Table, prompts: Sequence[Sequence[int]], options: Options, **more: Any) -> Any:  # noqa: ANN401 -- what the fixture takes and gives
        """Run all prompts together."""


def policy(rows: Sequence[int], rates: Sequence[int]) -> Policy:
    """Return a policy with that cost table."""
    return Policy.model_validate(
        {"policy": "costs", "budget": {"rows": list(rows), "steps_per_second": list(rates)}}
    )


# Of free rows none is worth trimming; where every row more takes four times as long, no draft pays.
FREE = policy([64], [100])
DEAR = policy(range(1, 9), [10**7 // 4**row for row in range(8)])


def budgeted() -> list[str]:
    """List the shipped specs with an operator budget."""
    specs = {name: load(name).spec for name in shipped()}
    return sorted(
        name
        for name, spec in specs.items()
        if any(op.op == "budget" for forward in spec.forwards.values() for op in forward.ops)
    )


def granted(outputs: Any) -> list[int]:  # noqa: ANN401 -- what the fixture gives
    """Give every grant of a run."""
    return [step["args"]["granted"] for step in outputs.steps if "granted" in step["args"]]


def test_specs_with_a_budget_are_found() -> None:
    """The tests below would pass by asking nothing."""
    assert ["dspark", "dspark_earlier"] == budgeted()


@pytest.mark.parametrize("spec", budgeted())
def test_what_rows_cost_decides_how_many_drafts_are_judged(
    spec: str, executor: Executor, table_of: Tables
) -> None:
    """A table that is not read would grant the same under any cost."""
    table = table_of(spec, g=3)
    plain = executor.run(table_of("ar"), PROMPTS, Options(TOKENS), replays=False).token_ids
    runs = {
        name: executor.run(table, PROMPTS, Options(TOKENS), policy=each)
        for name, each in {"no table": Policy(), "free": FREE, "dear": DEAR}.items()
    }
    assert {3} == set(granted(runs["no table"])) == set(granted(runs["free"]))
    assert {0} == set(granted(runs["dear"]))
    assert all(plain == outputs.token_ids for outputs in runs.values())


@pytest.mark.parametrize("resident", [None, Resident(CpuPlace(graphs=True))], ids=["host", "resident"])
def test_a_budget_is_switched_between_rounds(table_of: Tables, resident: Resident | None) -> None:
    """A switch that only moved the scheduler's policy would leave the old costs in force, in graphs too."""
    model, table = tiny_model(vocab=48, hidden=32, heads=2, kv_heads=1), table_of("dspark", g=3)
    records: list[dict[str, Any]] = []
    pool = Pool(64, 16)
    trace = TraceWriter(records, trace_header(table, DEAR, pool, load("dspark").text))
    session = Session(
        table,
        model,
        pool=pool,
        policy=DEAR,
        drafters=random_drafters(table, model),
        trace=trace,
        resident=resident,
    )
    session.add(PROMPTS[0], Options(64))
    found = []
    for each in (DEAR, FREE, DEAR):
        session.switch(each)
        start = len(records)
        for _ in range(3):
            session.iterate()
        found.append({r["args"]["granted"] for r in records[start:] if "granted" in r.get("args", {})})
    assert [{0}, {3}, {0}] == found


@pytest.mark.parametrize("spec", budgeted())
def test_a_device_weighs_as_the_host_does(spec: str, table_of: Tables) -> None:
    """In a crowd, with a table under which some drafts pay: the grants are the host's, planned ahead or not."""
    model, table = tiny_model(vocab=48, hidden=32, heads=2, kv_heads=1), table_of(spec, g=3)
    some = policy(range(1, 17), [1000 // (row + 9) for row in range(16)])
    grants = []
    for resident, lag in ((None, 0), (Resident(CpuPlace()), 0), (Resident(CpuPlace()), 1)):
        records: list[dict[str, Any]] = []
        weighing, pool = some.model_copy(update={"lag": lag, "max_running": 4}), Pool(64, 16)
        session = Session(
            table,
            model,
            pool=pool,
            policy=weighing,
            drafters=random_drafters(table, model),
            trace=TraceWriter(records, trace_header(table, weighing, pool, load(spec).text)),
            resident=resident,
        )
        for prompt in PROMPTS:
            session.add(prompt, Options(TOKENS))
        session.run()
        grants.append(
            [(r["request"], r["args"]["granted"]) for r in records if "granted" in r.get("args", {})]
        )
    assert grants[0] == grants[1]
    assert sorted(grants[0]) == sorted(grants[2])
    assert 1 < len({granted for _, granted in grants[0]})


def test_a_spec_without_the_operator_refuses_the_table(table_of: Tables) -> None:
    """A policy whose costs nothing reads would look as if it were in force."""
    with pytest.raises(
        UserError, match="the policy costs has a verify budget, and ar has no operator budget"
    ):
        Session(table_of("ar"), tiny_model(), pool=Pool(8, 16), policy=FREE)
