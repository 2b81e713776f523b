"""Hold the simulator against measured runs, by regime, and say which term a miss is due to.

`bench/fidelity.py TRACES` reads `TRACES/measured/` (see docs/guides/simulate.md for the public sources). Three regimes:

1. closed loops: time per output token of TensorRT-LLM, SGLang and vLLM (aiconfigurator-core's silicon samples);
2. a saturated vLLM run on an RTX 4090, request by request (LLMServingSim's), priced by kernel tables and by curves;
3. published speed-ups of algorithms, predicted from their acceptance lengths alone (`published.py`).

No constant of the simulator was fixed by any of these rows. What is assumed about how they were measured stands in
`Conditions`.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from published import print_published, published
from record import read_result, write_result
from regime import closed_loop, percent, show

from fsm_spec.compile import compile_table
from fsm_spec.errors import FsmSpecError
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool, Prefill
from fsm_spec.simulator import roofline
from fsm_spec.simulator.cost import CostModel, Host
from fsm_spec.simulator.hardware import load_hardware
from fsm_spec.simulator.kernel_table import load_kernel_table
from fsm_spec.simulator.memory import MemoryOptions, plan_memory
from fsm_spec.simulator.model import load_model
from fsm_spec.simulator.simulation import Simulation
from fsm_spec.simulator.workload import Requests

MODELS: Final = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "Qwen/Qwen3-32B": "qwen3-32b",
}
SYSTEMS: Final = {"h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "gb200": "gb200"}
BUDGET: Final = 8192  # tokens of an iteration: default of the three engines on these accelerators
AIC_TPOT, AIC_TTFT = 0.138, 0.67  # AIConfigurator's own mean absolute errors on these points
GOAL: Final = 0.12

Row = dict[str, str]


@dataclass(frozen=True)
class Conditions:
    """Say how a closed-loop row was measured, as far as its source does.

    InferenceMAX (source file 2026-04-06.csv) publishes its client: lengths uniform in 0.8 to 1 of the nominal ones, ten
    requests a user; its vLLM servers schedule asynchronously and keep KV in fp8 on B200 only. Rows with lengths in
    round thousands have TTFTs of a few prefills, so their users did not start at once; all others did. vLLM schedules
    asynchronously by default from 0.14 on. fp8 is static in NVIDIA's checkpoints, whose KV TensorRT-LLM keeps in fp8;
    block-scaled in Qwen's; dynamic where SGLang quantises a bf16 checkpoint. SGLang runs prompts before rounds.
    """

    dtype: str
    kv_dtype: str
    ramp: bool
    lengths: float
    requests_a_user: int
    mixed: bool
    serial: bool

    @classmethod
    def of(cls, row: Row) -> Conditions:
        """Read them from a row."""
        nvidia, backend = row["model_path"].startswith(("nvidia", "meta-llama/Llama-3.1-70B")), row["backend"]
        public = "2026-04-06" in row["silicon_data_source"]
        dtype, kv_dtype = "bf16", "bf16"
        if row["precision"] == "fp8":
            dtype = "fp8" if nvidia else "fp8-dynamic" if backend == "sglang" else "fp8-block"
            static_kv = backend == "trtllm" or (backend == "vllm" and row["system"] == "b200_sxm")
            kv_dtype = "fp8" if nvidia and static_kv else "bf16"
        return cls(
            dtype=dtype,
            kv_dtype=kv_dtype,
            ramp=not public and int(row["isl"]) % 1000 == 0,
            lengths=0.8 if public else 1.0,
            requests_a_user=10 if public else 4,
            mixed=backend != "sglang",
            serial=backend == "vllm" and row["backend_version"].startswith("0.12"),
        )


def lengths_of(row: Row, conditions: Conditions) -> tuple[Any, Any]:
    """Draw the lengths of a row's requests."""
    count = int(row["batch_size"]) * conditions.requests_a_user
    generator = np.random.default_rng(1)
    nominal = int(row["isl"]), int(row["osl"])
    low = [int(conditions.lengths * each) for each in nominal]
    inputs, outputs = (
        generator.integers(low[i], nominal[i], count, dtype=np.int64, endpoint=True) for i in range(2)
    )
    return inputs, outputs


def run_row(row: Row) -> dict[str, Any]:
    """Simulate one closed-loop row; give predicted and measured times, and the share of each part of a launch."""
    conditions, users, tp = Conditions.of(row), int(row["batch_size"]), int(row["tp_size"])
    model, hardware = load_model(MODELS[row["model_path"]]), load_hardware(SYSTEMS[row["system"]])
    cost = CostModel(
        model,
        hardware,
        conditions.dtype,
        conditions.kv_dtype,
        tp,
        host=Host(overlapped=not conditions.serial),
    )
    inputs, outputs = lengths_of(row, conditions)
    try:
        memory = plan_memory(
            model,
            hardware,
            conditions.dtype,
            kv_dtype=conditions.kv_dtype,
            tensor_parallel=tp,
            options=MemoryOptions(rows=BUDGET, logits_rows=users),
        )
    except FsmSpecError:
        memory = plan_memory(
            model,
            hardware,
            conditions.dtype,
            kv_dtype=conditions.kv_dtype,
            tensor_parallel=tp,
            options=MemoryOptions(utilisation=1.0, reserve_gib=0.0, rows=0, logits_rows=0),
        )
    policy = Policy(
        policy="engine",
        admit="preempt",
        prefill=Prefill(tokens=BUDGET, mixed=conditions.mixed),
        max_running=2048,
    )
    table = compile_table(load("ar").spec, {})
    requests = Requests(np.zeros(len(inputs), np.int64), inputs, outputs)
    pool, warm = Pool(memory.pages, memory.page_size), 0
    if conditions.ramp:
        first = replace(requests, prompt_tokens=inputs[:users], output_tokens=outputs[:users])
        first = closed_loop(users, replace(first, arrival_ns=first.arrival_ns[:users]), 0.0)
        once = Simulation(table, policy, pool, cost, first).run()
        requests, warm = closed_loop(users, requests, once.summary.e2e_ms.mean / 1e3), users
    else:
        requests = closed_loop(users, requests, 0.0)
    results = Simulation(table, policy, pool, cost, requests).run()
    log = results.log
    window = (log.finish_ns - log.first_token_ns)[warm:] / 1e6
    busy = results.usage.parts[:, : roofline.FLOPS].sum(axis=1)
    return {
        "id": row["id"],
        "group": [row[key] for key in ("backend", "system", "precision", "tp_size")]
        + [MODELS[row["model_path"]]],
        "tpot_ms": float((window / (log.emitted[warm:] - 1)).mean()),
        "ttft_ms": float((log.first_token_ns - log.arrival_ns)[warm:].mean() / 1e6),
        "measured_tpot_ms": float(row["silicon_tpot_ms"]),
        "measured_ttft_ms": float(row["silicon_ttft_ms"]),
        "shares": dict(zip(roofline.PARTS, (busy / busy.sum()).round(4).tolist(), strict=True)),
    }


def silicon(path: Path, workers: int) -> dict[str, Any]:
    """Predict the closed-loop points of dense models, bf16 and fp8, without attention data parallelism."""
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["model_path"] in MODELS]
    rows = [
        row for row in rows if row["precision"] in ("", "fp8") and row["attention_dp_size"] in ("", "0", "1")
    ]
    # 0 is no size; these rows' concurrency is two or four times their batch size, so several replicas share it.
    shared = [row for row in rows if row["attention_dp_size"] == "0"]
    with ProcessPoolExecutor(workers) as pool:
        found = list(pool.map(run_row, rows, chunksize=8))
    kept = [each for each, row in zip(found, rows, strict=True) if row not in shared]
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in kept:
        groups.setdefault(" ".join(word for word in each["group"] if word), []).append(each)
    return {
        "rows": len(kept),
        "tpot": errors(kept, "tpot_ms"),
        "ttft": errors(kept, "ttft_ms"),
        "with_rows_of_several_replicas": {"rows": len(found), "tpot": errors(found, "tpot_ms")},
        "peers": {"aiconfigurator_tpot": AIC_TPOT, "aiconfigurator_ttft": AIC_TTFT},
        "goal": GOAL,
        "groups": {
            name: {"rows": len(group), "tpot": errors(group, "tpot_ms"), "blame": blame(group)}
            for name, group in sorted(groups.items())
        },
    }


def errors(rows: Sequence[dict[str, Any]], name: str) -> dict[str, float]:
    """Return mean absolute error, mean error (bias) and median absolute error, as shares of what was measured."""
    relative = np.array([each[name] / each[f"measured_{name}"] - 1 for each in rows])
    size = np.abs(relative)
    return {
        "mean_absolute": round(float(size.mean()), 4),
        "bias": round(float(relative.mean()), 4),
        "median_absolute": round(float(np.median(size)), 4),
    }


def blame(rows: Sequence[dict[str, Any]]) -> str:
    """Name the term whose scaling would take away the most of a group's error, and what it would leave."""
    predicted = np.array([each["tpot_ms"] for each in rows])
    measured = np.array([each["measured_tpot_ms"] for each in rows])
    best = float(np.abs(predicted / measured - 1).mean()), "no single term", 1.0
    for part in roofline.PARTS:
        shares = np.array([each["shares"][part] for each in rows])
        for scale in np.geomspace(0.25, 4.0, 33).tolist():
            error = float(np.abs(predicted * (1 + (scale - 1) * shares) / measured - 1).mean())
            if error < best[0] - 0.002:
                best = error, part, scale
    return f"{best[1]} x {best[2]:.2f} would leave {100 * best[0]:.1f} %"


# The RTX 4090 ---------------------------------------------------------------------------------------------------


def vllm_run(folder: Path) -> dict[str, Any]:
    """Replay the saturated vLLM run, priced by kernel tables and by the catalogue's curves."""
    prefix = "vllm019_rtx4090_llama-3.1-8b"
    lines = (folder / f"{prefix}_requests.jsonl").read_text(encoding="utf-8").splitlines()
    rows = sorted((json.loads(line) for line in lines), key=lambda row: float(row["arrival_time"]))
    meta = json.loads((folder / f"{prefix}_meta.json").read_text(encoding="utf-8"))
    start = rows[0]["arrival_time"]
    arrival = np.array([round((row["arrival_time"] - start) * 1e9) for row in rows])
    inputs, outputs = (np.array([row[key] for row in rows]) for key in ("input_toks", "output_toks"))
    measured = {
        "ttft_ms": np.mean([row["first_token_ts"] - row["queued_ts"] for row in rows]) * 1e3,
        "tpot_ms": np.mean(
            [(row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1) for row in rows]
        )
        * 1e3,
        "e2e_ms": np.mean([row["last_token_ts"] - row["queued_ts"] for row in rows]) * 1e3,
    }
    engine, cache = meta["engine_kwargs"], meta["kv_cache"]
    policy = Policy(
        policy="vllm",
        admit="preempt",
        prefill=Prefill(tokens=engine["max_num_batched_tokens"], mixed=True),
        max_running=engine["max_num_seqs"],
    )
    pool = Pool(cache["num_gpu_blocks"], cache["block_size"])
    model, hardware = load_model("llama-3.1-8b"), load_hardware("rtx4090")
    tables = load_kernel_table(str(folder / "kernels_rtx4090_llama31-8b_bf16_tp1"), model.num_hidden_layers)
    table = compile_table(load("ar").spec, {})
    result: dict[str, Any] = {"measured": {name: round(float(value), 3) for name, value in measured.items()}}
    for name, cost in (
        ("kernel tables", CostModel(model, hardware, table=tables)),
        ("curves", CostModel(model, hardware)),
    ):
        requests = Requests(arrival, inputs, outputs)
        runs = [
            Simulation(table, policy, pool, cost, requests, recalls=recalls).run()
            for recalls in (cache["enable_prefix_caching"], False)
        ]
        errors_of = [
            {key: round(float(getattr(each.summary, key).mean / measured[key] - 1), 4) for key in measured}
            for each in runs
        ]
        found = runs[0]
        result[name] = {
            "means": {key: round(getattr(found.summary, key).mean, 3) for key in measured},
            "errors": errors_of[0],
            "errors_if_preempted_pages_were_lost": errors_of[1],
            "preemptions": found.summary.preemptions,
            "recomputed_slots": found.recomputed_slots,
        }
    worst = max(map(abs, result["kernel tables"]["errors"].values()))
    lost = result["kernel tables"]["errors_if_preempted_pages_were_lost"]
    result["blame"] = (
        f"by tables the largest error is {percent(worst)}; without the pages that preempted requests find again it"
        f" would be {percent(max(map(abs, lost.values())))}"
    )
    return result


def print_silicon(found: dict[str, Any]) -> None:
    """Print the closed-loop regime."""
    tpot, ttft, every = found["tpot"], found["ttft"], found["with_rows_of_several_replicas"]
    lines = [
        f"{found['rows']} rows: TPOT mean absolute error {100 * tpot['mean_absolute']:.1f} % (goal 12 %)",
        f"median {100 * tpot['median_absolute']:.1f} %, bias {percent(tpot['bias'])}",
        "AIConfigurator's own: 13.8 %",
        f"TTFT mean absolute error {100 * ttft['mean_absolute']:.0f} % (AIConfigurator 67 %)",
        f"with the rows of several replicas: {every['rows']} rows, {100 * every['tpot']['mean_absolute']:.1f} %",
    ]
    for name, group in found["groups"].items():
        error = group["tpot"]
        lines.append(
            f"{name:44} {group['rows']:4} rows  {100 * error['mean_absolute']:5.1f} %  {percent(error['bias']):>8}"
            f"   {group['blame']}"
        )
    show("closed loops (silicon samples)", lines)


def main() -> None:
    """Run the regimes and write the result file."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("traces", type=Path, help="folder that holds measured/")
    options.add_argument("--workers", type=int, default=2, help="processes")
    options.add_argument("--only", choices=["silicon", "rtx4090", "published"], nargs="*")
    options.add_argument("--write", action="store_true", help="write bench/results/fidelity.json")
    given = options.parse_args()
    folder = given.traces / "measured"
    parts: dict[str, Callable[[], Any]] = {
        "silicon": lambda: silicon(folder / "silicon_serving_points.csv", given.workers),
        "rtx4090": lambda: vllm_run(folder),
        "published": published,
    }
    # Parts that are not run keep the results that are there.
    result: dict[str, Any] = dict(read_result("fidelity", parts)) if given.only else {}
    for name in given.only or parts:
        result[name] = parts[name]()
        if name == "silicon":
            print_silicon(result[name])
        elif name == "rtx4090":
            lines = [
                f"{kind}: "
                + ", ".join(f"{key} {percent(value)}" for key, value in result[name][kind]["errors"].items())
                for kind in ("kernel tables", "curves")
            ]
            show(
                "saturated vLLM run, RTX 4090 (goal 3 % by tables, 15 % by curves)",
                [*lines, result[name]["blame"]],
            )
        else:
            print_published(result[name])
        sys.stdout.flush()
    if given.write:
        write_result("fidelity", result)


if __name__ == "__main__":
    main()
