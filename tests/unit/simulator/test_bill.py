"""What a run cost: bursts, wasted work, ceilings, energy, money; warm-up, intervals, and the Perfetto trace."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fsm_spec.cli import application
from fsm_spec.errors import UserError
from fsm_spec.simulator.bill import bill, without_first, without_warm_up
from fsm_spec.simulator.perfetto import write_perfetto
from fsm_spec.simulator.preparation import prepare
from fsm_spec.simulator.scenario import Scenario
from fsm_spec.simulator.slo import parse_slos

UNO = Scenario(
    spec="uno_linear",
    model="smollm2-135m",
    hardware="h100",
    arrivals="closed:4",
    input="64",
    output="40",
    requests=12,
    accept="0.5,0.5,0.5",
)


def test_shares_add_up_and_ceilings_hold() -> None:
    """All time has a bound and a part; no ceiling is exceeded; a burst is a round."""
    prepared = prepare(UNO)
    results = prepared.simulation().run()
    found = bill(results, prepared.cost, parse_slos(["ttft_p95=1s"]), 3.6)
    assert 1.0 == pytest.approx(sum(found.bound_share.values()), abs=1e-3)
    assert 1.0 == pytest.approx(sum(found.part_share.values()), abs=1e-3)
    assert 0 < found.flops_utilisation < 1
    assert 0 < found.bandwidth_utilisation < 1
    log = results.log
    assert found.burst_ms.mean == pytest.approx(
        float(((log.finish_ns - log.first_token_ns) / log.rounds).mean() / 1e6)
    )
    assert found.goodput_req_s == pytest.approx(results.summary.throughput_req_s, abs=1e-5)
    assert found.price_per_million == pytest.approx(1000 / results.summary.throughput_tok_s, abs=1e-5)
    assert found.wasted_flops_share is not None
    assert 0 < found.wasted_flops_share < 1
    assert found.energy_j_token is not None
    assert bill(results, prepared.cost).goodput_req_s is None


def test_wasted_work_falls_with_acceptance() -> None:
    """Nothing is wasted where all drafts are taken; plain decoding wastes nothing that could be counted."""
    shares: list[float] = []
    for accept in ("1,1,1", "0.5,0.5,0.5", "0,0,0"):
        prepared = prepare(UNO.model_copy(update={"accept": accept, "output": "41"}))
        shares.append(bill(prepared.simulation().run(), prepared.cost).wasted_flops_share or 0.0)
    assert shares[0] < 0.02
    assert shares == sorted(shares)
    plain = prepare(UNO.model_copy(update={"spec": "ar", "accept": None}))
    assert bill(plain.simulation().run(), plain.cost).wasted_flops_share is None


def test_a_short_run_is_priced_by_its_steady_part() -> None:
    """Start and end of a run by the clock do not make its tokens dearer; a closed loop's whole run counts."""
    scenario = {"spec": "ar", "accept": None, "arrivals": "constant:200", "output": "64"}
    prepared = [prepare(UNO.model_copy(update={**scenario, "requests": count})) for count in (100, 2000)]
    results = [each.simulation().run() for each in prepared]
    short, long = (
        bill(found, each.cost, (), 1.0, by_clock=True) for found, each in zip(results, prepared, strict=True)
    )
    assert 200 * 64 == pytest.approx(long.steady_tok_s, rel=0.02)
    assert 200 * 64 == pytest.approx(short.steady_tok_s, rel=0.05)
    assert results[0].summary.throughput_tok_s < 0.9 * 200 * 64
    assert short.price_per_million == pytest.approx(long.price_per_million, rel=0.05)
    assert (2000, 1800) == (results[1].summary.requests, without_first(results[1], 0.1).summary.requests)


def test_warm_up_leaves_out_early_requests() -> None:
    """Requests that arrived before the cut do not count; a cut behind all of them is refused."""
    prepared = prepare(UNO)
    results = prepared.simulation().run()
    cut = float(np.sort(results.log.arrival_ns)[-3]) / 1e9
    assert 3 == without_warm_up(results, cut).summary.requests
    with pytest.raises(UserError, match="every request arrived"):
        without_warm_up(results, 1e6)


def test_perfetto_shows_spans_in_order(tmp_path: Path) -> None:
    """Every finished request waits, prefills and decodes, one after the other; counters start at 0."""
    results = prepare(UNO).simulation().run()
    path = tmp_path / "trace.json"
    write_perfetto(path, results, "uno")
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X" and event["tid"] == 5]
    assert ["waiting", "prefill", "decode"] == [span["name"] for span in spans]
    assert spans[1]["ts"] == pytest.approx(spans[0]["ts"] + spans[0]["dur"])
    assert 0 == min(event["ts"] for event in events if event["ph"] == "C" and event["name"] == "running")
    with pytest.raises(UserError, match="--perfetto"):
        write_perfetto(tmp_path / "no" / "trace.json", results, "uno")


def simulate(*options: str) -> Any:  # noqa: ANN401 - JSON
    """Run the command with options and read its JSON."""
    words = [
        "simulate",
        "ar",
        "--model",
        "smollm2-135m",
        "--hardware",
        "h100",
        "--input",
        "32",
        "--output",
        "8",
    ]
    arrivals = ["--arrivals", "poisson:50", "--requests", "20"]
    return json.loads(CliRunner().invoke(application(), [*words, *arrivals, *options, "--json"]).stdout)


def test_options_add_what_they_say() -> None:
    """Limits give goodput, a price money, seeds intervals, a warm-up fewer requests."""
    found = simulate("--slo", "ttft_p95=1s", "--price-per-gpu-hour", "2", "--seeds", "2", "--warm-up", "0.1")
    assert found["bill"]["goodput_req_s"] > 0
    assert found["bill"]["price_per_million_tokens"] > 0
    mean, low, high = found["confidence"]["throughput_tok_s"]
    assert low < mean < high
    assert found["requests"] < 20
    assert "--price-per-gpu-hour -1" in simulate("--price-per-gpu-hour", "-1")["error"]
    assert "--warm-up -1" in simulate("--warm-up", "-1")["error"]
