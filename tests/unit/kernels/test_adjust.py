"""Adjusted logits: tensors give what the plain reading gives, and each part does what its source says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsm_spec.kernels.adjust import Adjustment, adjust, adjust_plain

WIDTH = 6
tokens = st.lists(st.integers(0, WIDTH - 1), max_size=8)
numbers = st.floats(-4, 4, width=32)


def adjusted(
    logits: list[float], wanted: Adjustment, prompt: list[int], output: list[int], allowed: list[bool] | None
) -> list[float]:
    """Return the logits that `adjust` leaves, in float64."""
    row = torch.tensor(logits, dtype=torch.float64)
    mask = None if allowed is None else torch.tensor(allowed)
    adjust(row, wanted, np.array(prompt, np.int64), np.array(output, np.int64), mask)
    return list(row.tolist())


@given(
    logits=st.lists(numbers, min_size=WIDTH, max_size=WIDTH),
    wanted=st.builds(
        Adjustment,
        numbers,
        numbers,
        st.floats(0.5, 2),
        st.dictionaries(st.integers(0, WIDTH - 1), numbers, max_size=3).map(lambda bias: tuple(bias.items())),
    ),
    prompt=tokens,
    output=tokens,
    allowed=st.none() | st.lists(st.booleans(), min_size=WIDTH, max_size=WIDTH),
)
def test_tensors_and_plain_reading_agree(
    logits: list[float], wanted: Adjustment, prompt: list[int], output: list[int], allowed: list[bool] | None
) -> None:
    """Two ways to say the same."""
    plain = adjust_plain(logits, wanted, prompt, output, allowed)
    assert plain == pytest.approx(adjusted(logits, wanted, prompt, output, allowed), abs=1e-9)


def test_each_part() -> None:
    """Penalties count generated tokens; repetition reads the prompt too; bias and mask come last."""
    logits = [1.0, -1.0, 1.0, 0.0]
    assert [1.0, -1.0, -1.5, 0.0] == adjusted(logits, Adjustment(0.5, 1.0), [0, 0], [2, 2], None)
    assert [0.5, -2.0, 1.0, 0.0] == adjusted(logits, Adjustment(repetition=2.0), [0], [1], None)
    assert [1.0, -1.0, 1.0, 7.0] == adjusted(logits, Adjustment(bias=((3, 7.0),)), [], [], None)
    masked = adjusted(logits, Adjustment(bias=((0, 9.0),)), [], [], [False, True, True, True])
    assert [-math.inf, -1.0, 1.0, 0.0] == masked


def test_the_default_changes_nothing() -> None:
    """Requests that ask for nothing are known by their value."""
    assert [0.5, 2.0] == adjusted([0.5, 2.0], Adjustment(), [0], [1], None)
    assert not Adjustment().reads_text
    assert Adjustment(frequency=0.1).reads_text
