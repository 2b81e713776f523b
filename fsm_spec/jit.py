"""Compile functions with numba, kept on disk for as long as no source that they may call has changed.

numba looks at a function's own file only, so that code compiled into another file's functions would outlive a change;
here the digest of all these files is part of each name in the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import numba

_SOURCES: Final = ("policy", "jit", "hash_set", "interleaved", "compiled", "paths")


@cache
def _digest(sources: tuple[str, ...]) -> str:
    """Digest the sources of all compiled functions of this package, and those of other files."""
    folder = Path(__file__).parent
    found = hashlib.sha256()
    for file in (*(folder / f"{name}.py" for name in _SOURCES), *map(Path, sources)):
        # Packed into one file, a program's sources never change.
        found.update(file.read_bytes() if file.is_file() else b"")
    return found.hexdigest()[:12]


def jit(*, sources: tuple[str, ...] = (), **options: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - numba's functions have no type
    """Give a decorator that compiles a function; `options` are numba's.

    `sources` are the files outside this package whose functions it is or calls.
    """

    def decorate(function: Any) -> Any:  # noqa: ANN401 - see above
        function.__qualname__ = f"{function.__qualname__}_{_digest(sources)}"
        return numba.njit(cache=True, **options)(function)

    return decorate


def compiled(function: Any, name: str, *, sources: tuple[str, ...] = (), **inner: Any) -> Any:  # noqa: ANN401 - see above
    """Compile a plain function under a name of its own; `inner` gives the compiled functions that it calls."""
    clone = FunctionType(function.__code__, {**function.__globals__, **inner}, name)
    clone.__module__ = function.__module__
    clone.__qualname__ = name
    return jit(sources=sources)(clone)
