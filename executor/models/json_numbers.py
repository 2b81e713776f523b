"""Numbers of a published JSON object, read with errors that name file and key."""

from __future__ import annotations

import json
from typing import Any

from fsm_spec.errors import UserError


class NumberReader:
    """Read numbers of a JSON object; raises UserError that names file and key."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def count(self, key: str, default: int | None = None) -> int:
        """Read a positive integer; null means the default."""
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f'{self.where}: "{key}" has to be a positive integer, not {json.dumps(value)}.')
        return value

    def number(self, key: str, default: float) -> float:
        """Read a positive number; null means the default."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise UserError(f'{self.where}: "{key}" has to be a positive number, not {json.dumps(value)}.')
        return float(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Read a list of positive numbers."""
        value = self.values.get(key)
        items = value if isinstance(value, list) else []
        if not items or not all(isinstance(item, int | float) and item > 0 for item in items):
            raise UserError(
                f'{self.where}: "{key}" has to be a list of positive numbers, not {json.dumps(value)}.'
            )
        return tuple(float(item) for item in items)
