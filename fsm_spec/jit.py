"""Compile functions with numba, kept on disk for as long as no source that they may call has changed.

numba looks at a function's own file only, so that code compiled into another file's functions would outlive a change;
here the digest of all these files is part of each name in the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import numba

_SOURCES: Final = ("policy", "jit", "hash_set", "interleaved", "compiled", "paths")


def _digest() -> str:
    """Digest the sources of all compiled functions."""
    folder = Path(__file__).parent
    found = hashlib.sha256()
    for name in _SOURCES:
        file = folder / f"{name}.py"
        # Packed into one file, a program's sources never change.
        found.update(file.read_bytes() if file.is_file() else b"")
    return found.hexdigest()[:12]


_DIGEST: Final = _digest()


def jit(**options: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - numba's functions have no type
    """Give a decorator that compiles a function; `options` are numba's.

    What runs lets other threads run, so that an interrupt is heard (`interrupt.py`).
    """

    def decorate(function: Any) -> Any:  # noqa: ANN401 - see above
        function.__qualname__ = f"{function.__qualname__}_{_DIGEST}"
        return numba.njit(cache=True, nogil=True, **options)(function)

    return decorate


def compiled(function: Any, name: str, **inner: Any) -> Any:  # noqa: ANN401 - see above
    """Compile a plain function under a name of its own; `inner` gives the compiled functions that it calls."""
    clone = FunctionType(function.__code__, {**function.__globals__, **inner}, name)
    clone.__module__ = function.__module__
    clone.__qualname__ = name
    return jit()(clone)
