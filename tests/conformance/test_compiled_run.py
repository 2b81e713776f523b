"""A run in compiled code gives the bytes of the run step by step: every time, count, page and draw."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fsm_spec.budget import table_rate
from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.language.spec import Spec
from fsm_spec.load import load, shipped
from fsm_spec.policy import Policy, Pool, longest_pages
from fsm_spec.simulator import packed_run, packed_table, run_launch
from fsm_spec.simulator import places as p
from fsm_spec.simulator.acceptance import parse_accept
from fsm_spec.simulator.cost import CostModel
from fsm_spec.simulator.hardware import load_hardware
from fsm_spec.simulator.lookup import Lookup
from fsm_spec.simulator.metrics import RequestLog
from fsm_spec.simulator.mixture import Mixture, TextProfile
from fsm_spec.simulator.model import load_model
from fsm_spec.simulator.outcomes import Granted, Laws, drawn
from fsm_spec.simulator.simulation import Results, Simulation
from fsm_spec.simulator.workload import Requests, Workload, parse_arrivals, parse_lengths
from fsm_spec.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "property"))
from random_specs import decode_specs

COST = CostModel(load_model("smollm2-135m"), load_hardware("h100"), adapter_rank=8)
LAWS = Laws(parse_accept("geometric:0.7", 3), Lookup(0.6, 3))
LOADS = {
    "open": ("poisson:2000", "uniform:1:60", "uniform:1:40"),
    "closed": ("closed:7", "lognormal:30:1", "uniform:1:30"),
}
# A roomy pool, one that preempts, and prompts in small chunks that do not ride with decode rows.
POLICIES: dict[str, tuple[dict[str, Any], Pool]] = {
    "roomy": ({"admit": "holdback"}, Pool(4_000, 16)),
    "starved": ({"admit": "preempt", "prefill": {"tokens": 24}}, Pool(80, 4)),
    "held back": ({"admit": "holdback", "max_running": 9, "lag": 1}, Pool(100, 4)),
    "reserved": ({"admit": "reserve", "prefill": {"tokens": 16, "mixed": False}}, Pool(90, 4)),
}


def workload(load_name: str, requests: int, seed: int = 5) -> Requests:
    """Generate requests."""
    arrivals, prompt, output = LOADS[load_name]
    lengths = parse_lengths(prompt, "--input"), parse_lengths(output, "--output")
    return Workload(parse_arrivals(arrivals), *lengths, requests=requests, seed=seed).generate()


def everything(results: Results) -> dict[str, Any]:
    """Write all that a run measured as bytes would be."""
    line = results.timeline
    return {
        **{name: np.asarray(column).tolist() for name, column in vars(results.log).items()},
        "summary": json.dumps(results.summary.to_dict()),
        "usage": json.dumps(results.usage.to_dict()),
        "over time": [line.mean_levels(name) for name in line.levels],
        "tokens over time": (line.rates("tokens"), line.edges_ns),
        "counts": (results.iterations, results.launches, results.recomputed_slots),
        "verdicts": results.verdicts,
    }


def both(
    table: Table, requests: Requests, policy: Policy, pool: Pool, cost: CostModel = COST, laws: Laws = LAWS
) -> Results:
    """Run both ways, hold them to each other, and give the results."""
    runs = [
        Simulation(table, policy, pool, cost, requests, laws, stepwise=stepwise).run()
        for stepwise in (True, False)
    ]
    stepped, packed = map(everything, runs)
    for name, value in stepped.items():
        assert value == packed[name], name
    return runs[1]


def laws_known(spec: str) -> bool:
    """Tell whether the simulator has laws for all that a spec's operators find."""
    table = compile_table(load(spec).spec)
    return all(draw.op in ("accept", "lookup") for draws in drawn(table).draws.values() for draw in draws)


SPECS = sorted(filter(laws_known, shipped()))
EVERY_WAY = ("ar", "isd", "ngram", "uno_linear")
# Specs that share little go every way, of the others each goes one.
CASES = [(spec, name) for spec in EVERY_WAY for name in POLICIES]
CASES += [(spec, name) for spec, name in zip(SPECS, cycle(POLICIES), strict=False) if spec not in EVERY_WAY]


@pytest.mark.parametrize(("spec", "name"), CASES)
def test_both_runs_are_equal(spec: str, name: str) -> None:
    """Every spec, every way to admit, chunk and preempt: nothing differs."""
    fields, pool = POLICIES[name]
    table = compile_table(load(spec).spec)
    pool = pool._replace(pages=max(pool.pages, longest_pages(table, pool, 60, 40)))
    policy = Policy.model_validate({"policy": name, **fields})
    results = both(table, workload("closed" if name == "held back" else "open", 40), policy, pool)
    assert (name == "starved" and spec in EVERY_WAY) <= (results.summary.preemptions > 0)


@pytest.mark.parametrize("spec", ["uno_linear", "linear_spec"])
def test_tiers_switch_at_the_same_iterations(spec: str) -> None:
    """A run goes on under another table as soon as the number of running requests asks for it, both ways."""
    steps = [{"to": 2, "value": 6}, {"to": 5, "value": 4}, {"value": 2}]
    policy = Policy.model_validate({"tier": {"param": "b", "steps": steps}})
    found = both(compile_table(load(spec).spec, {"b": 4}), workload("open", 60), policy, Pool(150, 4))
    kv = found.summary.kv
    assert kv is not None
    assert {2, 4, 6} == set(kv.tiers)
    assert kv.mean_pages == pytest.approx(sum(tier["mean_pages"] for tier in kv.tiers.values()), rel=1e-4)
    assert all(0 < tier["unused_share"] < 1 for tier in kv.tiers.values())


MIXTURE = Mixture(
    (
        TextProfile("code", (0.9, 0.8, 0.7), after_rejection=(0.4, 0.3, 0.2), weight=2, concentration=4),
        TextProfile("chat", (0.5, 0.5, 0.5), at_start=(1.0, 0.0, 0.5), concentration=0.5),
    ),
    "drawn",
    seed=3,
)


@pytest.mark.parametrize("spec", ["isd", "uno_linear"])
def test_requests_that_differ_and_rounds_that_remember(spec: str) -> None:
    """Kinds of requests, and what the judgement before found, also over preemptions and tables of tiers."""
    laws = Laws(MIXTURE, Lookup(0.6, 3))
    fields, pool = POLICIES["starved"]
    table = compile_table(load(spec).spec)
    results = both(
        table, workload("open", 60), Policy.model_validate({"policy": "p", **fields}), pool, laws=laws
    )
    assert results.summary.preemptions > 0
    plain = Simulation(table, Policy(), pool, COST, workload("open", 60), LAWS).run()
    assert plain.summary.accepted != results.summary.accepted


@pytest.mark.parametrize("spec", ["dspark", "dspark_earlier"])
def test_budgets_grant_alike(spec: str) -> None:
    """What a launch is granted hangs on how many share it, and is shared out in the order of the engine."""
    survival = tuple((0.8 ** np.arange(1, 4)).tolist())
    rate = table_rate([1, 6, 12, 24], [100, 95, 70, 40])
    table, earlier = compile_table(load(spec).spec, {"g": 3}), spec == "dspark_earlier"
    laws = LAWS._replace(budget=Granted(survival, rate, earlier, running=256))
    fields, pool = POLICIES["starved"]
    policy = Policy.model_validate({"policy": "p", **fields})
    found = both(table, workload("open", 40), policy, pool, laws=laws)
    free = both(table, workload("open", 40), policy, pool)
    assert found.summary.preemptions > 0
    assert 0 < found.summary.drafted < free.summary.drafted


@settings(max_examples=2, deadline=None, derandomize=True)
@given(decode_specs())
def test_both_runs_of_drawn_specs_are_equal(spec: Spec) -> None:
    """Specs nobody wrote, with rounds of several states, guards and columns, run alike too."""
    both(compile_table(spec), workload("open", 25), Policy(admit="preempt"), Pool(60, 4))


def test_rows_that_are_not_kept_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that forgets finished requests gives each row once, in order, and all counts of one that keeps them."""
    monkeypatch.setattr(packed_run, "WINDOW", 16)
    table, policy, pool = compile_table(load("isd").spec), Policy(max_running=5), Pool(60, 4)
    requests = workload("open", 300)
    kept = Simulation(table, policy, pool, COST, requests, LAWS).run()
    parts: list[RequestLog] = []
    passed = Simulation(table, policy, pool, COST, requests, LAWS, most_kept=100).run(take=parts.append)
    assert len(parts) > 1
    for name, column in vars(kept.log).items():
        if name != "first":
            assert column.tolist() == np.concatenate([getattr(part, name) for part in parts]).tolist(), name
    assert [part.first for part in parts] == [0, *np.cumsum([len(part.prompt) for part in parts])[:-1]]
    with pytest.raises(UserError, match="300 requests are not kept"):
        _ = passed.log
    assert kept.exact > passed.exact
    exact, close = kept.summary, passed.summary
    latencies = {name: getattr(close, name) for name in ("ttft_ms", "tpot_ms", "e2e_ms", "per_token_ms")}
    assert replace(exact, **latencies) == close
    for name in ("p50", "p90", "p95", "p99", "mean", "max"):
        for field in ("ttft_ms", "tpot_ms", "e2e_ms"):
            wanted, found = (getattr(getattr(summary, field), name) for summary in (exact, close))
            # Between two of few values an exact percentile is interpolated.
            assert wanted == pytest.approx(found, rel=0.1 if name.startswith("p") else 1e-6), (field, name)
    assert kept.verdicts == passed.verdicts != ()


def test_a_closed_loop_goes_on_beyond_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that start when others finish are written in time."""
    monkeypatch.setattr(packed_run, "WINDOW", 16)
    table, requests = compile_table(load("ar").spec), workload("closed", 200)
    kept = Simulation(table, Policy(), Pool(400, 16), COST, requests, LAWS).run()
    passed = Simulation(table, Policy(), Pool(400, 16), COST, requests, LAWS, most_kept=10).run()
    assert 200 == passed.summary.finished
    assert kept.summary.duration_s == passed.summary.duration_s


def visible_pairs(mask: NDArray[np.bool_], first: list[int], counts: list[int]) -> int:
    """Count pairs as a compiled run does."""
    states, segments = np.zeros((1, p.STATE), np.int64), np.zeros((1, len(first), p.SEGMENT), np.int64)
    states[0, [p.SEGMENTS, p.MASK_SIZE]] = len(first), len(mask) + 1
    cells = np.array(counts, np.int64)[:, None]
    for index, row in enumerate(first):
        segments[0, index, [p.COUNT_AT, p.FIRST_ROW]] = index, row
    return int(run_launch.pairs_of(states, cells, segments, packed_table.summed(mask), 0, 0))


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_pairs_of_any_mask(data: st.DataObject) -> None:
    """Four sums give the pairs of any live rows of any mask."""
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    counts = [data.draw(st.integers(0, size)) for size in sizes]
    first = [sum(sizes[:index]) for index in range(len(sizes))]
    bits = data.draw(st.lists(st.booleans(), min_size=sum(sizes) ** 2, max_size=sum(sizes) ** 2))
    mask = np.array(bits, np.bool_).reshape(sum(sizes), sum(sizes))
    live = np.zeros(sum(sizes), np.bool_)
    for row, count in zip(first, counts, strict=True):
        live[row : row + count] = True
    assert int(mask[np.ix_(live, live)].sum()) == visible_pairs(mask, first, counts)
