"""Files that a command writes where its user says."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fsm_spec.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def writing(path: Path, option: str = "") -> Iterator[None]:
    """Raise UserError where the file cannot be written; `option` is what names another place."""
    try:
        yield
    except OSError as error:
        where = f" with {option}" if option else ""
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}; give another place{where}"
        ) from error
