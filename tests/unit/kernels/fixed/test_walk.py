"""Walking trees in fixed shapes ends where the readings end, whatever stands in dead nodes."""

from __future__ import annotations

import pytest
import torch
from dense_batches import Batch, batches
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.choose import CounterChooser
from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.fixed.walk import walk
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.kernels.tree import Tree
from fsm_spec.kernels.walk import WALK_RULES
from fsm_spec.kernels.walk import walk as reading


@settings(derandomize=True, max_examples=200, deadline=None)
@given(batches, st.sampled_from(WALK_RULES))
def test_equals_the_reading(batch: Batch, rule: str) -> None:
    """Another verdict on one child would change the output law."""
    tree, deepest = batch.trees(), batch.logits.shape[1] - 1
    found = walk(rule, batch.logits, tree, batch.columns, batch.positions, deepest, exclude=batch.exclude)
    expected = reading(
        rule,
        batch.logits,
        tree,
        batch.bounded,
        torch.tensor(batch.seeds),
        batch.positions,
        CounterChooser(),
        deepest,
        exclude=batch.exclude,
    )
    assert [one.tolist() for one in expected] == [one.tolist() for one in found]


def test_unknown_rule_is_named() -> None:
    """A rule that does not exist must not become another one."""
    columns, tree = SamplingColumns.of([SamplingParams()], [0]), Tree.rooted(torch.tensor([0]), 1)
    with pytest.raises(ValueError, match="unknown walk rule 'greedy'; give one of match, residual"):
        walk("greedy", torch.zeros(1, 1, 2), tree, columns, torch.zeros(1, 1, dtype=torch.int64), 0)
