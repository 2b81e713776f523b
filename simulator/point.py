"""One point of a study: a scenario to run, and its result as flat numbers that travel between processes."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fsm_spec.errors import FsmSpecError
from fsm_spec.simulator import roofline
from fsm_spec.simulator.bill import steady_tok_s, without_first
from fsm_spec.simulator.cluster import Cluster, ClusterResults
from fsm_spec.simulator.preparation import prepare
from fsm_spec.simulator.scenario import Scenario
from fsm_spec.simulator.simulation import Results
from fsm_spec.simulator.slo import Slo, goodput

LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms", "per_token_ms")
# Fields of a scenario that may name a file.
FILES = ("spec", "policy", "acceptance", "profile", "arrivals")
STATISTICS = ("mean", "p50", "p95", "p99")

Result = dict[str, Any]


def key_of(scenario: Scenario) -> str:
    """Return a name of the scenario that its file of results can find it by."""
    fields = scenario.model_dump()
    found = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
    # Files may change between two runs that resume each other.
    for name in FILES:
        path = Path(str(fields[name] or "").removeprefix("trace:").partition(":")[0])
        if path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def evaluate(scenario: Scenario, slos: Sequence[Slo] = ()) -> Result:
    """Run a scenario; give flat results, or `error`: a point that fails is a result and loses no other."""
    try:
        return _evaluated(scenario, slos)
    except FsmSpecError as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - a fault of ours must not lose the other points either
        last = traceback.extract_tb(error.__traceback__)[-1]
        return {"error": f"{type(error).__name__} in {last.name}: {error}"}


def _evaluated(scenario: Scenario, slos: Sequence[Slo]) -> Result:
    prepared = prepare(scenario)
    results: Results = (
        prepared.simulation().run() if prepared.alone else Cluster(prepared, prepared.cluster).run()
    )
    if scenario.warm_up:
        results = without_first(results, scenario.warm_up)
    summary, usage, gpus = results.summary, results.usage, scenario.tensor_parallel
    if isinstance(results, ClusterResults):
        gpus *= results.most_replicas
    by_clock = prepared.alone and not prepared.requests.concurrency
    steady = steady_tok_s(results) if by_clock else None
    found: Result = {
        "spec": prepared.table.name,
        "requests": summary.requests,
        "finished": summary.finished,
        "duration_s": round(summary.duration_s, 6),
        "throughput_tok_s": round(summary.throughput_tok_s, 3),
        "throughput_tok_s_gpu": round(summary.throughput_tok_s / gpus, 3),
        "steady_tok_s_gpu": round((summary.throughput_tok_s if steady is None else steady) / gpus, 3),
        "throughput_req_s": round(summary.throughput_req_s, 6),
        "acceptance_length": summary.acceptance_length and round(summary.acceptance_length, 4),
        "tokens_per_forward": summary.tokens_per_forward and round(summary.tokens_per_forward, 4),
        "wasted_drafts": summary.drafted - summary.accepted,
        "preemptions": summary.preemptions,
        "recomputed_slots": results.recomputed_slots,
        "kv_peak": round(summary.kv.peak_pages / summary.kv.pages, 4) if summary.kv else None,
        "verdicts": list(results.verdicts),
        "error": "",
    }
    for latency in LATENCIES:
        for statistic in STATISTICS:
            found[f"{latency}_{statistic}"] = round(getattr(getattr(summary, latency), statistic), 6)
    found |= {slo.name: slo.value_ms(summary) for slo in slos}
    if slos:
        found["goodput_req_s"] = round(goodput(results.log, slos, summary.duration_s), 6)
    bounds = usage.parts[:, : roofline.FLOPS].sum(axis=0)
    total = float(bounds.sum()) or 1.0
    for name, place in (
        ("compute", roofline.COMPUTE_NS),
        ("memory", roofline.MEMORY_NS),
        ("latency", roofline.FLOOR_NS),
    ):
        found[f"bound_{name}"] = round(float(bounds[place]) / total, 4)
    return found
