"""Words that depend on a number."""

from __future__ import annotations

from fsm_spec.wording import counted


def test_counts_take_the_right_form() -> None:
    """One takes the singular, all others the plural, irregular ones too; large counts are grouped."""
    assert ["0 steps", "1 step", "2,500 steps"] == [counted(count, "step") for count in (0, 1, 2500)]
    assert "1 property, 2 properties" == ", ".join(
        counted(count, "property", "properties") for count in (1, 2)
    )
