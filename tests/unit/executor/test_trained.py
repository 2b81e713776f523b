"""Parameters that follow from a model's block: what wins over them, and sizes that a spec cannot take."""

from __future__ import annotations

import pytest

from fsm_spec.executor.trained import trained_settings
from fsm_spec.load import load
from fsm_spec.policy import Policy
from fsm_spec.policy_file import load_policy

PLAIN = Policy()


@pytest.mark.parametrize(
    ("spec", "block_size", "expected"),
    [
        ("isd", None, {}),
        ("isd", 3, {"n": 4}),
        ("isd", 1, {"n": 2}),
        ("isd", 32, {"n": 16}),
        ("sdar", 4, {"b": 4}),
        ("linear_spec", 1, {"b": 2}),
        ("ar", 4, {}),
        ("uno_linear", 8, {}),
    ],
)
def test_a_block_gives_what_the_spec_says(
    spec: str, block_size: int | None, expected: dict[str, int]
) -> None:
    """One more where masks follow a clean token; the nearest that the range has; nothing where nothing is said."""
    assert expected == trained_settings(load(spec).spec, {}, PLAIN, block_size)


def test_the_user_and_the_policy_win() -> None:
    """A size that someone chose is never replaced; others stay beside it."""
    spec = load("linear_spec").spec
    assert {"b": 8} == trained_settings(spec, {"b": 8}, PLAIN, 32)
    assert {} == trained_settings(spec, {}, load_policy("tiers"), 16)
    assert {"threshold": 700, "b": 16} == trained_settings(load("sdar").spec, {"threshold": 700}, PLAIN, 16)
