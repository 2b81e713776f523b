"""The gated product in fixed shapes, against the update of the gated rows alone."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from fsm_spec.kernels.adapter import add_low_rank
from fsm_spec.kernels.fixed.adapter import gated_linear

INPUTS, OUTPUTS, RANK = 6, 5, 2


def drawn(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw rows, weight, bias and the adapter's two matrices."""
    generator = torch.Generator().manual_seed(5)
    sizes = ((rows, INPUTS), (OUTPUTS, INPUTS), (OUTPUTS,), (RANK, INPUTS), (OUTPUTS, RANK))
    x, weight, bias, down, up = (
        torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes
    )
    return x, weight, bias, down, up


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.booleans())
@settings(max_examples=30)
def test_gated_rows_alone_are_updated(gate: list[bool], with_bias: bool) -> None:  # noqa: FBT001 -- drawn
    """An update of a base row changes the law that a verify samples from."""
    x, weight, bias, down, up = drawn(len(gate))
    gates = torch.tensor(gate)
    base = functional.linear(x, weight, bias if with_bias else None)
    expected = add_low_rank(base.clone(), x, gates.nonzero().view(-1), down, up)
    found = gated_linear(x, weight, bias if with_bias else None, down, up, gates)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert base[~gates].equal(found[~gates])


def test_padding_rows_do_no_harm() -> None:
    """A padding row holds whatever was left there, infinities too."""
    x, weight, bias, down, up = drawn(2)
    x[1] = torch.inf
    found = gated_linear(x, weight, bias, down, up, torch.tensor([True, False]))
    assert found[0].isfinite().all()


def test_op_holds_its_contract() -> None:
    """A graph capture trusts what an op says it changes, and the runner's tests its shapes."""
    x, weight, bias, down, up = drawn(3)
    for optional in (bias, None):
        arguments = (x, weight, optional, down, up, torch.tensor([True, False, True]))
        torch.library.opcheck(gated_linear, arguments, test_utils=("test_schema", "test_faketensor"))
