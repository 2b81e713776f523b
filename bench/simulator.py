"""Time the simulation loop: 1,024 tokens in and 512 out, Llama-3.1-8B on one H100, beside NVIDIA's DynoSim.

Run: `scripts/bench simulator`; `python bench/simulator.py 1000` takes fewer requests and writes nothing.
DynoSim is asked where it is installed (`pip install ai-dynamo-runtime==1.4.2 ai-dynamo==1.4.2`): in this environment,
or in the one whose Python FSM_SPEC_DYNAMO names, as it has requirements of its own.
Each run is a process of its own, compiled code loaded, so that its memory is its own. Other work on the machine makes
both slower; CPU seconds say how much. Writes bench/results/simulator.json.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from record import write_result

from fsm_spec.simulator.preparation import prepare
from fsm_spec.simulator.scenario import Scenario

REQUESTS = 10_000
MIB = 1024 * 1024


@dataclass(frozen=True)
class Case:
    """Describe a run: what it simulates, and how many times `REQUESTS`."""

    spec: str
    options: dict[str, Any] = field(default_factory=dict)
    rate: float = 5.0
    pages: int | None = None
    times: int = 1


DRAFTS = {"accept": "geometric:0.7"}
CASES = {
    "plain": Case("ar"),
    "four drafts found in the text": Case("ngram", {**DRAFTS, "lookup": 0.6}),
    "blocks of four": Case("uno_linear", DRAFTS),
    "starved": Case("ar", rate=10, pages=1_024),
    "starved, blocks of four": Case("uno_linear", DRAFTS, rate=10, pages=1_024),
    "ten times as many": Case("ar", times=10),
    "thirty times as many, rows not kept": Case("ar", times=30),
}
# DynoSim has no laws of drafts that could be set.
DYNAMO = ("plain", "starved", "ten times as many")


def resident_mb() -> float:
    """Give the memory this process has now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / MIB


def peak_mb() -> float:
    """Give the most memory this process had so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(case: Case, requests: int) -> dict[str, Any]:
    """Simulate once in this process, and give times, memory and what was simulated."""
    scenario = Scenario(
        spec=case.spec,
        model="llama-3.1-8b",
        hardware="h100",
        arrivals=f"poisson:{case.rate:g}",
        input="1024",
        output="512",
        requests=requests,
        pages=case.pages,
        seed=1,
        **case.options,
    )
    start = time.perf_counter()
    prepared = prepare(scenario)
    simulation = prepared.simulation()
    simulation.compile()
    ready, before = time.perf_counter(), resident_mb()
    cpu = time.process_time()
    results = simulation.run()
    loop, cpu = time.perf_counter() - ready, time.process_time() - cpu
    summary = results.summary
    return {
        "spec": case.spec,
        "digest": prepared.table.digest,
        "scenario": prepared.settings(),
        "loop_seconds": round(loop, 3),
        "loop_cpu_seconds": round(cpu, 3),
        "prepare_seconds": round(ready - start, 3),
        "requests_a_second": round(requests / loop),
        "requests_a_cpu_second": round(requests / cpu),
        "resident_before_mb": round(before, 1),
        "peak_above_mb": round(max(0.0, peak_mb() - before), 1),
        "iterations": results.iterations,
        "rounds": summary.rounds,
        "cpu_ns_a_round": round(cpu / summary.rounds * 1e9, 1),
        "simulated_seconds": round(summary.duration_s, 1),
        "throughput_tok_s": round(summary.throughput_tok_s, 1),
        "tpot_ms_mean": round(summary.tpot_ms.mean, 3),
        "ttft_ms_mean": round(summary.ttft_ms.mean, 3),
        "preemptions": summary.preemptions,
        "percentiles_exact": results.exact,
    }


def in_a_process(name: str, requests: int) -> dict[str, Any]:
    """Measure a case in a process of its own."""
    command = [sys.executable, __file__, str(requests), name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    values: dict[str, Any] = json.loads(done.stdout)
    return values


def dynamo_python() -> str | None:
    """Give a Python that has DynoSim; None where there is none."""
    for python in (os.environ.get("FSM_SPEC_DYNAMO"), sys.executable):
        if python is None:
            continue
        found = subprocess.run(
            [python, "-c", "import importlib.util as u; print(u.find_spec('dynamo.replay') is not None)"],
            capture_output=True,
            text=True,
            check=False,
        )
        if found.stdout.strip() == "True":
            return python
    return None


def dynamo(python: str, case: Case, requests: int, pages: int) -> dict[str, Any]:
    """Simulate the case with DynoSim; its own clock times its loop."""
    engine = {"num_gpu_blocks": pages, "block_size": 64, "max_num_seqs": 256, "max_num_batched_tokens": 2048}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [python, "-m", "dynamo.replay", "--input-tokens", "1024", "--output-tokens", "512"]
        command += ["--request-count", str(requests), "--request-rate", str(case.rate), "--arrival-seed", "1"]
        command += ["--num-workers", "1", "--report-json", str(report)]
        command += ["--extra-engine-args", json.dumps({**engine, "enable_prefix_caching": False})]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        values = json.loads(report.read_text(encoding="utf-8"))
    loop = values["wall_time_ms"] / 1e3
    return {
        "loop_seconds": round(loop, 3),
        "requests_a_second": round(requests / loop),
        "process_cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3),
        "throughput_tok_s": round(values["output_throughput_tok_s"], 1),
        "tpot_ms_mean": round(values["mean_tpot_ms"], 3),
        "ttft_ms_mean": round(values["mean_ttft_ms"], 3),
    }


def run_all(requests: int) -> list[dict[str, Any]]:
    """Measure every case, and print a line each."""
    python = dynamo_python()
    if python is None:
        print("DynoSim is not installed here; ours alone are measured")
    for spec in {case.spec: name for name, case in CASES.items()}.values():
        in_a_process(spec, 20)  # compiled code is kept on disk from here on
    rows = []
    for name, case in CASES.items():
        count = requests * case.times
        row = {"case": name, **in_a_process(name, count)}
        print(
            f"{name:36} {count:>9} requests in {row['loop_seconds']:7.2f} s ({row['loop_cpu_seconds']:.2f} s of CPU),"
            f" {row['cpu_ns_a_round']:.0f} ns a round, {row['peak_above_mb']:.0f} MiB above"
            f" {row['resident_before_mb']:.0f}"
        )
        if python is not None and name in DYNAMO:
            pages = int(row["scenario"]["pool"].split()[0])
            row["dynosim"] = dynamo(python, case, count, pages)
            other = row["dynosim"]
            print(
                f"{'  DynoSim':36} {count:>9} requests in {other['loop_seconds']:7.2f} s"
                f" ({other['process_cpu_seconds']:.2f} s of CPU with its start)"
            )
        rows.append(row)
    return rows


def main() -> None:
    """Measure every case, or one of them for the process above."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS
    if len(sys.argv) > 2:
        print(json.dumps(measure(CASES[sys.argv[2]], requests)))
        return
    rows = run_all(requests)
    if requests == REQUESTS:
        write_result("simulator", {"rows": rows})


if __name__ == "__main__":
    main()
