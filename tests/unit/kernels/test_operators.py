"""The operators by name: every one has a plain reading."""

from __future__ import annotations

from fsm_spec.kernels.operators import OPERATORS, PLAIN
from fsm_spec.language.operators import OPERATORS as REGISTRY


def test_names() -> None:
    """Each operator that a spec can name has a batch reading and a plain one; those over a launch are no kernels."""
    assert {key for key, operator in REGISTRY.items() if not operator.batch} == set(OPERATORS)
    assert set(OPERATORS) == set(PLAIN)
