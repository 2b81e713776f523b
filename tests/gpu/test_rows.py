"""What surrounds attention on a GPU: KV writes, the gated update and input ids, each op against its torch form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fsm_spec.kernels.fixed import layer
from fsm_spec.kernels.fixed.adapter import gated_linear, gated_linear_fixed
from fsm_spec.kernels.fixed.cache import kv_append, kv_append_fixed, kv_move, kv_move_fixed
from fsm_spec.kernels.fixed.gather import gather_ids, gather_ids_fixed

SLOTS, LAYERS, KV_HEADS, HEAD_DIM = 512, 3, 8, 128


@pytest.fixture
def draw(device: torch.device) -> torch.Generator:
    """Give a generator of random numbers on the GPU."""
    return torch.Generator(device).manual_seed(1)


def normal(draw: torch.Generator, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Draw normal numbers on the GPU."""
    return torch.randn(shape, generator=draw, device=draw.device).to(dtype)


def test_appended_rows(draw: torch.Generator) -> None:
    """Two rows that write one slot, or a dropped row that writes any, destroy a prefix."""
    cache = normal(draw, SLOTS, 2, KV_HEADS, HEAD_DIM)
    fused = normal(draw, 9, 5, 3 * KV_HEADS, HEAD_DIM)
    slots = torch.randperm(SLOTS, generator=draw, device=draw.device)[:45].int().view(9, 5)
    slots[:, 3] = -1
    expected = cache.clone()
    key, value = fused[:, :, KV_HEADS : 2 * KV_HEADS], fused[:, :, 2 * KV_HEADS :]
    kv_append_fixed(expected, key, value, slots)
    torch.cuda.set_sync_debug_mode("error")
    kv_append(cache, key, value, slots)
    torch.cuda.set_sync_debug_mode("default")
    assert expected.equal(cache)


def test_norms_turns_and_gates(draw: torch.Generator) -> None:
    """What stands between a layer's products is what torch's launches give, within the rounding of its format."""
    stream, added = normal(draw, 37, 4096, dtype=torch.float32), normal(draw, 37, 4096)
    weight, floor = normal(draw, 4096, dtype=torch.float32), torch.tensor(0.1, device=draw.device)
    expected_stream = stream.clone()
    expected = layer.add_norm_fixed(expected_stream, added, weight, floor, torch.bfloat16)
    qkv = normal(draw, 37, 5 * KV_HEADS * HEAD_DIM)
    cos, sin = normal(draw, 2, 37, 4 * KV_HEADS, HEAD_DIM, dtype=torch.float32).unbind(0)
    norms = [weight[:HEAD_DIM], floor, weight[HEAD_DIM : 2 * HEAD_DIM], floor]
    cache = normal(draw, SLOTS, 2, KV_HEADS, HEAD_DIM)
    slots = torch.randperm(SLOTS, generator=draw, device=draw.device)[:37].int()
    slots[3] = -1
    expected_cache = cache.clone()
    expected_query = layer.turn_append_fixed(qkv, cos, sin, norms, expected_cache, slots)
    gate_up = normal(draw, 37, 2 * 14336)
    torch.cuda.set_sync_debug_mode("error")
    found = layer.add_norm(stream, added, weight, floor, torch.bfloat16)
    query = layer.turn_append(qkv, cos, sin, norms, cache, slots)
    gated = layer.gate(gate_up)
    torch.cuda.set_sync_debug_mode("default")
    assert stream.equal(expected_stream)
    for one, other in (
        (found, expected),
        (query, expected_query),
        (cache, expected_cache),
        (gated, layer.gate_fixed(gate_up)),
    ):
        torch.testing.assert_close(one, other, rtol=1.6e-2, atol=1e-2)


def test_moved_slots(draw: torch.Generator) -> None:
    """Programs run at once here: a target that is written before it was read as a source shows only on a GPU."""
    data = normal(draw, LAYERS, SLOTS, 2, KV_HEADS, HEAD_DIM)
    order = torch.randperm(SLOTS, generator=draw, device=draw.device).int()
    source, target = order[:192].view(12, 16), order.roll(7)[:192].view(12, 16)
    count = torch.randint(0, 17, (12,), generator=draw, device=draw.device).int()
    expected = data.clone()
    kv_move_fixed(expected, source, target, count)
    torch.cuda.set_sync_debug_mode("error")
    kv_move(data, source, target, count)
    torch.cuda.set_sync_debug_mode("default")
    assert expected.equal(data)


@pytest.mark.parametrize("rank", [8, 48])
@pytest.mark.parametrize("rows", [1, 40])
def test_gated_rows(rows: int, rank: int, draw: torch.Generator) -> None:
    """Base rows keep their bits; gated rows are what two products in torch give, within bfloat16."""
    x, weight, bias = normal(draw, rows, 1000), normal(draw, 700, 1000) / 32, normal(draw, 700)
    down, up = normal(draw, rank, 1000) / 32, normal(draw, 700, rank)
    gate = torch.rand(rows, generator=draw, device=draw.device) < 0.5
    expected = gated_linear_fixed(x, weight, bias, down, up, gate)
    torch.cuda.set_sync_debug_mode("error")
    found = gated_linear(x, weight, bias, down, up, gate)
    torch.cuda.set_sync_debug_mode("default")
    assert expected[~gate].equal(found[~gate])
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=6e-2)


def test_input_ids(draw: torch.Generator) -> None:
    """An id outside the vocabulary reads beyond the embedding."""
    source = torch.randint(-3, 90, (20, 33), generator=draw, device=draw.device)
    lines = torch.randint(0, 20, (64,), generator=draw, device=draw.device)
    start = torch.randint(-4, 40, (64,), generator=draw, device=draw.device)
    expected = gather_ids_fixed(source, lines, start, 9, 8, 80)
    torch.cuda.set_sync_debug_mode("error")
    found = gather_ids(source, lines, start, 9, 8, 80)
    torch.cuda.set_sync_debug_mode("default")
    assert expected.equal(found)
