"""Nearest right words, so that a misspelt name is answered with the one that was meant."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """Give `; did you mean "verify"?`, else `; known: a, b`, else `; there are none`."""
    names = sorted(known)
    folded = {name.casefold(): name for name in names}
    close = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    if close:
        return f'; did you mean "{folded[close[0]]}"?'
    return f"; known: {', '.join(names)}" if names else "; there are none"
