"""Compile functions with numba, kept on disk for as long as no source that they may call has changed.

numba looks at a function's own file only, so that code compiled into another file's functions would outlive a change;
here the digest of all these files is part of each name in the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import FunctionType
from typing import Any, Final

import numba

from fsm_spec.notice import announce_compiles

announce_compiles()

_SOURCES: Final = (
    "decision",
    "jit",
    "checker/places",
    "checker/hash_set",
    "checker/interleaved",
    "checker/rounds",
    "checker/compiled",
    "checker/paths",
)


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

    `sources` are the files outside this package whose functions it is or calls. What runs lets other threads run, so
    that an interrupt is heard (`checker/interrupt.py`).
    """

    def decorate(function: Any) -> Any:  # noqa: ANN401 - see above
        function.__qualname__ = f"{function.__qualname__}_{_digest(sources)}"
        return numba.njit(cache=True, nogil=True, **options)(function)

    return decorate


def compiled(function: Any, name: str, *, sources: tuple[str, ...] = (), **inner: Any) -> Any:  # noqa: ANN401 - see above
    """Compile a plain function under a name of its own; `inner` gives the compiled functions that it calls."""
    clone = FunctionType(function.__code__, {**function.__globals__, **inner}, name)
    clone.__module__ = function.__module__
    clone.__qualname__ = name
    return jit(sources=sources)(clone)


@jit()
def where(condition, yes, no):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - numba infers types
    """Choose without a branch in the caller, as numpy's does."""
    return yes if condition else no


@jit()
def minimum(left, right):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - numba infers types
    """Give the smaller one, as numpy's does."""
    return min(left, right)


@jit()
def maximum(left, right):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - numba infers types
    """Give the larger one, as numpy's does."""
    return max(left, right)


def generated(text: str, name: str, constants: Mapping[str, int], signature: Any) -> Any:  # noqa: ANN401 - see above
    """Compile a function from generated text, kept on disk under the digest of the text; gives numba's callback.

    The text may call `where`, `minimum` and `maximum`, and name `constants`. One signature makes functions of all
    texts interchangeable, so that what calls them is compiled once.
    """
    scope = {"where": where, "minimum": minimum, "maximum": maximum, **constants, "__name__": __name__}
    file = _kept(text)
    # Generated from parsed expressions, never from a spec's own words.
    exec(compile(text, str(file or f"<{name}>"), "exec"), scope)  # noqa: S102 - see above
    return numba.cfunc(signature, cache=file is not None, error_model="numpy")(scope[name])


def _kept(text: str) -> Path | None:
    """Write generated text where numba keeps what it compiles for this package; None where nothing can be written.

    numba asks for a file that has not changed since, so a text is written once, under its digest.
    """
    digest = hashlib.sha256(f"{_digest(())}{text}".encode()).hexdigest()[:24]
    given = getattr(numba.config, "CACHE_DIR", "")
    for folder in (Path(given or Path(__file__).parent / "__pycache__"), _home()):
        file = folder / "generated" / f"step_{digest}.py"
        try:
            if not file.is_file():
                file.parent.mkdir(parents=True, exist_ok=True)
                with NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as new:
                    new.write(text)
                Path(new.name).replace(file)
        except OSError:
            continue
        return file
    return None


def _home() -> Path:
    """Give a folder of the user's, for an installation that only others may write."""
    return Path.home() / ".cache" / "fsm-spec"
