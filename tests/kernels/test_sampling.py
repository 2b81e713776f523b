"""The kernels of the sample operator against their torch form, and what a GPU would call against the CPU's."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from dense_batches import Batch, cheap_batches
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.fixed import sampling as fixed
from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.kernels.randomness import Purpose
from fsm_spec.kernels.sampling import Rule
from fsm_spec.kernels.triton.sampling import sample

BLOCK = 16


@settings(derandomize=True, max_examples=7, deadline=None)
@given(cheap_batches, st.sampled_from(get_args(Rule)))
def test_equals_the_torch_form(batch: Batch, rule: Rule) -> None:
    """A token of another row, or a law that is not the one drawn from, would change the output law."""
    inputs = (batch.logits, batch.columns, batch.positions, Purpose.DRAFT, rule)
    expected, laws = fixed.sample_torch(*inputs, exclude=batch.exclude, want_law=True)
    tokens, found = sample(*inputs, exclude=batch.exclude, want_law=True, block=BLOCK)
    live = batch.live
    assert expected[live].tolist() == tokens[live].tolist()
    torch.testing.assert_close(found[live], laws[live], rtol=0, atol=2e-6)
    # Rows of poison give a token nevertheless, so that nothing behind them reads out of bounds.
    assert bool(((tokens >= 0) & (tokens < batch.logits.shape[2])).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_law_of_ties(dtype: torch.dtype) -> None:
    """Of tied logits top-p keeps the lower ids, top-k all; the bounds are exact in every type of logits."""
    logits = torch.tensor([[[1.0, 0.0, 2.0, 1.0, -0.0, 1.0, -torch.inf, -3.0, 1.0, 2.0]]], dtype=dtype)
    for params, kept in [
        (SamplingParams(1.0, 4), [0, 2, 3, 5, 8, 9]),
        (SamplingParams(1.0, 3, 0.69), [0, 2, 3, 9]),
        (SamplingParams(1.0, 0, 0.02), [2]),
        (SamplingParams(1.0, 0, 1.0, 0.3), [0, 2, 3, 5, 8, 9]),
        (SamplingParams(), [2]),
    ]:
        columns = SamplingColumns.of([params], [7])
        inputs = (logits, columns, torch.tensor([[3]]), Purpose.TARGET, "law")
        _, expected = fixed.sample_torch(*inputs, exclude=None, want_law=True)
        _, law = sample(*inputs, exclude=None, want_law=True, block=8)
        assert kept == law[0, 0].nonzero().squeeze(1).tolist() == expected[0, 0].nonzero().squeeze(1).tolist()
        torch.testing.assert_close(law, expected, rtol=0, atol=2e-6)


def test_op_on_a_gpu_calls_the_kernels() -> None:
    """Its arguments reach the kernels in the order of the op."""
    columns = SamplingColumns.of([SamplingParams(0.8), SamplingParams(0.0)], [5, 6])
    logits = torch.randn(2, 2, 9, generator=torch.Generator().manual_seed(2))
    inputs = (logits, *columns, torch.tensor([[1, 2], [3, 4]]), int(Purpose.DRAFT), "law", 3, True)
    expected, laws = fixed._sample(*inputs)
    tokens, found = fixed._sample._backend_fns["cuda"](*inputs)
    assert expected.tolist() == tokens.tolist()
    torch.testing.assert_close(found, laws, rtol=0, atol=2e-6)
