"""Calls of the operators over logits, for `gpu_kernels.py`: draws with and without bounds, and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from gpu_timing import Call

from fsm_spec.kernels.fixed.acceptance import accept, accept_torch
from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.fixed.sampling import sample, sample_torch
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.kernels.randomness import Purpose

VOCABULARY = 128_256
COPIES = 8
PARAMS = {"temperature": SamplingParams(1.0), "top-k and top-p": SamplingParams(0.8, 50, 0.95)}


class OperatorCase(NamedTuple):
    """Hold calls of one op on different logits, the bytes each has to move, and torch's form of the same."""

    kernel: str
    shape: str
    calls: list[Call]
    bytes: int
    rivals: dict[str, Callable[[], list[Call]]]


def operator_cases() -> Iterator[OperatorCase]:
    """Yield a case for each operator, size and kind of law."""
    for requests in (1, 8, 64):
        rows = 8
        shape = (COPIES, requests, rows, VOCABULARY)
        logits = (torch.randn(shape, device="cuda") * 3).bfloat16()
        positions = torch.arange(rows, device="cuda").expand(requests, -1).contiguous()
        drafts = torch.randint(0, VOCABULARY, (requests, rows - 1), device="cuda")
        count = torch.full((requests,), rows - 1, device="cuda")
        moved = requests * rows * VOCABULARY * 2
        for name, params in PARAMS.items():
            columns = SamplingColumns.of([params] * requests, list(range(requests)), "cuda")
            drawn = (columns, positions, Purpose.TARGET)
            calls: list[Call] = [partial(sample, one, *drawn) for one in logits]
            plain: list[Call] = [
                partial(sample_torch, one, *drawn, "law", exclude=None, want_law=False) for one in logits
            ]
            size = f"{requests} x {rows} rows, {name}"
            yield OperatorCase("sample", size, calls, moved, {"torch": partial(list, plain)})
            judged = (drafts, count, columns, positions)
            calls = [partial(accept, "rejection", one, *judged) for one in logits]
            plain = [partial(accept_torch, "rejection", one, *judged, None, 0, 0.0, None) for one in logits]
            yield OperatorCase("accept", size, calls, moved, {"torch": partial(list, plain)})
