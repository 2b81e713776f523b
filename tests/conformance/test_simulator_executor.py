"""The simulator takes the steps that the executor took: same transitions, columns and pages for the same results."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
from shipped_specs import EVERY_WAY, SIMULATED, SPECS, sizes

from fsm_spec.compile import compile_table
from fsm_spec.errors import TraceDivergence, UserError
from fsm_spec.executor.generate import Options, Session, pool_for, trace_header
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.language.expression import Const, subtract
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool
from fsm_spec.replay import replay_records
from fsm_spec.simulator.acceptance import parse_accept, parse_unmask
from fsm_spec.simulator.cost import CostModel
from fsm_spec.simulator.hardware import load_hardware
from fsm_spec.simulator.lookup import Lookup
from fsm_spec.simulator.model import load_model
from fsm_spec.simulator.outcomes import Laws
from fsm_spec.simulator.scripted import rerun
from fsm_spec.simulator.simulation import Simulation
from fsm_spec.simulator.workload import Workload, parse_arrivals, parse_lengths
from fsm_spec.table import NO_STOP, Table
from fsm_spec.trace import TraceWriter, header

TOKENS = 16
Records = list[dict[str, Any]]
ADMISSIONS = ("reserve", "holdback", "preempt")
# Specs that share little go every way, of the others each goes one.
CASES = [(spec, admit) for spec in EVERY_WAY for admit in ADMISSIONS]
CASES += [
    (spec, admit) for spec, admit in zip(SPECS, cycle(ADMISSIONS), strict=False) if spec not in EVERY_WAY
]


@pytest.fixture(scope="module")
def model() -> Transformer:
    """Return a random model of two layers."""
    return tiny_model(vocab=64)


def recorded_run(
    model: Transformer, spec: str, prompts: list[list[int]], pool: Pool, policy: Policy, tokens: int
) -> Records:
    """Run prompts together on the executor; give its trace."""
    records: Records = []
    loaded = load(spec)
    table = compile_table(loaded.spec, sizes(spec), line_of=loaded.line_of)
    trace = TraceWriter(records, trace_header(table, policy, pool, loaded.text))
    drafters = random_drafters(table, model)
    session = Session(table, model, pool=pool, policy=policy, trace=trace, drafters=drafters)
    for prompt in prompts:
        session.add(prompt, Options(tokens))
    session.run()
    return records


@pytest.fixture(scope="module")
def prompts(model: Transformer) -> list[list[int]]:
    """Return prompts that repeat themselves, so that lookups find something."""
    source = random.Random(1)
    return [
        [source.randrange(1, model.config.vocab - 1) for _ in range(3 + 2 * index)] * 2 for index in range(4)
    ]


def tight(table: Table, prompts: list[list[int]]) -> Pool:
    """Return a pool that carries the longest request, and little more."""
    longest = pool_for(table, max(map(len, prompts)), TOKENS, 4)
    return Pool(longest.pages + 6, 4)


@pytest.mark.shows("run")
@pytest.mark.parametrize(("spec", "admit"), CASES)
def test_simulator_takes_the_executors_steps(
    spec: str, admit: str, model: Transformer, table_of: Callable[..., Table], prompts: list[list[int]]
) -> None:
    """A difference in page counts, cuts or preemption between the two sides shows at its first record."""
    policy = Policy.model_validate({"policy": admit, "admit": admit})
    records = recorded_run(
        model, spec, prompts, tight(table_of(spec, **sizes(spec)), prompts), policy, TOKENS
    )
    again = rerun(records)
    assert {**records[0], "source": "simulator"} == again[0]
    assert records[1:] == again[1:]
    assert (admit != "reserve") == any(record.get("event") == "preempt" for record in records)


def test_stop_tokens_stop_strings_and_aborts_come_along(
    model: Transformer, table_of: Callable[..., Table]
) -> None:
    """Ends that the host decides are part of the trace, in their place."""
    table, pool, policy = table_of("uno_linear"), Pool(64, 4), Policy()
    records: Records = []
    text = load("uno_linear").text
    session = Session(
        table,
        model,
        pool=pool,
        policy=policy,
        trace=TraceWriter(records, trace_header(table, policy, pool, text)),
    )
    stops = tuple(range(0, model.config.vocab, 11))
    numbers = [session.add([1, 2, 3 + index], Options(TOKENS, stop_ids=stops)) for index in range(5)]
    session.iterate()
    session.abort(numbers[4])
    session.iterate()
    live: list[int] = session.engine.requests[session.engine.live].tolist()
    session.engine.halt(live[-1], 1)
    while session.has_work:
        session.iterate()
    assert {"abort", "halt"} <= {record.get("event") for record in records}
    assert any(record.get("args", {}).get("stop", NO_STOP) < NO_STOP for record in records)
    assert records[1:] == rerun(records)[1:]


@pytest.fixture(scope="module")
def recorded(model: Transformer, prompts: list[list[int]]) -> Records:
    """Return a trace of the executor."""
    return recorded_run(model, "uno_linear", prompts[:2], Pool(64, 16), Policy(), 8)


def test_another_result_gives_another_run(recorded: Records) -> None:
    """The comparison can fail: a changed operator result changes what follows, and is no longer this trace."""
    changed = copy.deepcopy(recorded)
    step = next(record for record in changed if "a" in record.get("args", {}) and record["args"]["a"] < 3)
    step["args"]["a"] += 1
    try:
        assert changed[1:] != rerun(changed)[1:]
    except (TraceDivergence, AssertionError):
        return  # the longer run asked for other steps than the trace has


def test_a_plan_that_names_a_stranger_is_told(recorded: Records) -> None:
    """A plan for requests that do not live is no plan of this run."""
    changed = copy.deepcopy(recorded)
    next(record for record in changed if record.get("plan", {}).get("run"))["plan"]["run"] = [77]
    with pytest.raises(TraceDivergence, match="77"):
        rerun(changed)


def test_a_missing_and_a_foreign_step_are_told(recorded: Records) -> None:
    """Steps that are left out, or that nobody takes, are found where they stand."""
    index = next(i for i, record in enumerate(recorded) if record.get("event") == "verify")
    with pytest.raises(TraceDivergence):
        rerun(recorded[:index] + recorded[index + 1 :])
    with pytest.raises(TraceDivergence, match="does not take"):
        rerun([*recorded, recorded[index]])
    with pytest.raises(UserError, match="no trace header"):
        rerun(recorded[1:])


def simulated(table: Table, text: str, pool: Pool) -> Records:
    """Return the trace of a small simulation."""
    records: Records = []
    policy = Policy(policy="preempt", admit="preempt")
    lengths = parse_lengths("uniform:5:20", "--input"), parse_lengths("uniform:1:20", "--output")
    workload = Workload(parse_arrivals("poisson:200"), *lengths, requests=12, seed=3)
    laws = Laws(parse_accept("geometric:0.7", 3), Lookup(0.6, 3), parse_unmask("geometric:0.4", 3))
    cost = CostModel(load_model("smollm2-135m"), load_hardware("h100"))
    trace = TraceWriter(records, header(table, policy, pool, text, "simulator"))
    Simulation(table, policy, pool, cost, workload.generate(), laws, trace=trace).run()
    return records


@pytest.mark.shows("simulated")
@pytest.mark.parametrize("spec", SIMULATED)
def test_simulators_own_trace_replays_and_reruns(spec: str, table_of: Callable[..., Table]) -> None:
    """The simulator writes traces that the table allows and that lead to themselves."""
    table = table_of(spec)
    pool = Pool(pool_for(table, 20, 20, 4).pages + 3, 4)
    records = simulated(table, load(spec).text, pool)
    replayed = replay_records(enumerate(records, start=1))
    assert 12 == replayed.requests == replayed.ended
    assert any(record.get("event") == "preempt" for record in records)
    assert records == rerun(records)


def test_a_changed_row_changes_the_simulators_trace(table_of: Callable[..., Table]) -> None:
    """There is one table: keep one less or emit one less in a row, and the simulator does so, with no other edit."""
    table, text = table_of("uno_linear"), load("uno_linear").text
    pool = Pool(256, 4)
    plain = simulated(table, text, pool)
    row = next(row for row in table.rows if row.event == "verify")
    fewer = table.with_row(row.index, emit=row.emit[:-1], keep=subtract(row.keep, Const(1)))
    changed = simulated(fewer, text, pool)
    emitted = [
        [r["columns"]["emitted"] for r in records if r.get("event") == "verify"]
        for records in (plain, changed)
    ]
    assert emitted[0] != emitted[1]
    with pytest.raises(TraceDivergence):
        replay_records(enumerate([plain[0], *changed[1:]], start=1))
