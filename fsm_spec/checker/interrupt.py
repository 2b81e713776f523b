"""Ctrl-C during compiled code: a thread hears it at once, tells what is known, and ends the process.

Compiled code does not look for Python's interrupts, and a search may run for minutes. Python's own handler in C
writes the signal to a pipe in any case, and the compiled loops let other threads run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

INTERRUPTED: Final = 130  # 128 + SIGINT, as shells report it


@contextmanager
def interruptible(tell: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C call `tell` and end the process with the code 130, whatever runs; as it was afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, written = os.pipe()
    os.set_blocking(written, False)
    handler = signal.signal(signal.SIGINT, lambda *_: None)
    wakeup = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(heard, tell), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGINT, handler)
        os.close(written)
        watcher.join()
        os.close(heard)


def _watch(heard: int, tell: Callable[[], None]) -> None:
    """Wait for a signal, or for the end of what is watched."""
    while signals := os.read(heard, 1):
        if signals[0] == signal.SIGINT:
            tell()
            sys.stdout.flush()
            os._exit(INTERRUPTED)
