"""The kernel that reads input ids against its torch form."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.fixed.gather import gather_ids_fixed
from fsm_spec.kernels.triton.gather import gather_ids


@given(st.integers(1, 100), st.integers(0, 2**16))
@settings(max_examples=15)
def test_ids_equal_the_reading(count: int, seed: int) -> None:
    """More than one block of ids, starts before and behind a line, masked places, and what is no token."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(-3, 12, (6, 7), generator=generator)
    lines = torch.randint(0, 6, (4,), generator=generator)
    start = torch.randint(-4, 9, (4,), generator=generator)
    expected = gather_ids_fixed(source, lines, start, count, 8, 10)
    assert expected.equal(gather_ids(source, lines, start, count, 8, 10))
