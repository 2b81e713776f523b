"""Time work on a GPU inside a CUDA graph, and measure the two ceilings that floors are computed from."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

Call = Callable[[], object]
_COPY_BYTES = 1 << 30
_PRODUCT = 8192


def why_not() -> str | None:
    """Say why nothing can be timed here; None where a GPU is there."""
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU"
    return None


def time_us(calls: Sequence[Call], replays: int = 9) -> float:
    """Time one call in microseconds: the median replay of a graph of all of them, divided by their number.

    The calls should read different data, more of it in all than the last cache holds, as layers of a model do.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return _median_us(graph.replay, replays) / len(calls)


def _median_us(call: Call, repeats: int) -> float:
    times: list[float] = []
    for _ in range(repeats + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    # The first two warm clocks and caches.
    return statistics.median(times[2:])


def copy_gb_s() -> float:
    """Measure the bytes that a copy within the GPU's memory reads and writes in a second, in GB."""
    source = torch.randint(0, 255, (_COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * _COPY_BYTES / _median_us(lambda: target.copy_(source), 9) / 1e3


def product_tflop_s() -> float:
    """Measure the rate of a large product in bfloat16, in TFLOP a second."""
    left, right = torch.randn(2, _PRODUCT, _PRODUCT, dtype=torch.bfloat16, device="cuda").unbind(0)
    return 2 * _PRODUCT**3 / _median_us(lambda: torch.mm(left, right), 9) / 1e6
