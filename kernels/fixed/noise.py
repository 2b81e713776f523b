"""Input ids of noise rows in fixed shapes: the op `noise_ids`; the draw is that of `executor/block.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from fsm_spec.kernels.randomness import Purpose, uniform


@torch.library.custom_op("fsm_spec::noise_ids", mutates_args=())
def noise_ids(seeds: Tensor, positions: Tensor, low: int, high: int) -> Tensor:
    """Draw ids uniformly from low .. high - 1, named by seed and position: int64 [n], [n, r] -> int64 [n, r].

    About 150 integer operations a row: no work beside a forward's.
    """
    named = seeds.unsqueeze(1).expand_as(positions).contiguous()
    numbers = uniform(named, positions.contiguous(), Purpose.NOISE)
    return low + (numbers * (high - low)).long()


@noise_ids.register_fake
def _(seeds: Tensor, positions: Tensor, low: int, high: int) -> Tensor:  # noqa: ARG001 -- the op's signature
    return torch.empty(positions.shape, dtype=torch.int64, device=positions.device)
