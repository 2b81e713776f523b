"""The kernels of the accept operator against their torch form, and the law of what they emit."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from dense_batches import Batch, cheap_batches
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.acceptance import ACCEPT_RULES, LOSSY_ACCEPT_RULES
from fsm_spec.kernels.fixed import acceptance as fixed
from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.kernels.triton import acceptance as kernels

BLOCK = 16
RULES = (*ACCEPT_RULES, *LOSSY_ACCEPT_RULES)


def judged(batch: Batch, rule: str, *, with_q: bool) -> tuple[Any, ...]:
    """Return the operator's inputs, with dead drafts and laws of poison."""
    n, r, width = batch.logits.shape
    drafts = batch.tokens(n, r - 1)
    q = torch.rand(n, r - 1, width, generator=torch.Generator().manual_seed(1))
    q /= q.sum(-1, keepdim=True)
    dead = ~batch.live[:, 1:]
    drafts[dead], q[dead] = batch.source.choice([-1, -2, width]), torch.nan
    columns, positions = batch.columns, batch.positions
    return (
        rule, batch.logits, drafts, batch.rows - 1, columns, positions, q if with_q else None, 2, 0.25, batch.exclude
    )  # fmt: skip


@settings(derandomize=True, max_examples=14, deadline=None)
@given(cheap_batches, st.sampled_from(RULES), st.booleans())
def test_equals_the_torch_form(batch: Batch, rule: str, with_q: bool) -> None:  # noqa: FBT001 -- drawn
    """Another verdict or correction would change the output law."""
    inputs = judged(batch, rule, with_q=with_q)
    expected = fixed.accept_torch(*inputs)
    found = kernels.accept(*[*inputs, BLOCK])
    assert [one.tolist() for one in expected] == [one.tolist() for one in found]


@triton.jit
def _by_seed(seed, position, purpose):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202, ARG001 -- a kernel
    """Give the numbers that a seed lists: of 3 for a verdict, of 2 for a correction."""
    verdict = (seed % 3).to(tl.float64) / 3 + 1 / 6
    correction = (seed // 3).to(tl.float64) / 2 + 1 / 4
    return tl.where(purpose == 3, verdict, correction)


def test_law_of_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all random numbers and drafts, the emitted token has the target's law exactly.

    Chances are multiples of 1/3 and what is left has two equal parts, so a few numbers stand for all.
    """
    monkeypatch.setattr(kernels, "uniform", _by_seed)
    p, q = torch.tensor([5.0, 4.0, 3.0]) / 12, torch.tensor([2.0, 1.0, 9.0]) / 12
    cases = [(draft, seed) for draft in range(3) for seed in range(6)]
    n = len(cases)
    columns = SamplingColumns.of([SamplingParams(1.0)] * n, [seed for _, seed in cases])
    drafts = torch.tensor([[draft] for draft, _ in cases])
    accepted, token = kernels.accept(
        "rejection",
        p.log().expand(n, 2, 3),
        drafts,
        torch.ones(n, dtype=torch.int64),
        columns,
        torch.zeros(n, 2, dtype=torch.int64),
        q.expand(n, 1, 3),
        0,
        0.0,
        None,
        block=2,
    )
    first = torch.where(accepted == 1, drafts[:, 0], token)
    law = [Fraction(0)] * 3
    for (draft, _), emitted in zip(cases, first.tolist(), strict=True):
        law[emitted] += Fraction([2, 1, 9][draft], 12) / 6
    assert [Fraction(5, 12), Fraction(4, 12), Fraction(3, 12)] == law


@pytest.mark.parametrize("q", [None, torch.tensor([[[0.0, 1.0, 0.0]]])])
def test_residual_without_mass_falls_back(q: torch.Tensor | None) -> None:
    """Where p gives all to the rejected token but rounding or a wrong q rejects it, the token is p's (D4)."""
    logits = torch.tensor([[[-torch.inf, 0.0, -torch.inf]] * 2])
    columns = SamplingColumns.of([SamplingParams(1.0)], [3])
    one = torch.tensor([1])
    inputs = (logits, torch.tensor([[0]]), one, columns, torch.tensor([[8, 9]]), q, 0, 0.0, None)
    expected = fixed.accept_torch("rejection", *inputs)
    found = kernels.accept("rejection", *inputs, block=2)
    assert [[0], [1]] == [one.tolist() for one in found] == [one.tolist() for one in expected]


def test_op_on_a_gpu_calls_the_kernels() -> None:
    """Its arguments reach the kernels in the order of the op."""
    columns = SamplingColumns.of([SamplingParams(0.8)], [5])
    logits = torch.randn(1, 3, 9, generator=torch.Generator().manual_seed(2))
    drafts, positions = torch.tensor([[1, 2]]), torch.tensor([[4, 5, 6]])
    for rule in ("rejection", "topk"):
        inputs = (rule, logits, drafts, torch.tensor([2]), *columns, positions, None, 3, 0.05, 0)
        expected = fixed._accept(*inputs)
        found = fixed._accept._backend_fns["cuda"](*inputs)
        assert [one.tolist() for one in expected] == [one.tolist() for one in found]
