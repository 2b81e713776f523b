"""Appends and moves of KV in fixed shapes, against writes of the live rows alone."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.fixed.cache import kv_append, kv_move

KV_HEADS, HEAD_DIM, SLOTS, LAYERS = 2, 4, 12, 3


@given(st.permutations(range(SLOTS)), st.lists(st.booleans(), min_size=6, max_size=6))
@settings(max_examples=40)
def test_append_writes_live_rows_only(order: list[int], live: list[bool]) -> None:
    """A dropped row that writes anywhere destroys KV of another request, slot 0 first of all."""
    generator = torch.Generator().manual_seed(3)
    cache = torch.randn(SLOTS, 2, KV_HEADS, HEAD_DIM, generator=generator)
    key, value = torch.randn(2, 2, 3, KV_HEADS, HEAD_DIM, generator=generator)
    slots = torch.tensor([slot if on else -1 for slot, on in zip(order, live, strict=False)]).int().view(2, 3)
    expected = cache.clone()
    for row, slot in enumerate(slots.flatten().tolist()):
        if slot >= 0:
            expected[slot] = torch.stack((key, value)).flatten(1, 2)[:, row]
    kv_append(cache, key, value, slots)
    assert expected.equal(cache)


def test_append_converts_to_the_format_of_the_cache() -> None:
    """A bfloat16 model has a cache of its own format."""
    cache = torch.zeros(4, 2, 1, 2, dtype=torch.bfloat16)
    kv_append(cache, torch.full((1, 1, 1, 2), 1.0), torch.full((1, 1, 1, 2), 3.0), torch.tensor([[2]]).int())
    assert [0.0, 0.0, 8.0, 0.0] == cache.sum((1, 2, 3)).tolist()


@given(st.data())
@settings(max_examples=40)
def test_moves_read_all_sources_first(data: st.DataObject) -> None:
    """A kept path is moved down over slots that are themselves sources of later moves."""
    requests, width = 2, 4
    targets = data.draw(st.permutations(range(SLOTS)))[: requests * width]
    sources = data.draw(st.lists(st.integers(-1, SLOTS - 1), min_size=8, max_size=8))
    count = torch.tensor(data.draw(st.lists(st.integers(0, width), min_size=2, max_size=2))).int()
    source, target = (torch.tensor(slots).int().view(requests, width) for slots in (sources, targets))
    target[1, 3] = -1
    cache = torch.randn(LAYERS, SLOTS, 2, KV_HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(4))
    expected = cache.clone()
    for request in range(requests):
        for move in range(int(count[request])):
            a, b = int(source[request, move]), int(target[request, move])
            if a >= 0 and b >= 0:
                expected[:, b] = cache[:, a]
    kv_move(cache, source, target, count)
    assert expected.equal(cache)


def test_ops_hold_their_contract() -> None:
    """A graph capture trusts what an op says it changes."""
    cache = torch.zeros(SLOTS, 2, KV_HEADS, HEAD_DIM)
    rows = torch.ones(1, 2, KV_HEADS, HEAD_DIM)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(kv_append, (cache, rows, rows, torch.tensor([[1, -1]]).int()), test_utils=checks)
    moves = torch.tensor([[1, 2]]).int()
    data = torch.zeros(LAYERS, SLOTS, 2, KV_HEADS, HEAD_DIM)
    torch.library.opcheck(kv_move, (data, moves, moves.flip(1), torch.tensor([2]).int()), test_utils=checks)
