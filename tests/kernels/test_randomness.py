"""The counter-based numbers of a kernel are those of the host, bit for bit."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fsm_spec.kernels.randomness import Purpose, uniform
from fsm_spec.kernels.triton.randomness import uniform as uniform_of_kernel


@triton.jit  # type: ignore[untyped-decorator]
def _draw(seeds, positions, numbers, PURPOSE: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202, N803 -- a kernel
    each = tl.arange(0, N)
    number = uniform_of_kernel(tl.load(seeds + each), tl.load(positions + each), PURPOSE)
    tl.store(numbers + each, number)


def test_equals_the_reading() -> None:
    """Another number for one key would give a request other tokens on another machine."""
    generator = torch.Generator().manual_seed(1)
    seeds, positions = torch.randint(-(2**63), 2**63 - 1, (2, 64), generator=generator)
    seeds[:3], positions[:3] = torch.tensor([0, -1, 2**40]), torch.tensor([0, -1, 2**35 + 5])
    for purpose in Purpose:
        numbers = torch.empty(64, dtype=torch.float64)
        _draw[(1,)](seeds, positions, numbers, PURPOSE=int(purpose), N=64)
        assert torch.equal(uniform(seeds, positions, purpose), numbers)
