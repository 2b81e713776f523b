"""The attention kernels against the ragged reading, over drawn shapes, masks and page tables."""

from __future__ import annotations

import pytest
import torch
from attention_cases import Shape, build, shapes
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.fixed.attention import paged_attention_fixed
from fsm_spec.kernels.triton.attention import choose_parts, paged_attention, tiles

# Two tiles of slots in the prefix, more than one word of mask, a padded request, a row group cut by a tile's end.
LONG = Shape(
    (3, 0), (75, 9), rows=3, earlier=31, page_size=4, kv_heads=1, share=6, head_dim=64, kind="tree", seed=7
)


def test_memory_is_poisoned() -> None:
    """Without poison an unwritten output may pass for zeros."""
    assert torch.empty(3).isnan().all()
    assert torch.ones(1).new_empty(3).isnan().all()


@given(shapes(most_context=20, most_rows=4), st.sampled_from([1, 2]))
@settings(max_examples=25)
def test_live_rows_equal_the_reading(shape: Shape, parts: int) -> None:
    """A wrong slot, page, bit or part shows as another mean; what is read and was never written as NaN."""
    case = build(shape)
    found = paged_attention(*case.arguments, parts=parts)
    torch.testing.assert_close(found[case.live].double(), case.expected[case.live], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)], ids=str
)
@pytest.mark.parametrize("parts", [1, 3])
def test_long_prefix_and_wide_block(dtype: torch.dtype, bound: float, parts: int) -> None:
    """The second tile, the second word of mask bits and the last part have to count as much as the first."""
    case = build(LONG, dtype)
    found = paged_attention(*case.arguments, parts=parts)
    assert dtype == found.dtype
    torch.testing.assert_close(found[case.live].double(), case.expected[case.live], rtol=bound, atol=bound)
    plain = paged_attention_fixed(*case.arguments)
    torch.testing.assert_close(found[case.live], plain[case.live], rtol=bound, atol=bound)


def test_queries_may_be_part_of_a_fused_product() -> None:
    """The runner hands over a slice of q, k and v without a copy; one mask serves all requests."""
    case = build(Shape((2, 2), (5, 3), 2, 0, 4, 1, 2, 16, "causal", 3))
    query, cache, table, context, slots, mask, page = case.arguments
    fused = torch.cat((query, torch.full_like(query, torch.nan)), 2)
    # Behind the one mask stands another, which hides all.
    alone = torch.cat((mask[:1], torch.zeros_like(mask)))[:1]
    found = paged_attention(fused[:, :, :2], cache, table, context, slots, alone, page)
    torch.testing.assert_close(found.double(), case.expected, rtol=1e-5, atol=1e-5)


def test_pages_of_other_sizes_are_refused() -> None:
    """Shifts in place of divisions would read another page's slots."""
    case = build(LONG)
    with pytest.raises(
        ValueError, match="takes pages of a power of two of slots, not 24; give --page-size 16 or 32"
    ):
        paged_attention(*case.arguments[:-1], 24)


def test_parts_follow_from_shapes() -> None:
    """Few programs leave most of a device idle; parts that are too short cost more than they gain."""
    assert 1 == choose_parts(programs=396, most_slots=8192, processors=132)
    assert 6 == choose_parts(programs=64, most_slots=8192, processors=132)
    assert 49 == choose_parts(programs=8, most_slots=8192, processors=132)
    assert 4 == choose_parts(programs=8, most_slots=600, processors=132)
    assert 1 == choose_parts(programs=1, most_slots=16, processors=132)
    # A second round of programs that fills a third of the device takes as long as a full one.
    assert 3 == choose_parts(programs=512, most_slots=8192, processors=132)


def test_tiles_follow_the_head_size() -> None:
    """A tile of twice the bytes would not fit beside a second program."""
    assert [(16, 64, 4, 3), (32, 64, 4, 3), (64, 64, 8, 3)] == [tiles(n, 128, 2) for n in (1, 32, 300)]
    assert [(64, 64, 8, 3), (32, 32, 4, 3), (16, 16, 8, 3)] == [
        tiles(300, dim, size) for dim, size in ((64, 2), (256, 2), (128, 4))
    ]
