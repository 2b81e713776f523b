"""A weight for all rows and a low-rank update for gated ones, in fixed shapes: the op `gated_linear`.

The reading is `kernels/adapter.py`, the kernel of the update `kernels/triton/adapter.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


@torch.library.custom_op("fsm_spec::gated_linear", mutates_args=(), device_types="cpu")
def gated_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor, gate: Tensor
) -> Tensor:
    """Multiply rows with a weight, and add the low-rank update of the gated rows -> [T, outputs].

    x [T, inputs], weight [outputs, inputs], bias [outputs], down [rank, inputs], up [outputs, rank] with the
    adapter's scale in it, gate bool [T]. Rows without gate equal a product with the weight alone, bit for bit.
    """
    return gated_linear_fixed(x, weight, bias, down, up, gate)


@gated_linear.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,  # noqa: ARG001 -- the op's signature
    down: Tensor,  # noqa: ARG001
    up: Tensor,  # noqa: ARG001
    gate: Tensor,  # noqa: ARG001
) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def gated_linear_fixed(
    x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor, gate: Tensor
) -> Tensor:
    """Compute `gated_linear` in torch: the update is computed for all rows and taken by the gated ones."""
    base = functional.linear(x, weight, bias)
    update = functional.linear(functional.linear(x, down), up)
    # Not a product with the gate: adding zero turns -0 into 0, and an ungated row may hold an infinity.
    return torch.where(gate.unsqueeze(1), base + update, base)
