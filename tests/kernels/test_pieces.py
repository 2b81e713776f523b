"""The kernel that lays out token pieces, and the one that finds slots, against their torch forms."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.fixed import pages as fixed_pages
from fsm_spec.kernels.fixed import pieces as fixed
from fsm_spec.kernels.triton import pages, pieces


@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([0, 1, 5, 90]), st.sampled_from([1, 4]))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_pieces_of_every_kind(seed: int, requests: int, room: int, width: int) -> None:
    """A token of another request, or one place off, is emitted as it stands."""
    source = random.Random(seed)

    def numbers(low: int, high: int) -> torch.Tensor | None:
        return (
            torch.tensor([source.randint(low, high) for _ in range(requests)])
            if source.random() < 0.5
            else None
        )

    held = torch.randint(0, 99, (7, width), generator=torch.Generator().manual_seed(seed))
    lines = torch.tensor(source.sample(range(7), requests))
    for given_source, given_lines in ((held, lines), (held, None), (None, None)):
        inputs = (
            given_source, given_lines, [source.randint(-2, 5), source.randint(0, 3), source.randint(0, room + 2)],
            numbers(-3, 6), numbers(0, 3), numbers(0, room + 2), -2,
        )  # fmt: skip
        expected = torch.full((requests, room), -9)
        found = expected.clone()
        fixed.lay_tokens_fixed(expected, *inputs)
        pieces.lay_tokens(found, *inputs)
        assert expected.equal(found)


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("shape", [(3, 0), (3, 5), (1, 300)])
def test_slots_are_where_the_table_says(page_size: int, shape: tuple[int, int]) -> None:
    """A slot on another page is another request's KV; columns of a wider tensor and lines of one mask are taken too."""
    source = torch.Generator().manual_seed(4)
    table = torch.randint(0, 50, (9, 6), generator=source).int()
    lines = torch.tensor([7, 0, 2])[: shape[0]]
    slots = torch.randint(0, 6 * page_size, (shape[0], 2 * shape[1]), generator=source)[:, ::2]
    slots[:, :1] = -1
    for live in (torch.rand(shape, generator=source) < 0.7, torch.rand(1, shape[1], generator=source) < 0.7):
        live[:, :1] = False
        inputs = (table, lines, slots, live, page_size)
        expected = fixed_pages.physical_torch(*inputs)
        found = pages.physical_slots(*inputs)
        assert found.dtype == torch.int32
        assert expected.equal(found)


def test_ops_on_a_gpu_call_the_kernels() -> None:
    """Their arguments reach the kernels in the order of the ops."""
    run, lines = torch.full((2, 5), -1), torch.tensor([1, 0])
    inputs = (torch.arange(8).view(2, 4), lines, [0, 1, 0], None, None, torch.tensor([3, 5]), 7)
    expected = run.clone()
    fixed.lay_tokens(expected, *inputs)
    fixed.lay_tokens._backend_fns["cuda"](run, *inputs)
    assert expected.equal(run)
    table, slots = torch.tensor([[3, 1], [2, 0]]).int(), torch.tensor([[0, 5], [4, 1]])
    mapped = (table, lines, slots, torch.tensor([[True, True], [False, True]]), 4)
    assert fixed_pages.physical_slots(*mapped).equal(fixed_pages.physical_slots._backend_fns["cuda"](*mapped))
