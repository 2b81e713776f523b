"""Values of a published JSON object, read with errors that name file, key, and what stands there."""

from __future__ import annotations

import json
import math
from typing import Any

from fsm_spec.errors import UserError

# No count of a published model comes near it; larger ones would only fail later, and less clearly.
_MOST = 2**31 - 1


class NumberReader:
    """Read values of a JSON object; raises UserError that names file and key."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def refuse(self, key: str, expected: str) -> UserError:
        """Make the error for a value that is not what is expected."""
        found = json.dumps(self.values.get(key))
        if len(found) > 60:
            found = f"{found[:60]}..."
        return UserError(f'{self.where}: "{key}" has to be {expected}, not {found}.')

    def count(self, key: str, default: int | None = None) -> int:
        """Read a positive integer; null means the default."""
        value = self.values.get(key)
        if value is None and default is not None:
            # A default may follow from other keys, and be as wrong as they are.
            if default < 1:
                raise UserError(
                    f'{self.where}: "{key}" would be {default}; fix the numbers that it follows from.'
                )
            return default
        if type(value) is not int or not 1 <= value <= _MOST:
            raise self.refuse(key, "a positive integer")
        return value

    def optional_count(self, key: str) -> int | None:
        """Read a positive integer, or null."""
        return None if self.values.get(key) is None else self.count(key)

    def number(self, key: str, default: float) -> float:
        """Read a positive number; null means the default."""
        value = self.values.get(key)
        if value is None:
            return default
        if not _is_positive(value):
            raise self.refuse(key, "a positive number")
        return float(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Read a list of positive numbers."""
        value = self.values.get(key)
        items = value if isinstance(value, list) else []
        if not items or not all(map(_is_positive, items)):
            raise self.refuse(key, "a list of positive numbers")
        return tuple(float(item) for item in items)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Read true or false; null means the default."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def token(self, key: str) -> int | None:
        """Read a token id; null, or a negative number, means that there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if type(value) is not int or value > _MOST:
            raise self.refuse(key, "a token id")
        return value if value >= 0 else None

    def tokens(self, key: str) -> tuple[int, ...]:
        """Read a token id or a list of them; null, or negative numbers, mean that there is none."""
        value = self.values.get(key)
        items = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(item) is int and item <= _MOST for item in items):
            raise self.refuse(key, "a token id or a list of them")
        return tuple(item for item in items if item >= 0)

    def object(self, key: str) -> dict[str, Any] | None:
        """Read an object of its own, or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.refuse(key, "an object or null")
        return value


def _is_positive(value: object) -> bool:
    """Tell a finite number above 0, which JSON as Python reads it may not be."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value < 1e300 and math.isfinite(value)
