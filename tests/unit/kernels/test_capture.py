"""The capture operator: states of rows, and of the rows of a path."""

from __future__ import annotations

import torch

from fsm_spec.kernels.capture import capture, capture_plain
from fsm_spec.kernels.tree import NO_NODE


def test_batch_equals_plain() -> None:
    """A path names rows in its own order, and its end is filled with zeros."""
    states = torch.randn(2, 4, 3, dtype=torch.float64)
    path = torch.tensor([[0, 2, 3], [0, 1, NO_NODE]])
    whole, along = capture(states), capture(states, path)
    for line in range(2):
        assert whole[line].tolist() == capture_plain(states[line].tolist())
        assert along[line].tolist() == capture_plain(states[line].tolist(), path[line].tolist())
    assert [0.0] * 3 == along[1, 2].tolist()
