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
from fsm_spec.kernels.triton.scores import Statistics

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


def test_bounds_over_listed_tokens_and_over_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peaked row lists what top-k and top-p can keep, a flat one is searched whole; either gives the same law."""
    source = torch.Generator().manual_seed(6)
    peaked = (torch.randn(150, generator=source) * 4).to(torch.bfloat16)
    flat = (torch.randn(150, generator=source) / 4).to(torch.bfloat16)
    even = torch.zeros(150, dtype=torch.bfloat16)
    # With whether tokens are listed; of three rows the list falls short, by its mass or by its count.
    rows = [
        (peaked, SamplingParams(0.7, 5, 0.9), True),
        (peaked, SamplingParams(1.0, 0, 0.8), True),
        (peaked, SamplingParams(1.0, 20), True),
        (peaked, SamplingParams(4.0, 0, 0.95), True),
        (peaked, SamplingParams(1.0, 33, 0.9), True),
        (flat, SamplingParams(1.0, 0, 0.9, 0.1), False),
        (flat, SamplingParams(0.2, 149, 0.3), True),
        (even, SamplingParams(1.0, 0, 0.2), False),
        (torch.cat([even[:20] + 9, peaked[20:]]), SamplingParams(1.0, 0, 0.5), True),
        (peaked, SamplingParams(1.0, 0, 1.0, 0.2), False),
    ]
    rooms: list[torch.Tensor] = []

    def room(found: Statistics) -> torch.Tensor:
        rooms.append(torch.full((len(found.places), found.constants["BLOCK"]), -7, dtype=torch.int32))
        return rooms[-1]

    monkeypatch.setattr(Statistics, "room", room)
    columns = SamplingColumns.of([params for _, params, _ in rows], range(len(rows)))
    inputs = (
        torch.stack([row for row, _, _ in rows]).unsqueeze(1),
        columns,
        torch.zeros(len(rows), 1).long(),
    )
    for exclude in (None, int(peaked.argmax())):
        expected, laws = fixed.sample_torch(*inputs, Purpose.TARGET, "law", exclude=exclude, want_law=True)
        tokens, found = sample(*inputs, Purpose.TARGET, "law", exclude=exclude, want_law=True, block=32)
        assert tokens.tolist() == expected.tolist()
        assert ((found > 0) == (laws > 0)).all()
        torch.testing.assert_close(found, laws, rtol=0, atol=2e-6)
        if exclude is None:
            assert [listed for _, _, listed in rows] == (rooms[-1] >= 0).any(1).tolist()


def test_op_on_a_gpu_calls_the_kernels() -> None:
    """Its arguments reach the kernels in the order of the op."""
    columns = SamplingColumns.of([SamplingParams(0.8), SamplingParams(0.0)], [5, 6])
    logits = torch.randn(2, 2, 9, generator=torch.Generator().manual_seed(2))
    inputs = (logits, *columns, torch.tensor([[1, 2], [3, 4]]), int(Purpose.DRAFT), "law", 3, True)
    expected, laws = fixed._sample(*inputs)
    tokens, found = fixed._sample._backend_fns["cuda"](*inputs)
    assert expected.tolist() == tokens.tolist()
    torch.testing.assert_close(found, laws, rtol=0, atol=2e-6)


def test_counts_of_synthetic_acceptance() -> None:
    """One law for all requests, laid out without a copy and with chances of 0: each draws its own count by it."""
    logits = torch.tensor([0.2, 0.0, 0.5, 0.3]).log().expand(6, 1, -1)
    columns = SamplingColumns.of([SamplingParams(1.0)] * 6, list(range(6)))
    inputs = (logits, columns, torch.arange(6).unsqueeze(1), Purpose.SYNTHETIC, "law")
    expected, _ = fixed.sample_torch(*inputs, exclude=None, want_law=False)
    found, _ = sample(*inputs, exclude=None, want_law=False)
    assert expected.tolist() == found.tolist()
    assert len(set(found.flatten().tolist())) > 1
