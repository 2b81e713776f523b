"""The kernels of the grow operators against their torch forms."""

from __future__ import annotations

import torch
from dense_batches import Batch, cheap_batches
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.fixed import tree as fixed
from fsm_spec.kernels.fixed.tree import nodes_of
from fsm_spec.kernels.tree import Tree
from fsm_spec.kernels.tree import extend as extend_torch
from fsm_spec.kernels.triton.tree import candidates, extend

BLOCK = 16


@settings(derandomize=True, max_examples=3, deadline=None)
@given(cheap_batches, st.integers(1, 4), st.booleans())
def test_candidates_equal_the_torch_form(batch: Batch, top: int, impossible: bool) -> None:  # noqa: FBT001 -- drawn
    """Another candidate would be another tree; impossible tokens rank before the excluded one alone."""
    logits = batch.logits.nan_to_num(nan=0.5)
    if impossible:
        logits[..., 2:] = -torch.inf
    temperature = batch.columns.temperature
    expected, chances = fixed.candidates_torch(logits, temperature, top, batch.exclude)
    tokens, found = candidates(logits, temperature, top, batch.exclude, block=BLOCK)
    assert expected.tolist() == tokens.tolist()
    torch.testing.assert_close(found, chances, rtol=0, atol=2e-5)


@settings(derandomize=True, max_examples=5, deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_extend_equals_the_torch_form(seed: int, beam_width: int, top: int, shared: bool) -> None:  # noqa: FBT001 -- drawn
    """Children enter a pool in the reading's order, ties included, whether parents share candidates or not."""
    generator = torch.Generator().manual_seed(seed)
    count = torch.tensor([3, 4])
    pool = Tree(
        torch.randint(0, 3, (2, 16), generator=generator),
        torch.randint(0, 3, (2, 16), generator=generator),
        torch.randint(0, 3, (2, 16), generator=generator),
        -torch.randint(0, 4, (2, 16), generator=generator).float(),
        count,
    )
    beam = torch.stack([torch.randperm(3, generator=generator)[:beam_width] for _ in range(2)])
    rows = 1 if shared else beam_width
    names = torch.randint(0, 9, (2, rows, top), generator=generator)
    chances = -torch.randint(0, 3, (2, rows, top), generator=generator).float().sort(-1).values
    width = 1 + seed % (beam_width * top)
    expected, places = extend_torch(pool, beam, names, chances, width)
    found, placed = extend(pool, beam, names, chances, width)
    assert places.tolist() == placed.tolist()
    for one, other in zip(nodes_of(expected), nodes_of(found), strict=True):
        assert torch.equal(one, other)


def test_ops_on_a_gpu_call_the_kernels() -> None:
    """Their arguments reach the kernels in the order of the ops; float64 stays with torch."""
    for dtype in (torch.float32, torch.float64):
        logits = torch.randn(1, 2, 9, generator=torch.Generator().manual_seed(2)).to(dtype)
        inputs = (logits, torch.tensor([0.7], dtype=torch.float64), 2, 4)
        tokens, chances = fixed._candidates(*inputs)
        found = fixed._candidates._backend_fns["cuda"](*inputs)
        assert tokens.tolist() == found[0].tolist()
        torch.testing.assert_close(found[1], chances, rtol=0, atol=2e-5)
        pool = Tree.rooted(torch.tensor([3]), 6, dtype)
        grown = (*nodes_of(pool), torch.tensor([[0]]), tokens[:, :1], chances[:, :1], 2)
        for one, other in zip(fixed._extend(*grown), fixed._extend._backend_fns["cuda"](*grown), strict=True):
            assert torch.equal(one, other)
