"""Integer division as specs mean it, rounding down, where Triton's rounds towards zero as C's does.

Floor: no bytes. Reading: Python's own `//` and `%`; exact.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def floor_divide(value, by):
    """Divide and round down; `by` is not 0."""
    rest = value % by
    return value // by - ((rest != 0) & ((rest < 0) != (by < 0))).to(tl.int32)


@triton.jit
def floor_modulo(value, by):
    """Give what rounding down leaves, with the sign of `by`, which is not 0."""
    rest = value % by
    return rest + by * ((rest != 0) & ((rest < 0) != (by < 0))).to(tl.int32)
