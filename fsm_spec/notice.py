"""One line on a terminal when code is being compiled: a first run would else stand still without a word."""

from __future__ import annotations

import sys
import threading
import time

from numba.core.event import Event, Listener, register

# Seconds of compiling, in all, after which it is worth a line.
PATIENCE = 1.0
LINE = "compiling for this machine; once, what is compiled is kept on disk ..."


class CompileNotice(Listener):
    """Print `LINE` to standard error once this process has compiled for `PATIENCE` seconds, if that is a terminal."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.said = False
        self._depth = 0
        self._started = 0.0
        self._timer: threading.Timer | None = None

    def on_start(self, event: Event) -> None:  # noqa: ARG002 -- numba's signature
        """Wait for the rest of the patience; functions compile those that they call inside."""
        self._depth += 1
        if self._depth == 1 and not self.said:
            self._started = time.monotonic()
            self._timer = threading.Timer(max(0.0, PATIENCE - self.spent), self._say)
            self._timer.daemon = True
            self._timer.start()

    def on_end(self, event: Event) -> None:  # noqa: ARG002 -- numba's signature
        """Stop waiting, and count what was spent."""
        self._depth -= 1
        if self._depth == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.spent += time.monotonic() - self._started

    def _say(self) -> None:
        self.said = True
        if sys.stderr.isatty():
            print(LINE, file=sys.stderr, flush=True)  # noqa: T201 -- the one line that this module is for


def announce_compiles() -> None:
    """Hear of every function that numba compiles in this process, not of those it reads from disk."""
    register("numba:compile", CompileNotice())  # type: ignore[no-untyped-call] # numba has no types
