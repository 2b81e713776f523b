"""How many threads torch takes on a machine that others use too.

Threads that share a core wait for each other at the end of every matrix product, so that one too many costs more than
all of them gain.
"""

from __future__ import annotations

import os

MOST_THREADS = 1024


def default_threads() -> int:
    """Give OMP_NUM_THREADS where it is a number above 0; else the cores that the load average leaves, at least 1.

    The load average is that of the last minute, rounded; a system without one counts as idle.
    """
    # OpenMP allows a list, a number for each level of nesting; torch has one level.
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if given.isascii() and given.isdigit() and int(given) > 0:
        return min(int(given), MOST_THREADS)
    return min(max(_cores() - _load(), 1), MOST_THREADS)


def _cores() -> int:
    """Count the cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows
        return os.cpu_count() or 1


def _load() -> int:
    """Give the load average of the last minute, rounded; 0 where the system has none."""
    try:
        return round(os.getloadavg()[0])
    except (AttributeError, OSError):  # Windows; a container without /proc
        return 0
