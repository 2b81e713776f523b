"""The kernels that write the KV cache against their torch forms."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.fixed.cache import kv_append_fixed, kv_move_fixed
from fsm_spec.kernels.triton.cache import kv_append, kv_move

SLOTS = 12


def random_cache(layers: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Draw a cache of layers with a slot of 2 x 3 x 4 elements, no power of two."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(layers, SLOTS, 2, 3, 4, generator=generator).to(dtype)


@given(
    st.permutations(range(SLOTS)),
    st.lists(st.booleans(), min_size=6, max_size=6),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=15)
def test_append_writes_what_the_reading_writes(
    order: list[int], live: list[bool], dtype: torch.dtype
) -> None:
    """A dropped row that is written destroys KV of another request."""
    slots = torch.tensor([slot if on else -1 for slot, on in zip(order, live, strict=False)]).int().view(2, 3)
    # The interpreter rounds to bfloat16 by cutting off, so nothing is left to round here.
    fused = torch.randn(2, 3, 6, 4, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    cache = random_cache(1, 2, dtype)[0]
    expected = cache.clone()
    kv_append_fixed(expected, fused[:, :, :3], fused[:, :, 3:], slots)
    kv_append(cache, fused[:, :, :3], fused[:, :, 3:], slots)
    assert expected.equal(cache)


@given(st.data())
@settings(max_examples=15)
def test_move_is_the_same_in_every_layer(data: st.DataObject) -> None:
    """A kept path is moved down over slots that are themselves sources of later moves."""
    target = torch.tensor(data.draw(st.permutations(range(SLOTS)))[:6]).int().view(2, 3)
    source = (
        torch.tensor(data.draw(st.lists(st.integers(-1, SLOTS - 1), min_size=6, max_size=6))).int().view(2, 3)
    )
    count = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=2))).int()
    target[data.draw(st.integers(0, 1)), 2] = -1
    cache = random_cache(2, 3, torch.bfloat16)
    expected = cache.clone()
    kv_move_fixed(expected, source, target, count)
    kv_move(cache, source, target, count)
    assert expected.equal(cache)
