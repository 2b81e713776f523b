"""The counter-based numbers of `kernels/randomness.py` on a GPU: the same bits for the same key.

Floor: no bytes; ten rounds of two 32-bit products a number. It equals its reading, `kernels/randomness.py`, exactly.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def uniform(seed, position, purpose):
    """Draw one number in [0, 1) for an int64 seed and position -> float64 (Philox4x32-10)."""
    first = (position & 0xFFFFFFFF).to(tl.uint32)
    second = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = (position & 0).to(tl.uint32)
    third, fourth = zero + purpose, zero
    key_0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    key_1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    multiplier_0, multiplier_1 = zero + 0xD2511F53, zero + 0xCD9E8D57
    weyl_0, weyl_1 = zero + 0x9E3779B9, zero + 0xBB67AE85
    for _ in tl.static_range(10):
        high_0, low_0 = tl.umulhi(first, multiplier_0), first * multiplier_0
        high_1, low_1 = tl.umulhi(third, multiplier_1), third * multiplier_1
        first, second = high_1 ^ second ^ key_0, low_1
        third, fourth = high_0 ^ fourth ^ key_1, low_0
        key_0, key_1 = key_0 + weyl_0, key_1 + weyl_1
    bits = ((first >> 5).to(tl.int64) << 26) | (second >> 6).to(tl.int64)
    return bits.to(tl.float64) * 1.1102230246251565e-16  # 2 ** -53
