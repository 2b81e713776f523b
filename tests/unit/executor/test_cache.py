"""The KV cache's moves and the allocator's books."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.errors import PoolExhausted
from fsm_spec.executor.cache import PageAllocator, PagedCache
from fsm_spec.executor.models.random import tiny_config


def test_cache_views_and_move() -> None:
    """A move reads all sources before it writes, in every layer, K and V alike."""
    config = tiny_config()
    cache = PagedCache(config, pages=2, page_size=4, dtype=torch.float64)
    assert (8, config.kv_heads, config.head_dim) == cache.key(0).shape
    cache.data.copy_(torch.randn_like(cache.data))
    before = cache.data.clone()
    cache.move(torch.tensor([2, 4, 5]), torch.tensor([1, 2, 4]))
    for layer in range(config.layers):
        assert torch.equal(cache.key(layer)[[1, 2, 4]], before[layer, [2, 4, 5], 0])
        assert torch.equal(cache.value(layer)[[1, 2, 4]], before[layer, [2, 4, 5], 1])
        assert torch.equal(cache.key(layer)[[0, 3, 6, 7]], before[layer, [0, 3, 6, 7], 0])


def test_half_precision_models_keep_a_float32_cache() -> None:
    """Attention in bfloat16 would be slower and lose digits."""
    assert PagedCache(tiny_config(), 1, 1, torch.bfloat16).dtype == torch.float32


def test_slots_follow_the_block_table() -> None:
    """A slot is page * page_size + offset, in the order in which pages were taken."""
    allocator = PageAllocator(pages=4, page_size=2)
    allocator.resize("a", 1)
    allocator.resize("b", 1)
    allocator.resize("a", 3)
    assert allocator.block_table("a") == [0, 2, 3]
    assert [1, 4, 5, 6] == allocator.slots("a", 1, 5).tolist()
    assert allocator.slots("unknown", 0, 0).tolist() == []
    with pytest.raises(IndexError, match="6 slots"):
        allocator.slots("a", 0, 7)


def test_slots_of_several_requests_are_looked_up_at_once() -> None:
    """Lines grow in number and length without mixing requests, and no slot behind a request's pages is named."""
    allocator = PageAllocator(200, 2)
    for request in range(20):
        allocator.resize(request, 1)
    allocator.resize(3, 100)
    allocator.release(4)
    allocator.resize("late", 2)
    lines = allocator.lines([3, 19, "late"])
    own = np.array([199, 1, 3])
    expected = [2 * allocator.block_table(request)[-1] + 1 for request in (3, 19, "late")]
    assert expected == allocator.physical(lines, own).tolist()
    fronts = allocator.fronts(lines, own + 1)
    assert (3, 200) == fronts.shape
    assert allocator.slots("late", 0, 4).tolist() == fronts[2, :4].tolist()
    with pytest.raises(IndexError, match="behind the pages"):
        allocator.physical(lines, own + 1)


def test_exhaustion_changes_nothing() -> None:
    """A refused request must not keep half of its pages."""
    allocator = PageAllocator(pages=3, page_size=2)
    allocator.resize(1, 2)
    with pytest.raises(PoolExhausted, match="needs 2 more pages and 1 of 3 are free"):
        allocator.resize(2, 2)
    assert (allocator.free, allocator.held(1), allocator.held(2)) == (1, 2, 0)
    allocator.check()


def test_check_finds_a_page_owned_twice() -> None:
    """The assertion that tests lean on can fail."""
    allocator = PageAllocator(pages=2, page_size=2)
    allocator.resize(1, 1)
    allocator._tables[2] = [0]
    with pytest.raises(AssertionError):
        allocator.check()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=30))
def test_books_balance(steps: list[tuple[int, int]]) -> None:
    """Under any order of resizes and releases, free and held pages are all pages and none is shared."""
    allocator = PageAllocator(pages=7, page_size=3)
    for request, pages in steps:
        before = allocator.held(request)
        try:
            allocator.resize(request, pages)
        except PoolExhausted:
            assert before == allocator.held(request)
        else:
            assert pages == allocator.held(request)
            assert 3 * pages == len(allocator.slots(request, 0, 3 * pages))
        allocator.check()
        if pages == 0:
            allocator.release(request)
    for request in range(4):
        allocator.release(request)
    assert allocator.free == 7
