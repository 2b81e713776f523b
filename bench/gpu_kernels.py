"""Time the kernels on a GPU against their floors, and against FlashInfer and torch where they do the same.

Run: `scripts/gpu_check`, or `python bench/gpu_kernels.py --seconds 120`; the shapes are Llama-3.1-8B's.
A floor is the larger of the bytes that have to move over the measured copy bandwidth and of the operations over the
measured rate of products. Writes bench/results/gpu_kernels.json; without a GPU it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from gpu_operators import operator_cases
from gpu_timing import Call, copy_gb_s, product_tflop_s, time_us, why_not
from record import write_result
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from fsm_spec.kernels.fixed import layer
from fsm_spec.kernels.fixed.adapter import gated_linear
from fsm_spec.kernels.fixed.attention import pack_mask, paged_attention
from fsm_spec.kernels.fixed.cache import kv_append, kv_move
from fsm_spec.kernels.fixed.gather import gather_ids
from fsm_spec.kernels.flashinfer import FlashInferAttention, Sight

HEADS, KV_HEADS, HEAD_DIM, PAGE = 32, 8, 128, 16
HIDDEN, QKV, FFN, RANK = 4096, 6144, 14336, 48
SLOT_BYTES = 2 * KV_HEADS * HEAD_DIM * 2
# A few times what the last cache of an H200 holds (50 MB), so that a call finds nothing of the call before.
MOST_CACHED = 1 << 29
# (requests, context, rows): decode and verify rounds, and a prefill chunk.
ATTENTION = (
    (1, 4096, 1),
    (1, 4096, 8),
    (8, 1024, 1),
    (8, 4096, 1),
    (8, 4096, 8),
    (8, 16384, 1),
    (64, 1024, 1),
    (64, 4096, 1),
    (64, 4096, 8),
    (1, 4096, 512),
)


@dataclass(frozen=True)
class Case:
    """Hold calls of one kernel on different data, what each has to move and compute, and rivals that do the same."""

    kernel: str
    shape: str
    calls: list[Call]
    bytes: int
    flops: int = 0
    rivals: dict[str, Callable[[], list[Call]]] = field(default_factory=dict)


def attention_case(requests: int, context: int, rows: int) -> Case:
    """Lay out one launch of attention over shuffled pages, in as many caches as layers to leave the last cache cold."""
    pages = -(-(context + rows) // PAGE)
    layers = min(max(MOST_CACHED // (requests * context * SLOT_BYTES), 2), 32)
    slots = requests * pages * PAGE
    caches = torch.randn(layers, slots, 2, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    table = torch.randperm(requests * pages, device="cuda").int().view(requests, pages)
    own = context + torch.arange(rows, device="cuda")
    block = (table[:, own // PAGE] * PAGE + own % PAGE).int()
    lengths = torch.full((requests,), context, dtype=torch.int32, device="cuda")
    mask = pack_mask(torch.ones(1, rows, rows, dtype=torch.bool, device="cuda").tril())
    query = torch.randn(requests, rows, HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda") / HEAD_DIM**0.5
    seen = context + (rows + 1) / 2
    rivals: dict[str, Callable[[], list[Call]]] = {}
    if find_spec("flashinfer") is not None:
        rivals["flashinfer"] = partial(_flashinfer, query, caches, table, block, mask, context)
    if rows == 1:
        rivals["torch"] = partial(_dense, query, caches, context)
    return Case(
        "paged_attention",
        f"{requests} x {context}, {rows} rows",
        [
            partial(paged_attention, query, cache, table, lengths, block, mask, PAGE)
            for cache in caches.unbind(0)
        ],
        requests * (context + rows) * SLOT_BYTES + 2 * query.numel() * query.element_size(),
        int(4 * query.numel() * seen),
        rivals,
    )


def _flashinfer(
    query: Tensor, caches: Tensor, table: Tensor, block: Tensor, mask: Tensor, context: int
) -> list[Call]:
    """Plan FlashInfer once; its plan is the host's work and is not timed."""
    requests, rows, heads, head_dim = query.shape
    form = FlashInferAttention(
        (requests, rows, heads, head_dim),
        KV_HEADS,
        query.dtype,
        query.device,
        Sight.CAUSAL,
        requests * (context + rows),
    )
    form.plan(table, [context] * requests, block, mask, PAGE)
    return [partial(form.run, query, cache) for cache in caches.unbind(0)]


def _dense(query: Tensor, caches: Tensor, context: int) -> list[Call]:
    """Attend with torch's own operator over the same number of slots, side by side and in no pages."""
    requests = len(query)
    calls: list[Call] = []
    for cache in caches.unbind(0):
        lines = (
            cache[: requests * context].view(requests, context, 2, KV_HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)
        )
        keys, values = lines.contiguous().unbind(0)
        calls.append(
            partial(
                functional.scaled_dot_product_attention,
                query.transpose(1, 2),
                keys,
                values,
                enable_gqa=True,
                scale=1.0,
            )
        )
    return calls


def row_cases() -> Iterator[Case]:
    """Yield the kernels around attention."""
    layers, slots = 32, 1 << 15
    data = torch.randn(layers, slots, 2, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    for requests, rows in ((8, 8), (64, 8)):
        fused = torch.randn(
            requests, rows, HEADS + 2 * KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda"
        )
        key, value = fused[:, :, HEADS : HEADS + KV_HEADS], fused[:, :, HEADS + KV_HEADS :]
        order = torch.randperm(slots, device="cuda").int()
        into = order[: requests * rows].view(requests, rows)
        yield Case(
            "kv_append",
            f"{requests} x {rows} rows",
            [partial(kv_append, cache, key, value, into) for cache in data.unbind(0)],
            2 * requests * rows * SLOT_BYTES,
        )
        yield from layer_cases(requests * rows, data, into.flatten())
        source, target = order[: 2 * requests * rows].view(2, requests, rows).unbind(0)
        count = torch.full((requests,), rows, dtype=torch.int32, device="cuda")
        yield Case(
            "kv_move",
            f"{requests} x {rows} slots, {layers} layers",
            [partial(kv_move, data, source, target, count)] * 4,
            2 * layers * requests * rows * SLOT_BYTES,
        )
        yield adapter_case(requests * rows)
    source = torch.randint(0, 1000, (64, 4096), device="cuda")
    lines, start = torch.arange(64, device="cuda"), torch.randint(0, 4000, (64,), device="cuda")
    yield Case(
        "gather_ids", "64 x 8 ids", [partial(gather_ids, source, lines, start, 8, 3, 1000)] * 32, 64 * 8 * 16
    )


def layer_cases(rows: int, data: Tensor, slots: Tensor) -> Iterator[Case]:
    """Yield what stands between the products of a layer; the rivals are torch's launches."""
    stream = torch.randn(rows, HIDDEN, device="cuda")
    added = stream.bfloat16()
    norm = (
        stream,
        added,
        torch.ones(HIDDEN, device="cuda"),
        torch.tensor(0.1, device="cuda"),
        torch.bfloat16,
    )
    yield Case(
        "add_norm",
        f"{rows} rows of {HIDDEN}",
        [partial(layer.add_norm, *norm)] * 8,
        12 * rows * HIDDEN,
        rivals={"torch": lambda: [partial(layer.add_norm_fixed, *norm)] * 8},
    )
    qkv = torch.randn(rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    cos, sin = torch.randn(2, rows, HEADS + KV_HEADS, HEAD_DIM, device="cuda").unbind(0)
    no_norms: list[Tensor] = []
    turned = [(qkv, cos, sin, no_norms, cache, slots) for cache in data.unbind(0)]
    yield Case(
        "turn_append",
        f"{rows} rows, {HEADS} + 2 x {KV_HEADS} heads",
        [partial(layer.turn_append, *inputs) for inputs in turned],
        rows * HEAD_DIM * (4 * (HEADS + 2 * KV_HEADS) + 8 * (HEADS + KV_HEADS)),
        rivals={"torch": lambda: [partial(layer.turn_append_fixed, *inputs) for inputs in turned]},
    )
    gate_up = torch.randn(rows, 2 * FFN, dtype=torch.bfloat16, device="cuda")
    yield Case(
        "gate",
        f"{rows} rows of {FFN}",
        [partial(layer.gate, gate_up)] * 8,
        6 * rows * FFN,
        rivals={"torch": lambda: [partial(layer.gate_fixed, gate_up)] * 8},
    )


def adapter_case(rows: int) -> Case:
    """Lay out one fused projection with half of its rows gated; the rival is the projection alone."""
    layers = 8
    weights = torch.randn(layers, QKV, HIDDEN, dtype=torch.bfloat16, device="cuda") / 64
    x = torch.randn(rows, HIDDEN, dtype=torch.bfloat16, device="cuda")
    down = torch.randn(layers, RANK, HIDDEN, dtype=torch.bfloat16, device="cuda") / 64
    up = torch.randn(layers, QKV, RANK, dtype=torch.bfloat16, device="cuda")
    gate = torch.arange(rows, device="cuda") % 2 == 1
    return Case(
        "gated_linear",
        f"{rows} rows, {HIDDEN} to {QKV}, rank {RANK}",
        [partial(gated_linear, x, weights[i], None, down[i], up[i], gate) for i in range(layers)],
        2 * (HIDDEN * QKV + RANK * (HIDDEN + QKV) + rows * (HIDDEN + QKV)),
        2 * rows * HIDDEN * QKV + rows * RANK * (HIDDEN + QKV),
        {"torch, no update": lambda: [partial(functional.linear, x, weights[i]) for i in range(layers)]},
    )


def drawing_cases() -> Iterator[Case]:
    """Yield the operators over logits."""
    for case in operator_cases():
        yield Case(case.kernel, case.shape, case.calls, case.bytes, rivals=case.rivals)


def _one(shape: tuple[int, int, int]) -> Iterator[Case]:
    yield attention_case(*shape)


def all_cases() -> Iterator[Callable[[], Iterator[Case]]]:
    """Yield what makes each case, so that its tensors live only while it is timed."""
    for shape in ATTENTION:
        yield partial(_one, shape)
    yield row_cases
    yield drawing_cases


def measure(case: Case, copy_gb: float, tflop: float) -> dict[str, Any]:
    """Time a case and its rivals."""
    floor = max(case.bytes / copy_gb / 1e3, case.flops / tflop / 1e6)
    took = time_us(case.calls)
    rivals: dict[str, float | str] = {}
    for name, prepare in case.rivals.items():
        try:
            rivals[name] = round(time_us(prepare()), 2)
        except (RuntimeError, ValueError, OSError) as error:  # a rival that does not run is no reason to stop
            rivals[name] = str(error).strip().partition("\n")[0][:120]
    return {
        "kernel": case.kernel,
        "shape": case.shape,
        "us": round(took, 2),
        "floor_us": round(floor, 2),
        "of_floor": round(floor / took, 3),
        "gb_s": round(case.bytes / took / 1e3, 1),
        "rivals_us": rivals,
    }


def show(results: list[dict[str, Any]]) -> None:
    """Print one row a case."""
    table = Table("kernel", "shape", "us", "floor us", "floor / us", "GB/s", "others, us")
    for result in results:
        rivals = "; ".join(f"{name} {took}" for name, took in result["rivals_us"].items())
        table.add_row(
            result["kernel"],
            result["shape"],
            *(str(result[name]) for name in ("us", "floor_us", "of_floor", "gb_s")),
            rivals,
        )
    Console(width=150).print(table)


def main() -> int:
    """Measure until the time is used; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=150.0, help="start no case after so many seconds")
    given = parser.parse_args()
    lacking = why_not()
    if lacking is not None:
        print(f"{lacking}: nothing is measured")
        return 0
    started = time.perf_counter()
    torch.manual_seed(1)
    copy_gb, tflop = copy_gb_s(), product_tflop_s()
    print(f"{torch.cuda.get_device_name()}: copies {copy_gb:.0f} GB/s, products {tflop:.0f} TFLOP/s")
    results, left_out = [], 0
    for cases in all_cases():
        if time.perf_counter() - started > given.seconds:
            left_out += 1
            continue
        results += [measure(case, copy_gb, tflop) for case in cases()]
        torch.cuda.empty_cache()
    show(results)
    if left_out:
        print(f"{left_out} groups of cases were left out: {given.seconds:.0f} s were used")
    found = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "copy_gb_s": round(copy_gb, 1)}
    write_result("gpu_kernels", {**found, "product_tflop_s": round(tflop, 1), "cases": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
