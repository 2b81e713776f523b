"""The `capture` operator: the hidden states of rows, as they stand or along a path through them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fsm_spec.kernels.tree import NO_NODE


def capture(states: Tensor, path: Tensor | None = None) -> Tensor:
    """Give the states [n, r, width] of r rows, or those of the rows that `path` int64 [n, p] names -> [n, p, width].

    A path ends at NO_NODE; what stands behind its end is 0.
    """
    if path is None:
        return states
    index = path.clamp(min=0).unsqueeze(2).expand(-1, -1, states.shape[2])
    return states.gather(1, index).masked_fill_((path == NO_NODE).unsqueeze(2), 0.0)


def capture_plain(states: Sequence[Sequence[float]], path: Sequence[int] | None = None) -> list[list[float]]:
    """Give the states of one request as `capture` does, in plain Python."""
    if path is None:
        return [list(state) for state in states]
    return [[0.0] * len(states[0]) if row == NO_NODE else list(states[row]) for row in path]
