"""The kernels of the unmask operator against their torch form."""

from __future__ import annotations

import torch
from dense_batches import Batch, cheap_batches, drawn_block
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.fixed import unmask as fixed
from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.kernels.triton.unmask import unmask
from fsm_spec.kernels.unmask import MASKED, UNMASK_RULES

BLOCK = 16


@settings(derandomize=True, max_examples=7, deadline=None)
@given(cheap_batches, st.sampled_from(UNMASK_RULES), st.booleans())
def test_equals_the_torch_form(batch: Batch, rule: str, freezes: bool) -> None:  # noqa: FBT001 -- drawn
    """Another row committed, or another token, would change what a diffusion block becomes."""
    tokens, options = drawn_block(batch)
    turns = torch.tensor([batch.source.randrange(9) for _ in batch.params])
    stops = torch.tensor([[1, -1], [0, 3]])[: len(turns)] if freezes else None
    inputs = (rule, batch.logits, tokens, batch.rows, batch.columns, batch.positions, turns)
    expected = fixed.unmask(*inputs, stop_ids=stops, **options)
    names = ("threshold", "quota", "bound", "last", "first")
    found = unmask(*[*inputs, *(options[name] for name in names), stops, batch.exclude, BLOCK])
    assert [one.tolist() for one in expected] == [one.tolist() for one in found]


def test_op_on_a_gpu_calls_the_kernels() -> None:
    """Its arguments reach the kernels in the order of the op."""
    columns = SamplingColumns.of([SamplingParams(0.8)], [5])
    logits = torch.randn(1, 3, 9, generator=torch.Generator().manual_seed(2))
    tokens, one = torch.tensor([[MASKED, 2, MASKED]]), torch.tensor([1])
    inputs = (
        "dynamic", logits, tokens, one * 3, *columns, torch.tensor([[4, 5, 6]]), one * 2,
        0.9, one, 0.5, torch.tensor([False]), one, torch.tensor([[2, -1]]), 0,
    )  # fmt: skip
    expected = fixed._unmask(*inputs)
    found = fixed._unmask._backend_fns["cuda"](*inputs)
    assert [one.tolist() for one in expected] == [one.tolist() for one in found]
