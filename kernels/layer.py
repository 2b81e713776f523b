"""What a transformer's layer does between its products with weights: the norm, and the rotary embedding.

The ops for a device stand in `kernels/fixed/layer.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor


def normed(lines: Tensor, weight: Tensor, floor: Tensor) -> Tensor:
    """Apply RMSNorm (arXiv:1910.07467) to the last dimension, of n elements: x / sqrt(|x|^2 + floor^2) * weight.

    weight [n] is the norm's times sqrt(n), floor [] is sqrt(n * eps). Four launches, where the operator of torch takes
    seven on a CPU.
    """
    length = torch.linalg.vector_norm(lines, dim=-1, keepdim=True)
    result: Tensor = (lines / length.hypot_(floor)).mul_(weight)
    return result


def turn(lines: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn queries and keys [T, n, head_dim] to their positions, in place (RoPE, arXiv:2104.09864).

    The halves of a head are turned against each other; cos and sin have the lines' shape, sin minus in its first half.
    """
    halves = lines.unflatten(2, (2, lines.shape[2] // 2)).flip(2).flatten(2)
    lines.mul_(cos).addcmul_(halves, sin)


def turn_heads(lines: Tensor, cos: Tensor, sin: Tensor, norms: list[Tensor], kv_heads: int) -> None:
    """Norm queries and keys, if there are norms, then turn them, in place: lines [T, heads + 2 * kv_heads, head_dim].

    norms are none, or weight and floor of the queries' norm, then of the keys'.
    """
    keys, values = lines.shape[1] - 2 * kv_heads, lines.shape[1] - kv_heads
    if norms:
        lines[:, :keys] = normed(lines[:, :keys], norms[0], norms[1])
        lines[:, keys:values] = normed(lines[:, keys:values], norms[2], norms[3])
    turn(lines[:, :values], cos, sin)
