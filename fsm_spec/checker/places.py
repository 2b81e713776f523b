"""What stands where in the arrays of a packed composition, and the plain numbers in them.

Compiled code reads plain arrays by place: `packed.py` and the files beside it write what `rounds.py` and
`interleaved.py` (actions) read.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Most requests that a word holds.
MOST_REQUESTS: Final = 16
# Codes of local states that every packing by rounds has: a request that has not arrived, and one that has ended.
ABSENT_CODE, ENDED_CODE = 0, 1
# Kinds of local states.
ABSENT, WAITING, PREFILLING, RUNNING, ENDED = range(5)
# A late host waits before it takes requests away or pages from them; or before every plan, which may choose a size.
LANDS_TO_TAKE, LANDS_ALWAYS = 1, 2
# The target of a way that leads nowhere.
LOST: Final = -1
# Two counts in one integer: the first below this bit, the second above.
HALF: Final = 32
LOW: Final = (1 << HALF) - 1


class Settings(NamedTuple):
    """Hold the settings of a composition."""

    requests: int
    bits: int
    page_bits: int
    symmetry: int
    abort: int
    admission: int
    pool_pages: int
    page_size: int
    grow: int
    mixed: int
    budget: int
    max_running: int
    ended_code: int
    pool_bit: int
    slots_bit: int
    # When a late host waits for the round in flight; 0 where nothing is late.
    lands: int = 0
    # Bits of what the arrival of a request breaks that no empty pool could hold.
    arrival_faults: int = 0


(REQUESTS, BITS, PAGE_BITS, SYMMETRY, ABORT, ADMISSION, POOL_PAGES, PAGE_SIZE, GROW, MIXED, BUDGET, MAX_RUNNING,
 ENDED_AS, POOL_BIT, SLOTS_BIT, LANDS, ARRIVAL_FAULTS) = range(len(Settings._fields))  # fmt: skip
# From here on, by running requests: where the facts and lists of the tier's table begin.
TIERS: Final = len(Settings._fields)


class Local(NamedTuple):
    """Hold what is known of a local state."""

    status: int = 0
    longest: int = 0
    pages: int = 0
    need: int = 0
    left: int = 0
    rows: int = 0
    take: int = 0
    fill: int = 0
    # The code of the same request once the host has seen it as it is.
    sees: int = 0
    # Where an abort leads (-1: no row says where), and the properties it breaks.
    aborted: int = ENDED_CODE
    abort_faults: int = 0


STATUS, LONGEST, PAGES, NEED, LEFT, ROWS, TAKE, FILL, SEES, ABORTED, ABORT_FAULTS = range(len(Local._fields))
# Where requests move one action at a time, pages and living requests of a local state stand in one integer.
WEIGHT: Final = NEED

# Options of a request in an iteration.
TARGET, USED, FAULTS, SHOWS = range(4)
# What is enabled for a local state in a context, where requests move one action at a time.
BOUNDS, ENABLED_FAULTS, ENABLED_SHOWS, STIRS = range(4)

# Rows of scratch space, which `rounds.py` names.
SCRATCH_ROWS: Final = 17
