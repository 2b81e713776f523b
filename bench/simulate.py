"""Time the simulation loop: 10,000 requests at 5 a second, 1,024 in and 512 out, Llama-3.1-8B on one H100.

Run: `scripts/bench simulate` (about two minutes); `python bench/simulate.py 1000` takes fewer requests.
Every spec runs in a process of its own, so that its peak memory is its own. Writes bench/results/simulate.json.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

from record import write_result

from fsm_spec.simulator.scenario import Scenario, prepare

REQUESTS = 10_000
CASES = {"ar": None, "uno_linear": "0.8,0.7,0.6"}


def peak_mb() -> float:
    """Give the most memory this process had so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(spec: str, requests: int) -> dict[str, Any]:
    """Simulate once, and give times, memory and what was simulated."""
    scenario = Scenario(
        spec=spec,
        model="llama-3.1-8b",
        hardware="h100",
        arrivals="poisson:5",
        input="1024",
        output="512",
        requests=requests,
        accept=CASES[spec],
        seed=1,
    )
    prepared = prepare(scenario)
    simulation = prepared.simulation()
    before = peak_mb()
    start, start_cpu = time.perf_counter(), time.process_time()
    results = simulation.run()
    loop, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    summary = results.summary
    return {
        "spec": spec,
        "digest": prepared.table.digest,
        "scenario": prepared.settings(),
        "loop_seconds": round(loop, 2),
        "loop_cpu_seconds": round(cpu, 2),
        "requests_a_second": round(requests / loop),
        "peak_rss_mb": round(peak_mb(), 1),
        "peak_rss_above_start_mb": round(peak_mb() - before, 1),
        "iterations": results.iterations,
        "launches": results.launches,
        "cpu_us_an_iteration": round(cpu / results.iterations * 1e6, 1),
        "rounds": summary.rounds,
        "simulated_seconds": round(summary.duration_s, 1),
        "throughput_tok_s": round(summary.throughput_tok_s, 1),
        "tpot_ms_mean": round(summary.tpot_ms.mean, 3),
    }


def main() -> None:
    """Measure every case, or one of them for the process above."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS
    if len(sys.argv) > 2:
        print(json.dumps(measure(sys.argv[2], requests)))
        return
    rows = []
    for spec in CASES:
        command = [sys.executable, __file__, str(requests), spec]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout))
        row = rows[-1]
        print(
            f"{spec:12} {requests} requests in {row['loop_seconds']} s ({row['loop_cpu_seconds']} s of CPU),"
            f" {row['cpu_us_an_iteration']} us an iteration, {row['peak_rss_mb']} MiB"
        )
    if requests == REQUESTS:
        write_result("simulate", {"rows": rows})


if __name__ == "__main__":
    main()
