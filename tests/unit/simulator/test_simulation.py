"""The simulation loop: conservation, seeds, closed loops, closed forms, starved pools, overload, deadlock."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from shipped_specs import SIMULATED

from fsm_spec.compile import compile_table
from fsm_spec.counts import most_drafts
from fsm_spec.errors import PoolExhausted, UserError
from fsm_spec.launch import Launch
from fsm_spec.load import load, shipped
from fsm_spec.policy import Policy, Pool, longest_pages
from fsm_spec.replay import replay_records
from fsm_spec.simulator.acceptance import Acceptance, parse_accept, parse_unmask
from fsm_spec.simulator.cost import CostModel, Work
from fsm_spec.simulator.hardware import load_hardware
from fsm_spec.simulator.lookup import Lookup
from fsm_spec.simulator.metrics import UNSET
from fsm_spec.simulator.model import load_model
from fsm_spec.simulator.outcomes import Laws
from fsm_spec.simulator.overload import Overload
from fsm_spec.simulator.simulation import Results, Simulation
from fsm_spec.simulator.stepped_run import SteppedRun
from fsm_spec.simulator.theory import expected_rounds
from fsm_spec.simulator.work import InFlight
from fsm_spec.simulator.workload import ON_FINISH, Requests, Workload, parse_arrivals, parse_lengths
from fsm_spec.table import Table
from fsm_spec.trace import TraceWriter, header

RATES = (0.8, 0.7, 0.6)
COST = CostModel(load_model("smollm2-135m"), load_hardware("h100"))
ROOMY = Pool(100_000, 16)


def table_of(spec: str, **params: int) -> Table:
    """Compile a shipped spec."""
    return compile_table(load(spec).spec, params)


def workload(arrivals: str, requests: int, prompt: str = "20", output: str = "20", seed: int = 1) -> Requests:
    """Generate requests."""
    lengths = parse_lengths(prompt, "--input"), parse_lengths(output, "--output")
    return Workload(parse_arrivals(arrivals), *lengths, requests=requests, seed=seed).generate()


def simulate(
    spec: str | Table,
    requests: Requests,
    pool: Pool = ROOMY,
    admit: str = "holdback",
    *,
    acceptance: Acceptance | None = None,
    lookup: float = 0.6,
    max_running: int = 256,
) -> Results:
    """Run a small simulation under conservation checks."""
    table = table_of(spec) if isinstance(spec, str) else spec
    policy = Policy.model_validate({"policy": admit, "admit": admit, "max_running": max_running})
    laws = Laws(
        acceptance or parse_accept("geometric:0.7", 1), Lookup(lookup, 1), parse_unmask("geometric:0.4", 1)
    )
    return Simulation(table, policy, pool, COST, requests, laws, checked=True).run()


@pytest.mark.parametrize("admit", ["reserve", "holdback", "preempt"])
@pytest.mark.shows("simulated")
@pytest.mark.parametrize("spec", SIMULATED)
def test_starved_runs_finish_and_conserve(spec: str, admit: str) -> None:
    """With room for few requests all finish, nothing is lost at any event, and `reserve` never preempts."""
    pool = Pool(3 * longest_pages(table_of(spec), Pool(0, 4), 20, 20) // 2, 4)
    results = simulate(spec, workload("poisson:2000", 20), pool, admit)
    summary = results.summary
    assert 20 == summary.finished
    assert 400 == summary.emitted_tokens
    # What holdback keeps back may be enough, where a round takes much more than a request grows by.
    assert admit != "reserve" or summary.preemptions == results.recomputed_slots == 0
    assert admit != "preempt" or (summary.preemptions > 0 and results.recomputed_slots > 0)
    assert summary.kv is not None
    assert 0 < summary.kv.peak_pages <= pool.pages


def test_latencies_are_ordered_and_whole() -> None:
    """First tokens come after arrivals and admissions, ends after first tokens, all in integer nanoseconds."""
    results = simulate("uno_linear", workload("poisson:300", 50, "uniform:1:60", "uniform:1:40"))
    log = results.log
    assert np.int64 == log.finish_ns.dtype
    assert (log.arrival_ns <= results.admitted_ns).all()
    assert (results.admitted_ns < log.first_token_ns).all()
    assert (log.first_token_ns <= log.finish_ns).all()
    assert UNSET not in log.finish_ns
    assert {1} == set(log.prefill_emitted.tolist())


def test_same_seed_same_bytes_and_another_seed_another_run() -> None:
    """A run depends on its arguments alone."""
    runs = [
        simulate("ngram", workload("poisson:50", 30), acceptance=Acceptance((0.7,), geometric=True, seed=s))
        for s in (1, 1, 2)
    ]
    first, again, other = (json.dumps(run.summary.to_dict()) for run in runs)
    assert first == again
    assert first != other
    assert (runs[0].log.finish_ns == runs[1].log.finish_ns).all()


def test_closed_loop_holds_its_concurrency() -> None:
    """As many requests run as were asked for, until the last ones have started."""
    requests = workload("closed:4", 12)
    assert 8 == (requests.arrival_ns == ON_FINISH).sum()
    results = simulate("ar", requests)
    log = results.log
    assert 12 == results.summary.finished
    assert 4 == results.timeline.peak("running")
    last = int(log.arrival_ns.max())
    inside = [
        int(((log.arrival_ns <= now) & (log.finish_ns > now)).sum())
        for now in range(0, last, max(1, last // 50))
    ]
    assert {4} == set(inside)


@pytest.mark.parametrize("spec", ["ngram", "linear_spec"])
def test_rounds_equal_the_absorbing_chain(spec: str) -> None:
    """The mean rounds of a request lie within four standard errors of the closed form."""
    table = table_of(spec, **({"k": 3} if spec == "ngram" else {"b": 4}))
    results = simulate(
        table, workload("closed:50", 400, "1", "41"), acceptance=Acceptance(RATES, seed=5), lookup=1.0
    )
    rounds = results.log.rounds
    error = float(rounds.std()) / np.sqrt(len(rounds))
    # The first of 41 tokens comes from the prefill.
    assert float(expected_rounds(RATES, 40)) == pytest.approx(float(rounds.mean()), abs=4 * error)
    assert 0 < error < 0.15


def test_acceptance_lengths_equal_the_closed_forms() -> None:
    """A round of a gated block gives 2 + the accepted; strides alternate with cold rounds after a rejection."""
    survival = np.cumprod(RATES)
    blocks = simulate(
        "uno_linear", workload("closed:20", 20, "1", "1500"), acceptance=Acceptance(RATES, seed=7)
    )
    assert 2 + survival.sum() == pytest.approx(blocks.summary.acceptance_length, rel=0.01)
    assert blocks.summary.acceptance_length == pytest.approx(
        2 * (blocks.summary.tokens_per_forward or 0), rel=1e-9
    )
    strides = simulate("isd", workload("closed:20", 20, "1", "1500"), acceptance=Acceptance(RATES, seed=7))
    cold = (1 - survival[-1]) / (2 - survival[-1])
    assert cold + (1 - cold) * (1 + survival.sum()) == pytest.approx(
        strides.summary.acceptance_length, rel=0.015
    )


@pytest.mark.parametrize("spec", SIMULATED)
def test_accepted_drafts_are_emitted_ones(spec: str) -> None:
    """Drafts behind the cut at a limit are not counted: accepted drafts never exceed tokens that rounds emitted."""
    results = simulate(
        spec,
        workload("closed:5", 30, "5", "uniform:1:6"),
        acceptance=Acceptance((1.0,), geometric=True),
        lookup=1.0,
    )
    log = results.log
    assert (log.accepted <= log.emitted - log.prefill_emitted).all()
    assert (log.accepted <= log.drafted).all()


def test_lookups_that_find_nothing_draft_nothing() -> None:
    """Without finds a lookup spec is plain decoding: a token a round."""
    results = simulate("ngram", workload("closed:2", 4), lookup=0.0)
    assert 0 == results.summary.drafted
    assert 1.0 == results.summary.acceptance_length


def test_no_launch_is_faster_than_its_ceilings() -> None:
    """Every launch of a run takes at least its bare roofline, and a bare host step."""
    seen: list[Work] = []
    requests = workload("poisson:500", 40, "uniform:1:300", "uniform:1:30")
    simulation = Simulation(
        table_of("uno_linear"),
        Policy(),
        ROOMY,
        COST,
        requests,
        Laws(parse_accept("geometric:0.7")),
        stepwise=True,
    )
    assert isinstance(simulation.replica, SteppedRun)
    backend = simulation.replica.backend
    launched = backend.launched

    def watched(launch: Launch, work: Work, flight: InFlight) -> None:
        seen.append(work)
        launched(launch, work, flight)

    backend.launched = watched
    results = simulation.run()
    assert results.launches == len(seen) > results.iterations
    assert all(COST.device_ns(work) >= COST.ceiling_ns(work) > 0 for work in seen)
    busy = sum(COST.device_ns(work) for work in seen)
    assert busy <= int(results.log.finish_ns.max())


def test_overload_is_said_in_words() -> None:
    """An open loop that arrives faster than it is served is reported; a light one and a closed one are not."""
    heavy = simulate("ar", workload("poisson:3000", 120, "200", "40"), Pool(120, 16))
    assert 1 == len(heavy.verdicts)
    assert heavy.verdicts[0].startswith("overloaded: requests arrive at")
    assert () == simulate("ar", workload("poisson:5", 60)).verdicts
    assert () == simulate("ar", workload("closed:4", 12)).verdicts
    (said,) = simulate("ar", workload("closed:60", 120), max_running=4).verdicts
    assert said.startswith("saturated: ")
    assert "of 4 places are taken; raise --max-running" in said
    assert () == Overload(np.zeros(2, np.int64), closed=False).verdicts()


def test_deadlock_is_a_sentence() -> None:
    """Greedy admission fills the pool until nobody can grow: the run ends with what stands still and what helps."""
    with pytest.raises(UserError, match=r"cannot make progress under the policy greedy.*--policy holdback"):
        simulate("ar", workload("closed:6", 6, "16", "20"), Pool(24, 4), "greedy")


def test_a_request_that_never_fits_is_refused() -> None:
    """The pool cannot hold the longest case, which is known before any work."""
    with pytest.raises(PoolExhausted, match="larger pool"):
        simulate("ar", workload("closed:1", 1, "100", "100"), Pool(10, 4))


def test_missing_laws_are_refused() -> None:
    """No acceptance and no lookup is ever assumed."""
    requests = workload("closed:1", 1)
    for spec, laws, option in (
        ("isd", Laws(), "--accept"),
        ("ngram", Laws(parse_accept("geometric:0.5")), "--lookup"),
    ):
        with pytest.raises(UserError, match=option):
            Simulation(table_of(spec), Policy(), ROOMY, COST, requests, laws)
    with pytest.raises(UserError, match="outside 0 to 1"):
        Lookup(1.5)


def test_most_drafts_come_from_the_table() -> None:
    """The largest count that an accept operator judges follows the parameters."""
    found = {spec: most_drafts(table_of(spec), "accept") for spec in shipped()}
    assert {"ar": 0, "isd": 3, "linear_spec": 31, "ngram": 4, "uno_linear": 3} == {
        k: found[k] for k in ("ar", "isd", "linear_spec", "ngram", "uno_linear")
    }
    assert 7 == most_drafts(table_of("uno_linear", b=8), "accept")
    assert (4, 0) == (most_drafts(table_of("ngram"), "lookup"), most_drafts(table_of("ar"), "lookup"))


def test_slow_machines_and_serial_hosts_take_longer() -> None:
    """The host's share adds to the device's where nothing overlaps."""
    requests = workload("closed:4", 8)
    times = []
    for overlapped in (True, False):
        cost = replace(COST, host=replace(COST.host, overlapped=overlapped))
        results = Simulation(table_of("ar"), Policy(), ROOMY, cost, requests).run()
        times.append(results.summary.duration_s)
    assert times[0] < times[1]


def test_progress_counts_finished_requests() -> None:
    """The bar moves to the end."""
    seen: list[int] = []
    Simulation(table_of("ar"), Policy(), ROOMY, COST, workload("closed:3", 9)).run(seen.append)
    assert sorted(seen) == seen
    assert 9 == seen[-1]


def test_an_idle_gap_is_slept_through() -> None:
    """Between two distant requests no iteration runs, and KV stands at zero."""
    requests = Requests(np.array([0, 10_000_000_000]), np.array([4, 4]), np.array([2, 2]))
    results = simulate("ar", requests)
    assert 4 == results.iterations
    assert 0 == results.timeline.mean_levels("pages")[len(results.timeline.edges_ns) // 2]
    assert results.log.finish_ns[1] > 10_000_000_000


def test_the_trace_holds_every_request() -> None:
    """A simulation's trace is allowed by the table it names."""
    loaded, pool, policy = load("isd"), Pool(40, 4), Policy()
    table = compile_table(loaded.spec, {}, line_of=loaded.line_of)
    records: list[dict[str, Any]] = []
    trace = TraceWriter(records, header(table, policy, pool, loaded.text, "simulator"))
    Simulation(
        table, policy, pool, COST, workload("poisson:100", 15), Laws(parse_accept("0.9,0.5,0.1")), trace=trace
    ).run()
    done = replay_records(enumerate(records, start=1))
    assert (15, 15, 300) == (done.requests, done.ended, done.emitted)
