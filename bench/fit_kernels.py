"""Fit the catalogue's efficiency curves to published kernel times, and print them as YAML.

`bench/fit_kernels.py FOLDER` reads the tables below `systems/data` of an unpacked aiconfigurator-core wheel,
`--llmservingsim PREFIX` those of LLMServingSim for an RTX 4090. A linear layer takes
start + (memory^p + compute^p)^(1/p), with memory and compute at a share of their peaks; nothing else is fitted.

bf16 layers and prefill attention are vLLM's kernels, decode attention is the median of vLLM's and TensorRT-LLM's.
The fp8 times are TensorRT-LLM's, less those of the kernels that find a scale and quantise, which have a table of their
own: checkpoints hold scales, and engines quantise in the norm before.
Block-scaled fp8 is timed with its quantising, which cannot move elsewhere.
An all-reduce is the faster of both engines' kernels at each size.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fsm_spec.simulator.hardware import load_hardware

Floats = NDArray[np.float64]
SYSTEMS = {
    "a100": "a100_sxm",
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "gb200": "gb200",
    "l40s": "l40s",
    "rtx_pro_6000": "rtx_pro_6000_server",
}
ROWS = np.array([64.0, 256.0, 1024.0, 4096.0])
AMOUNTS = 4.0 ** np.arange(4, 11)  # tokens of 4,096 bytes: batch x context
PROMPTS = np.array([256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0])
# Inputs and outputs of linear layers, from a shard of an 8B model to the output head.
SMALLEST, LARGEST = 1024, 65536


def newest(folder: Path, pattern: str) -> Path | None:
    """Return the table of the newest version."""
    found = sorted(
        folder.glob(pattern),
        key=lambda path: [int(n) if n.isdigit() else 0 for n in path.parts[-2].split(".")],
    )
    return found[-1] if found else None


def table(path: Path) -> dict[str, NDArray[Any]]:
    """Read a Parquet file as columns."""
    from pyarrow import parquet  # type: ignore[import-untyped]  # noqa: PLC0415 - of this script alone

    read = parquet.read_table(path)
    columns = {name: np.asarray(read.column(name).to_pylist()) for name in read.column_names}
    if "window_size" not in columns:
        return columns
    whole = columns["window_size"] == 0
    return {name: values[whole] for name, values in columns.items()}


def fit_linear(
    rows: Floats, n: Floats, k: Floats, us: Floats, size: float, bandwidth: float, peak: float
) -> dict[str, Any]:
    """Fit start, share of the bandwidth, shares of the peak over rows, and the power that joins both."""
    moved = (n * k * size + 2 * rows * (n + k)) / (bandwidth * 1e3)
    work = 2 * rows * n * k / (peak * 1e6)

    def model(x: Floats) -> Floats:
        share = np.interp(np.log(rows), np.log(ROWS), x[3:])
        power = max(1.0, x[2])
        both = (moved / x[1]) ** power + (work / share) ** power
        return np.asarray(np.exp(x[0]) + both ** (1 / power))

    def loss(x: Floats) -> float:
        shares = x[[1, 3, 4, 5, 6]]
        outside = np.maximum(0, shares - 1).sum() + np.maximum(0, 0.05 - shares).sum() + max(0, x[2] - 6)
        return float(np.abs(np.log(model(np.clip(x, -3, 6)) / us)).mean() + 10 * outside)

    start = np.array([1.3, 0.85, 2.5, 0.8, 0.8, 0.8, 0.8])
    best = minimize(loss, start, method="Nelder-Mead", options={"maxiter": 6000, "maxfev": 6000}).x
    return {
        "start_us": round(float(np.exp(best[0])), 2),
        "mbu": round(min(1.0, float(best[1])), 3),
        "overlap": round(max(1.0, float(best[2])), 2),
        "mfu": [[int(r), round(min(1.0, float(s)), 3)] for r, s in zip(ROWS, best[3:], strict=True)],
        "error": round(float(np.abs(model(best) / us - 1).mean()), 3),
    }


def shapes(columns: dict[str, NDArray[Any]], dtype: str) -> NDArray[Any]:
    """Say which rows of a table are linear layers of common shapes."""
    inside = (columns["n"] >= SMALLEST) & (columns["k"] >= SMALLEST)
    inside &= (columns["n"] <= LARGEST) & (columns["k"] <= LARGEST) & (columns["m"] <= 8192)
    return np.asarray(inside & (columns["gemm_dtype"] == dtype))


def quantising(folder: Path, name: str) -> dict[tuple[float, float], float]:
    """Return the us of finding a scale and of quantising, by rows and inputs."""
    total: dict[tuple[float, float], float] = defaultdict(float)
    for kernel in ("computescale", "scale_matrix"):
        path = newest(folder / SYSTEMS[name], f"quantize/trtllm/*/{kernel}_perf.parquet")
        columns: dict[str, Any] = table(path) if path else {"m": [], "k": [], "latency": []}
        for m, k, ms in zip(columns["m"], columns["k"], columns["latency"], strict=True):
            total[float(m), float(k)] += float(ms) * 1e3
    return total


def linear_layers(folder: Path, name: str) -> dict[str, Any]:
    """Fit the linear layers of one accelerator in each number format."""
    hardware, result = load_hardware(name), {}
    path = newest(folder / SYSTEMS[name], "gemm/vllm/*/gemm_perf.parquet")
    if path is not None:
        columns = table(path)
        mine = shapes(columns, "bfloat16")
        rows, n, k, ms = (columns[c][mine].astype(float) for c in ("m", "n", "k", "latency"))
        result["bfloat16"] = fit_linear(rows, n, k, ms * 1e3, 2.0, hardware.hbm_gb_s, hardware.bf16_tflops)
    path, before = newest(folder / SYSTEMS[name], "gemm/trtllm/*/gemm_perf.parquet"), quantising(folder, name)
    if path is None or not hardware.fp8_tflops:
        return result
    columns = table(path)
    for dtype in ("fp8", "fp8_block"):
        mine = shapes(columns, dtype)
        if not before or mine.sum() < 50:
            continue
        rows, n, k, ms = (columns[c][mine].astype(float) for c in ("m", "n", "k", "latency"))
        us = ms * 1e3
        if dtype == "fp8":
            us = us - np.array([before.get(key, np.inf) for key in zip(rows, k, strict=True)])
        # Where both are far apart in time, noise may leave nothing.
        known = us > 0.2 * ms * 1e3
        result[dtype] = fit_linear(
            rows[known], n[known], k[known], us[known], 1.0, hardware.hbm_gb_s, hardware.fp8_tflops
        )
    return result


def decode_attention(folder: Path, name: str) -> list[list[float]]:
    """Return medians of the share of the bandwidth by batch x context, heads of 128, bf16."""
    amounts, shares = [], []
    for engine in ("vllm", "trtllm"):
        path = newest(folder / SYSTEMS[name], f"attention/{engine}/*/generation_attention_perf.parquet")
        if path is None:
            continue
        columns = table(path)
        mine = (columns["head_dim"] == 128) & (columns["kv_cache_dtype"] == "bfloat16")
        mine &= (columns["num_heads"] > columns["num_key_value_heads"]) & (columns["num_heads"] <= 64)
        batch, step, heads, ms = (
            columns[c][mine].astype(float) for c in ("batch_size", "step", "num_key_value_heads", "latency")
        )
        amounts.append(batch * (step + 1) * heads / 8)
        shares.append(amounts[-1] * 4096 / (load_hardware(name).hbm_gb_s * 1e6) / ms)
    if not amounts:
        return []
    amount, share = np.concatenate(amounts), np.concatenate(shares)
    near = [np.abs(np.log(amount / at)) < 0.4 for at in AMOUNTS]
    # Below 8,192 each at its own amount: the share of a kernel that is too short grows with it.
    return [
        [
            int(at),
            round(min(1.0, float(np.median(share[here] * np.where(at < 8192, at / amount[here], 1.0)))), 3),
        ]
        for at, here in zip(AMOUNTS, near, strict=True)
        if here.sum() > 3
    ]


def prefill_attention(folder: Path, name: str) -> list[list[float]]:
    """Return medians of the share of the bf16 peak by prompt tokens of 32 heads x 128 (other heads: equal work)."""
    path = newest(folder / SYSTEMS[name], "attention/vllm/*/context_attention_perf.parquet")
    if path is None:
        return []
    columns = table(path)
    mine = (columns["head_dim"] == 128) & (columns["attn_dtype"] == "bfloat16")
    mine &= (columns["kv_cache_dtype"] == "bfloat16") & (columns["isl"] >= 128)
    mine &= (columns["num_heads"] >= 4) & (columns["num_heads"] > columns["num_key_value_heads"])
    batch, tokens, heads, ms = (
        columns[c][mine].astype(float) for c in ("batch_size", "isl", "num_heads", "latency")
    )
    flops = 2 * batch * heads * 128 * tokens**2
    share = flops / (load_hardware(name).bf16_tflops * 1e9) / ms
    equal = np.sqrt(batch * heads / 32) * tokens
    near = [np.abs(np.log(equal / at)) < 0.25 for at in PROMPTS]
    return [
        [int(at), round(min(1.0, float(np.median(share[here]))), 3)]
        for at, here in zip(PROMPTS, near, strict=True)
        if here.sum() > 3
    ]


def all_reduce(folder: Path, name: str) -> dict[int, list[list[float]]]:
    """Return the time of an all-reduce in a graph by bytes, in us, for each number of accelerators."""
    best: dict[int, dict[int, float]] = defaultdict(dict)
    for engine in ("vllm", "trtllm"):
        path = newest(folder / SYSTEMS[name], f"comm/{engine}/*/custom_allreduce_perf.parquet")
        columns = table(path) if path else {}
        for index in range(len(columns.get("latency", ()))):
            if "backend" in columns and columns["backend"][index] != "vllm_graph":
                continue
            gpus, size = int(columns["num_gpus"][index]), int(columns["message_size"][index])
            us = float(columns["latency"][index]) * 1e3
            if 8192 <= size <= 2**27:
                best[gpus][size] = min(us, best[gpus].get(size, us))
    return {
        gpus: [[size, round(us, 1)] for size, us in sorted(best[gpus].items())[::2]]
        for gpus in (2, 4, 8)
        if best[gpus]
    }


def llmservingsim(prefix: Path) -> dict[str, Any]:
    """Fit the linear layers of LLMServingSim's Llama-3.1-8B tables for an RTX 4090."""
    shapes = {
        "qkv_proj": (6144, 4096),
        "o_proj": (4096, 4096),
        "gate_up_proj": (28672, 4096),
        "down_proj": (4096, 14336),
    }
    points = defaultdict(list)
    with Path(f"{prefix}_dense.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["layer"] in shapes:
                for key, value in zip(
                    "rnku", (float(row["tokens"]), *shapes[row["layer"]], float(row["time_us"])), strict=True
                ):
                    points[key].append(float(value))
    hardware = load_hardware("rtx4090")
    rows, n, k, us = (np.array(points[key]) for key in "rnku")
    return {"bfloat16": fit_linear(rows, n, k, us, 2.0, hardware.hbm_gb_s, hardware.bf16_tflops)}


def main() -> None:
    """Print the curves of every accelerator that has tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path, help="systems/data of aiconfigurator-core")
    options.add_argument("--llmservingsim", type=Path, help="path and common prefix of its RTX 4090 tables")
    options.add_argument("--only", nargs="*", default=list(SYSTEMS), help="accelerators of the catalogue")
    given = options.parse_args()
    for name in given.only:
        print(f"{name}:")
        print(f"  linear: {linear_layers(given.folder, name)}")
        print(f"  decode_attention_mbu: {decode_attention(given.folder, name)}")
        print(f"  prefill_attention_mfu: {prefill_attention(given.folder, name)}")
        print(f"  all_reduce_us: {all_reduce(given.folder, name)}")
        sys.stdout.flush()
    if given.llmservingsim:
        print(f"rtx4090:\n  linear: {llmservingsim(given.llmservingsim)}")


if __name__ == "__main__":
    main()
