"""The kernels of the walk operator against their torch forms."""

from __future__ import annotations

import pytest
import torch
from dense_batches import Batch, cheap_batches
from hypothesis import given, settings

from fsm_spec.kernels.fixed import walk as fixed
from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.fixed.tree import nodes_of
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.kernels.tree import NO_NODE, Tree
from fsm_spec.kernels.triton.walk import walk
from fsm_spec.kernels.walk import WALK_RULES

BLOCK = 16


@pytest.mark.parametrize("rule", WALK_RULES)
@settings(derandomize=True, max_examples=3, deadline=None)
@given(batch=cheap_batches)
def test_equals_the_torch_form(rule: str, batch: Batch) -> None:
    """Another verdict on one child would change the output law."""
    tree, deepest = batch.trees(), batch.logits.shape[1] - 1
    inputs = (batch.logits, tree, batch.columns, batch.positions, deepest, batch.exclude)
    expected = (fixed.match_torch if rule == "match" else fixed.residual_torch)(*inputs)
    found = walk(rule, *inputs, block=BLOCK)
    assert [one.tolist() for one in expected] == [one.tolist() for one in found]


@pytest.mark.parametrize("rule", WALK_RULES)
def test_siblings_and_depth(rule: str) -> None:
    """Over many seeds, second children, repeated tokens, corrections and bonus tokens are what torch gives."""
    n = 6
    tree = Tree(
        torch.tensor([[0, 1, 1, 2, 0, 1]]).expand(n, -1),
        torch.tensor([[NO_NODE, 0, 0, 0, 3, 4]]).expand(n, -1),
        torch.tensor([[0, 1, 1, 1, 2, 3]]).expand(n, -1),
        torch.zeros(n, 6),
        torch.full((n,), 6),
    )
    logits = torch.tensor([[0.5, 0.7, 1.0, -1.0]]).half().expand(n, 6, 4)
    columns = SamplingColumns.of([SamplingParams(1.0)] * n, list(range(n)))
    inputs = (logits, tree, columns, tree.depths.contiguous(), 3, None)
    expected = (fixed.match_torch if rule == "match" else fixed.residual_torch)(*inputs)
    found = walk(rule, *inputs, block=2)
    assert [one.tolist() for one in expected] == [one.tolist() for one in found]
    assert {1, 2} <= set((found[0] != NO_NODE).sum(1).tolist())


def test_op_on_a_gpu_calls_the_kernels() -> None:
    """Its arguments reach the kernels in the order of the op."""
    columns = SamplingColumns.of([SamplingParams(0.8)], [5])
    logits = torch.randn(1, 2, 9, generator=torch.Generator().manual_seed(2))
    tree = Tree(
        *(torch.tensor([[0, 3]]), torch.tensor([[-1, 0]]), torch.tensor([[0, 1]])),
        logits[:, :, 0],
        torch.tensor([2]),
    )
    for rule in WALK_RULES:
        inputs = (rule, logits, *nodes_of(tree), *columns, torch.tensor([[4, 5]]), 1, 0)
        found = fixed._walk._backend_fns["cuda"](*inputs)
        assert [one.tolist() for one in fixed._walk(*inputs)] == [one.tolist() for one in found]
