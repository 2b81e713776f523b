"""Paged attention on a GPU: the Triton kernel and FlashInfer against the ragged reading, alone and in a graph."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from attention_cases import Case, Shape, build

from fsm_spec.kernels.backends import BACKENDS, FLASHINFER, TORCH, TRITON, Attend
from fsm_spec.kernels.fixed.attention import paged_attention

# Head counts and sizes of models that are served; contexts beyond a tile and a part, none, and padded requests.
SHAPES = {
    "row": Shape((1, 1, 0), (700, 3, 40), 1, 0, 16, 8, 4, 128, "causal", 1),
    "chain": Shape((8, 3), (333, 0), 8, 0, 16, 8, 4, 128, "causal", 2),
    "tree": Shape((40, 7), (130, 64), 40, 3, 16, 2, 4, 128, "tree", 3),
    "groups": Shape((12, 12), (65, 17), 12, 0, 32, 3, 3, 64, "groups", 4),
    "chunk": Shape((200,), (500,), 200, 0, 16, 4, 2, 128, "causal", 5),
    "denoising": Shape((32, 32), (96, 31), 32, 0, 16, 4, 7, 80, "bidirectional", 6),
    "wide heads": Shape((5, 1), (260, 9), 5, 0, 16, 2, 4, 256, "random", 7),
}
BOUNDS = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}


PARTS = ("query", "cache", "block_table", "context", "block_slots", "mask")


def on_device(case: Case, device: torch.device) -> Case:
    """Move the tensors that a launch reads."""
    return replace(case, **{name: getattr(case, name).to(device, copy=True) for name in PARTS})


@pytest.mark.parametrize("dtype", BOUNDS, ids=["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_live_rows_equal_the_reading(shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
    """The interpreter computes in other ways: what tensor cores and asynchronous copies make of it shows here."""
    case = build(shape, dtype)
    for name in (TRITON, TORCH):
        found = without_waiting(BACKENDS[name], on_device(case, device))
        close_on_live_rows(found, case, BOUNDS[dtype])


@pytest.mark.skipif(
    find_spec("flashinfer") is None, reason="needs FlashInfer; pip install flashinfer-python==0.6.18.post1"
)
@pytest.mark.parametrize(
    "shape", [SHAPES["row"], SHAPES["chain"], SHAPES["tree"]], ids=["row", "chain", "tree"]
)
def test_flashinfer_agrees(shape: Shape, device: torch.device) -> None:
    """Its plans are tested with a double elsewhere; whether the real one reads them so shows here alone."""
    case = build(shape, torch.bfloat16)
    # Dead rows may read what nobody wrote, which is NaN here and finite in a runner's cache.
    finite = replace(case, query=case.query.nan_to_num(), cache=case.cache.nan_to_num())
    close_on_live_rows(BACKENDS[FLASHINFER](*on_device(finite, device).arguments), case, 1e-2)


def test_a_graph_follows_its_inputs(device: torch.device) -> None:
    """A captured launch serves every length and page table that is written into its buffers later."""
    first, second = (
        build(Shape(live, context, 4, 0, 16, 2, 4, 128, "causal", seed), torch.bfloat16)
        for live, context, seed in (((4, 2), (100, 30), 8), ((1, 4), (17, 112), 9))
    )
    held = on_device(
        replace(
            first,
            cache=torch.zeros(1024, *first.cache.shape[1:], dtype=torch.bfloat16),
            block_table=torch.zeros(2, 8, dtype=torch.int32),
        ),
        device,
    )
    paged_attention(*held.arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = paged_attention(*held.arguments)
    for case in (first, second, first):
        for name in PARTS:
            buffer, part = getattr(held, name), getattr(case, name).to(device)
            buffer.fill_(-1 if buffer.dtype == torch.int32 else torch.nan)
            buffer[tuple(slice(size) for size in part.shape)].copy_(part)
        graph.replay()
        close_on_live_rows(out, case, 1e-2)


def without_waiting(attend: Attend, case: Case) -> torch.Tensor:
    """Attend once to compile, and once more with every wait of the host for the device an error."""
    attend(*case.arguments)
    torch.cuda.set_sync_debug_mode("error")
    found = attend(*case.arguments)
    torch.cuda.set_sync_debug_mode("default")
    return found


def close_on_live_rows(found: torch.Tensor, case: Case, bound: float) -> None:
    """Assert that live rows are the expected ones."""
    found = found.cpu().double()
    torch.testing.assert_close(found[case.live], case.expected[case.live], rtol=bound, atol=bound)
