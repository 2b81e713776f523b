"""Paged attention in fixed shapes: its torch form against the ragged reading, and its op under fake tensors."""

from __future__ import annotations

import torch
from attention_cases import Shape, build, shapes
from hypothesis import given, settings
from torch._subclasses.fake_tensor import FakeTensorMode

from fsm_spec.kernels.fixed.attention import pack_mask, paged_attention, unpack_mask

CASE = Shape(
    live=(3, 0, 1),
    context=(19, 5, 0),
    rows=3,
    earlier=1,
    page_size=4,
    kv_heads=2,
    share=3,
    head_dim=16,
    kind="tree",
    seed=7,
)


def test_mask_words_hold_every_bit() -> None:
    """A lost bit hides a row from another; bit 31 is a word's sign."""
    mask = torch.rand(2, 3, 70, generator=torch.Generator().manual_seed(0)) < 0.5
    mask[..., 31] = True
    words = pack_mask(mask)
    assert (torch.int32, (2, 3, 3)) == (words.dtype, words.shape)
    assert mask.equal(unpack_mask(words, 70))
    assert [[-(2**31), 1]] == pack_mask(torch.arange(33)[None] >= 31).tolist()


@given(shapes())
@settings(max_examples=60)
def test_live_rows_equal_the_reading(shape: Shape) -> None:
    """A wrong slot, page or bit shows as another mean; a look where nothing was written as NaN."""
    case = build(shape, torch.float64)
    found = paged_attention(*case.arguments)
    torch.testing.assert_close(found[case.live], case.expected[case.live], rtol=1e-12, atol=1e-12)


def test_one_mask_serves_all_requests() -> None:
    """A plan without trees has one mask for every request; it is not copied for each."""
    case = build(CASE)
    query, cache, table, context, slots, mask, page = case.arguments
    first = paged_attention(
        query, cache, table, context, slots, mask[:1].expand(3, -1, -1).contiguous(), page
    )
    shared = paged_attention(query, cache, table, context, slots, mask[:1].contiguous(), page)
    assert first[case.live].equal(shared[case.live])


def test_half_precision_is_summed_in_float32() -> None:
    """Sums in 16 bits would lose what a long prefix adds up."""
    for dtype, bound in ((torch.float16, 2e-3), (torch.bfloat16, 1e-2)):
        case = build(CASE, dtype)
        found = paged_attention(*case.arguments)
        assert dtype == found.dtype
        torch.testing.assert_close(
            found[case.live].double(), case.expected[case.live], rtol=bound, atol=bound
        )


def test_op_has_a_shape_without_a_device() -> None:
    """The runner is tested under fake tensors, where an op without a fake fails."""
    torch.library.opcheck(
        paged_attention, build(CASE).arguments, test_utils=("test_schema", "test_faketensor")
    )
    with FakeTensorMode():
        arguments = [
            torch.empty(value.shape, dtype=value.dtype, device="cuda")
            if isinstance(value, torch.Tensor)
            else value
            for value in build_shapes()
        ]
        found = paged_attention(*arguments)
    assert ((3, 3, 6, 16), torch.float32, "cuda") == (found.shape, found.dtype, found.device.type)


def build_shapes() -> tuple[torch.Tensor | int, ...]:
    """Give the arguments of a case as meta tensors, which hold shapes only."""
    return (
        torch.empty(3, 3, 6, 16),
        torch.empty(64, 2, 2, 16),
        torch.empty(3, 6, dtype=torch.int32),
        torch.empty(3, dtype=torch.int32),
        torch.empty(3, 4, dtype=torch.int32),
        torch.empty(3, 3, 1, dtype=torch.int32),
        4,
    )
