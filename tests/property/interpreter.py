"""Triton's interpreter, made quicker: it looks through all of Triton's language anew at every call between kernels."""

from __future__ import annotations

from typing import Any


def look_once() -> None:
    """Let a call of one function under `triton.jit` from another keep what the launch has prepared.

    A launch replaces the language for its kernel; what the standard library uses is replaced at its first call.
    That saves a third of the interpreter's time. Does nothing where Triton is another than it was written for.
    """
    import triton  # noqa: PLC0415 -- decides when imported whether kernels are interpreted
    import triton.language as tl  # noqa: PLC0415
    from triton.runtime import interpreter  # noqa: PLC0415

    if not triton.__version__.startswith("3.6."):
        return
    prepared: set[str] = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 -- a function of any kind
        names = self.fn.__globals__
        if tl not in names.values() and names["__name__"] not in prepared:
            interpreter._patch_lang(self.fn)
            prepared.add(names["__name__"])
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
