"""The kernels of the gated update against its torch form."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.fixed.adapter import gated_linear_fixed
from fsm_spec.kernels.triton.adapter import gated_linear

# Two parts of the inputs and two tiles of outputs, none of them full.
INPUTS, OUTPUTS = 300, 140


Drawn = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def drawn(rows: int, rank: int, dtype: torch.dtype) -> Drawn:
    """Draw rows, weight, bias, down and up."""
    generator = torch.Generator().manual_seed(rank)
    sizes = ((rows, INPUTS), (OUTPUTS, INPUTS), (OUTPUTS,), (rank, INPUTS), (OUTPUTS, rank))
    x, weight, bias, down, up = (
        (torch.randn(size, generator=generator) / size[-1] ** 0.5).to(dtype) for size in sizes
    )
    return x, weight, bias, down, up


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.sampled_from([2, 16, 24]))
@settings(max_examples=10)
def test_gated_rows_are_updated(gate: list[bool], rank: int) -> None:
    """An update of a base row changes the law that a verify samples from."""
    x, weight, bias, down, up = drawn(len(gate), rank, torch.float32)
    gates = torch.tensor(gate)
    found = gated_linear(x, weight, bias, down, up, gates)
    expected = gated_linear_fixed(x, weight, bias, down, up, gates)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert expected[~gates].equal(found[~gates])


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)], ids=str)
def test_half_precision_is_summed_in_float32(dtype: torch.dtype, bound: float) -> None:
    """Padding rows hold infinities, which no gated row may meet."""
    x, weight, bias, down, up = drawn(3, 16, dtype)
    x[1] = torch.inf
    gate = torch.tensor([True, False, True])
    found = gated_linear(x, weight, bias, down, up, gate)
    expected = gated_linear_fixed(x, weight, bias, down, up, gate)
    torch.testing.assert_close(found[gate], expected[gate], rtol=bound, atol=bound)
