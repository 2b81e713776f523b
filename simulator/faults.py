"""Faults of options, gathered so that one run shows them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fsm_spec.errors import FsmSpecError, UserError

Part = TypeVar("Part")


class Faults:
    """Collect the sentences of all faults."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def take(self, make: Callable[[], Part]) -> Part | None:
        """Give what `make` gives, or None and note its fault."""
        try:
            return make()
        except FsmSpecError as error:
            self.note(str(error))
            return None

    def note(self, sentences: str) -> None:
        """Note faults, one a line, each once."""
        self.found += [line for line in sentences.splitlines() if line not in self.found]

    def raise_any(self) -> None:
        """Raise UserError with one line a fault."""
        if self.found:
            raise UserError("\n".join(self.found))
