"""The operators of fixed shapes by name."""

from __future__ import annotations

from fsm_spec.kernels.fixed.operators import FIXED_OPERATORS
from fsm_spec.kernels.operators import OPERATORS


def test_names() -> None:
    """Each operator has a form of fixed shapes, or a spec could not run on a device."""
    assert list(OPERATORS) == list(FIXED_OPERATORS)
