"""The kernels between a layer's products against their torch forms."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.fixed import layer as fixed
from fsm_spec.kernels.triton import layer as kernels

DTYPES = [torch.float32, torch.float16, torch.float64]
types = st.sampled_from(DTYPES)


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Draw numbers around 0."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(
    st.integers(1, 3),
    st.sampled_from([3, 8, 20]),
    types,
    st.sampled_from([None, *DTYPES]),
    st.integers(0, 99),
)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_norm_adds_first(
    rows: int, hidden: int, dtype: torch.dtype, added_type: torch.dtype | None, seed: int
) -> None:
    """The stream is what the next layer adds to; a norm of the stream before would miss a sublayer."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    stream, weight = drawn(seed, rows, hidden, dtype=wide), drawn(seed + 1, hidden, dtype=wide)
    added = None if added_type is None else drawn(seed + 2, rows, hidden, dtype=added_type)
    floor = torch.tensor(0.01, dtype=wide)
    expected_stream = stream.clone()
    expected = fixed.add_norm_fixed(expected_stream, added, weight, floor, dtype)
    found = kernels.add_norm(stream, added, weight, floor, dtype)
    assert found.dtype == dtype
    assert stream.equal(expected_stream)
    torch.testing.assert_close(found, expected)


@given(
    st.sampled_from([(1, 1, 2), (3, 2, 6), (4, 1, 8)]),
    st.booleans(),
    st.sampled_from(
        [(torch.float32, torch.float32), (torch.float16, torch.float16), (torch.float16, torch.float32)]
    ),
    st.permutations(range(6)),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_heads_are_turned_and_kept(
    shape: tuple[int, int, int],
    normed: bool,  # noqa: FBT001 -- drawn
    dtypes: tuple[torch.dtype, torch.dtype],
    order: list[int],
    live: list[bool],
) -> None:
    """A dropped row that is written destroys KV of another request; another head's table turns wrongly."""
    heads, kv_heads, head_dim = shape
    dtype, cached = dtypes
    slots = torch.tensor([slot if on else -1 for slot, on in zip(order, live, strict=False)]).int()
    qkv = drawn(1, 4, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    cos, sin = drawn(2, 4, heads + kv_heads, head_dim), drawn(3, 4, heads + kv_heads, head_dim)
    weights = [drawn(5, head_dim), torch.tensor(0.1), drawn(6, head_dim), torch.tensor(0.2)] if normed else []
    cache = drawn(4, 6, 2, kv_heads, head_dim, dtype=cached)
    expected_cache = cache.clone()
    expected = fixed.turn_append_fixed(qkv, cos, sin, weights, expected_cache, slots)
    before = qkv.clone()
    found = kernels.turn_append(qkv, cos, sin, weights, cache, slots)
    assert (heads, head_dim) == found.shape[1:]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(cache, expected_cache)
    untouched = [slot for slot in range(6) if slot not in slots.tolist()]
    assert cache[untouched].equal(drawn(4, 6, 2, kv_heads, head_dim, dtype=cached)[untouched])
    assert qkv.equal(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [3, kernels.COLUMNS + 5])
def test_gate_takes_the_halves_in_order(dtype: torch.dtype, width: int) -> None:
    """The halves are not alike: only the first goes through the sigmoid."""
    gate_up = drawn(7, 2, 2 * width, dtype=dtype) * 3
    found, expected = kernels.gate(gate_up), fixed.gate_fixed(gate_up)
    torch.testing.assert_close(found, expected, rtol=2e-3 if dtype == torch.float16 else 1e-6, atol=1e-6)


def test_ops_on_a_gpu_call_the_kernels() -> None:
    """Their arguments reach the kernels in the order of the ops."""
    stream, added, weight, floor = drawn(1, 2, 8), drawn(2, 2, 8), drawn(3, 8), torch.tensor(0.5)
    expected_stream = stream.clone()
    expected = fixed.add_norm(expected_stream, added, weight, floor, torch.float32)
    found = fixed.add_norm._backend_fns["cuda"](stream, added, weight, floor, torch.float32)
    torch.testing.assert_close(found, expected)
    assert stream.equal(expected_stream)
    qkv, cos, sin, slots = (
        drawn(4, 3, 16),
        drawn(5, 3, 3, 4),
        drawn(6, 3, 3, 4),
        torch.tensor([2, -1, 0]).int(),
    )
    norms = [drawn(8, 4), floor, drawn(9, 4), floor / 2]
    cache = drawn(7, 4, 2, 1, 4)
    expected_cache = cache.clone()
    expected = fixed.turn_append(qkv, cos, sin, norms, expected_cache, slots)
    torch.testing.assert_close(
        fixed.turn_append._backend_fns["cuda"](qkv, cos, sin, norms, cache, slots), expected
    )
    torch.testing.assert_close(cache, expected_cache)
    torch.testing.assert_close(fixed.gate._backend_fns["cuda"](qkv), fixed.gate(qkv))
