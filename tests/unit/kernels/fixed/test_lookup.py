"""The lookup operator in fixed shapes finds what the reading finds in texts of any length."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.fixed.lookup import lookup
from fsm_spec.kernels.lookup import lookup as reading


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=14), min_size=1, max_size=4),
    st.integers(0, 5),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(-1, 3),
)
def test_equals_the_reading(texts: list[list[int]], size: int, shortest: int, more: int, poison: int) -> None:
    """Padding that is read would draft from a text that the request does not have."""
    most = max(1, *(len(text) for text in texts)) + 2
    padded = torch.tensor([text + [poison] * (most - len(text)) for text in texts])
    lengths = torch.tensor([len(text) for text in texts])
    found = lookup(padded, lengths, size, shortest, shortest + more)
    expected = reading(texts, size, shortest, shortest + more)
    assert [one.tolist() for one in expected] == [one.tolist() for one in found]


def test_lengths_are_checked() -> None:
    """As in the reading, n-grams need a length."""
    with pytest.raises(ValueError, match="n-gram lengths are 0 to 2"):
        lookup(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, dtype=torch.int64), 1, 0, 2)
