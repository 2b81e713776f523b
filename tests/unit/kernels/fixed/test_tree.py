"""Growing trees in fixed shapes gives the trees of the readings, ties included."""

from __future__ import annotations

import torch
from dense_batches import Batch, batches
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.fixed.tree import grow_best, grow_newest, nodes_of
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.kernels.tree import Tree
from fsm_spec.kernels.tree import grow_best as best_reading
from fsm_spec.kernels.tree import grow_newest as newest_reading


def whole(batch: Batch) -> torch.Tensor:
    """Return the logits without poison: all rows of a tree are read."""
    return batch.logits.nan_to_num(nan=0.5)


@settings(derandomize=True, max_examples=80, deadline=None)
@given(batches, st.integers(1, 4), st.integers(0, 2**20))
def test_best_equals_the_reading(batch: Batch, top: int, choice: int) -> None:
    """Another candidate would be another tree, and another row of the verifier."""
    logits = whole(batch)
    top = min(top, logits.shape[2] - 1)
    size = 1 + choice % min(24, sum(top**depth for depth in range(logits.shape[1] + 1)))
    root = batch.tokens(len(logits))
    found = grow_best(logits, root, batch.columns, top, size, exclude=batch.exclude)
    expected = best_reading(logits, root, batch.bounded, top, size, exclude=batch.exclude)
    for one, other in zip(nodes_of(expected), nodes_of(found), strict=True):
        assert torch.equal(one, other)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(batches, st.integers(1, 4))
def test_levels_equal_the_reading(batch: Batch, top: int) -> None:
    """Level after level, pools and the rows that nodes hang on are the reading's."""
    logits = whole(batch)
    top = min(top, logits.shape[2] - 1)
    room = 1 + top * 3
    pool = other = Tree.rooted(batch.tokens(len(logits)), room, logits.dtype)
    for level in range(3):
        width = top if level else 1
        part = logits[:, :1].roll(level, 2).repeat(1, width, 1)
        part[:, -1] += 0.5
        pool, rows = newest_reading(part, pool, batch.bounded, top, exclude=batch.exclude)
        other, others = grow_newest(part, other, batch.columns, top, exclude=batch.exclude)
        assert torch.equal(rows, others)
        for one, two in zip(nodes_of(pool), nodes_of(other), strict=True):
            assert torch.equal(one, two)


def test_padded_pools_are_harmless() -> None:
    """A padded request's count may be anything; an index out of bounds would end the process on a GPU."""
    pool = Tree.rooted(torch.zeros(2, dtype=torch.int64), 5)
    odd = Tree(pool.tokens, pool.parents, pool.depths, pool.scores, torch.tensor([0, 2**40]))
    columns = SamplingColumns.of([SamplingParams()] * 2, [0, 1])
    grown, rows = grow_newest(torch.randn(2, 2, 7), odd, columns, 2)
    assert (2, 5) == grown.tokens.shape
    assert (2, 2) == rows.shape
