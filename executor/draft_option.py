"""The option that names draft models, as `generate` and `serve` take it."""

from __future__ import annotations

from collections.abc import Sequence

from fsm_spec.errors import UserError


def draft_places(texts: Sequence[str]) -> dict[str, str]:
    """Read `NAME=FOLDER`, each name once; raises UserError."""
    given: dict[str, str] = {}
    for text in texts:
        name, equals, place = text.partition("=")
        if not (name and equals and place):
            raise UserError(f"--draft {text} is unknown; write NAME=FOLDER")
        given[name] = place
    return given
