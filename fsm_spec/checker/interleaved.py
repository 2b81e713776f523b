"""The compiled search where requests move one action at a time: what a request can do is looked up, not computed.

Which actions of a local state are enabled depends on the free pages and on how many requests live, and on nothing else.
`packed.py` lists them ahead for each such context, so that the loop only adds up pages, reads a list and writes words.
Successors of many states go to the hash set together, as their places in it can then be fetched at the same time.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: ANN001, ANN201, ANN202, ARG001, C901, PLR0912, PLR0913, PLR0915, PLR0917 - numba infers types, takes plain arguments

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fsm_spec.checker.hash_set import EMPTY, fill, mixed
from fsm_spec.checker.places import (
    ARRIVAL_FAULTS,
    BITS,
    BOUNDS,
    ENABLED_FAULTS,
    ENABLED_SHOWS,
    ENDED_AS,
    HALF,
    LOW,
    POOL_BIT,
    POOL_PAGES,
    REQUESTS,
    STIRS,
    SYMMETRY,
    WEIGHT,
)
from fsm_spec.jit import jit

Integers = NDArray[np.int64]

# States expanded before their successors are looked up: enough to hide the time that memory takes to answer.
BATCH: Final = 64
# Places in `progress`.
PROGRESS: Final = range(8)
COUNT, AT, MOVES, LEVEL, LEVEL_END, SHOWN, STUCK, TOUCHED = PROGRESS
PROPERTIES: Final = 63


@jit(inline="always")
def _replaced(word, index, value, requests, bits):
    """Put a value in place of one field of a word whose fields are in order, and keep them so."""
    field = (np.int64(1) << bits) - 1
    shift = index * bits
    below = word & ((np.int64(1) << shift) - 1)
    rest = below | ((word >> (shift + bits)) << shift)
    place = index
    while place < requests - 1 and (rest >> (place * bits)) & field < value:
        place += 1
    while place > 0 and (rest >> ((place - 1) * bits)) & field > value:
        place -= 1
    shift = place * bits
    below = rest & ((np.int64(1) << shift) - 1)
    return below | (value << shift) | ((rest >> shift) << (shift + bits))


@jit()
def _all_ended(settings):
    """Give the word in which every request has ended."""
    word = np.int64(0)
    for index in range(settings[REQUESTS]):
        word |= settings[ENDED_AS] << (index * settings[BITS])
    return word


@jit(inline="always")
def _expanded(word, settings, local, lists, changes, out, found):
    """Write the successors of a state to `out` from the place `found` on.

    `lists[context]` bounds the enabled actions of a local state in `changes` (code before xor code after). Gives the
    new end in `out`, the properties broken and those shown (bits), and whether an action other than an abort exists.
    """
    requests, bits, symmetry = settings[REQUESTS], settings[BITS], settings[SYMMETRY]
    field = (np.int64(1) << bits) - 1
    weight = np.int64(0)
    left = word
    for _ in range(requests):
        weight += local[np.uint64(left & field), WEIGHT]
        left >>= bits
    used, live = weight & LOW, weight >> HALF
    codes = len(local)
    # The last free count stands for all larger ones, the first for an over-committed pool.
    steps = len(lists) // (codes * (requests + 1))
    free = max(np.int64(0), min(settings[POOL_PAGES] - used + 1, steps - 1))
    context = (free * (requests + 1) + live) * codes
    broken = settings[POOL_BIT] if used > settings[POOL_PAGES] else np.int64(0)
    broken |= settings[ARRIVAL_FAULTS]
    shown, stirs = np.int64(0), np.int64(0)
    left = word
    shift = np.int64(0)
    for index in range(requests):
        code = left & field
        at = np.uint64(context + code)
        bounds = lists[at, BOUNDS]
        broken |= lists[at, ENABLED_FAULTS]
        shown |= lists[at, ENABLED_SHOWS]
        stirs |= lists[at, STIRS]
        begin, end = bounds & LOW, bounds >> HALF
        if found + end - begin > len(out):
            # Only their number counts: the caller comes again with more room.
            found += end - begin
            begin = end
        for action in range(begin, end):
            change = changes[np.uint64(action)]
            if symmetry:
                out[np.uint64(found)] = _replaced(word, index, code ^ change, requests, bits)
            else:
                out[np.uint64(found)] = word ^ (change << shift)
            found += 1
        left >>= bits
        shift += bits
    return found, broken, shown, stirs != 0


@jit()
def actions(word, settings, local, lists, changes, prefills, admits, arrivals, scratch, queue, out):
    """Give the successors of one state as `rounds.rounds` does; the arguments that only rounds need are not read."""
    found, broken, shown, stirs = _expanded(word, settings, local, lists, changes, out, 0)
    return found, broken, shown, not stirs and word != _all_ended(settings)


@jit()
def _advance(progress, states, table, levels, first, out, places, settings, local, lists, changes, most):
    """Search on, level by level, until all is searched, `most` states are found, or an array is too small.

    `out` holds the successors of a batch; tells whether a larger array is needed (states, table or levels).
    """
    count, at, moves = progress[COUNT], progress[AT], progress[MOVES]
    level, level_end = progress[LEVEL], progress[LEVEL_END]
    shown, stuck, touched = progress[SHOWN], progress[STUCK], progress[TOUCHED]
    mask = np.uint64(len(table) - 1)
    room = min(len(states), len(table) // 2) - len(out)
    ended = _all_ended(settings)
    full = False
    while at < count <= most:
        if at == level_end:
            level += 1
            if level == len(levels):
                level -= 1
                full = True
                break
            levels[level] = at
            level_end = count
        if count > room:
            full = True
            break
        stop = min(at + BATCH, level_end)
        found = 0
        while at < stop:
            word = states[np.uint64(at)]
            found, broken, shows, stirs = _expanded(word, settings, local, lists, changes, out, found)
            shown |= shows
            if broken:
                for bit in range(PROPERTIES):
                    if first[bit] < 0 and (broken >> bit) & 1:
                        first[bit] = at
            if not stirs and stuck < 0 and word != ended:
                stuck = at
            at += 1
        moves += found
        # Reads that do not wait for each other: the words of all successors are then near when they are compared.
        for index in range(found):
            place = mixed(out[np.uint64(index)]) & mask
            places[np.uint64(index)] = place
            touched ^= table[place]
        for index in range(found):
            word = out[np.uint64(index)]
            place = places[np.uint64(index)]
            while True:
                held = table[place]
                if held == word:
                    break
                if held == EMPTY:
                    table[place] = word
                    states[np.uint64(count)] = word
                    count += 1
                    break
                place = (place + np.uint64(1)) & mask
    progress[COUNT], progress[AT], progress[MOVES] = count, at, moves
    progress[LEVEL], progress[LEVEL_END] = level, level_end
    progress[SHOWN], progress[STUCK], progress[TOUCHED] = shown, stuck, touched
    return full


def search_actions(
    start: int,
    settings: Integers,
    local: Integers,
    lists: Integers,
    changes: Integers,
    _prefills: Integers,
    _admits: Integers,
    _arrivals: Integers,
    _scratch: Integers,
    _queue: Integers,
    max_states: int,
) -> tuple[Integers, int, Integers, Integers, int, int, bool]:
    """Search all reachable states level by level; arguments and results are those of `compiled.search_rounds`.

    Arrays grow here, outside the compiled loop: numpy asks for large memory pages, which a hash set gains from.
    Where memory ends the search ends too, and is not complete.
    """
    bounds = lists[:, BOUNDS]
    widest = max(1, int(((bounds >> HALF) - (bounds & LOW)).max()))
    out = np.empty(BATCH * int(settings[REQUESTS]) * widest, np.int64)
    places = np.empty(len(out), np.uint64)
    size = 1 << max(14, (4 * len(out)).bit_length())
    states, table, levels = np.empty(size // 2, np.int64), np.full(size, EMPTY), np.zeros(1 << 10, np.int64)
    first = np.full(PROPERTIES, -1, np.int64)
    progress = np.zeros(len(PROGRESS), np.int64)
    progress[COUNT], progress[LEVEL_END], progress[STUCK] = 1, 1, -1
    states[0] = start
    fill(table, states, 1)
    arrays = (settings, local, lists, changes)
    try:
        while _advance(progress, states, table, levels, first, out, places, *arrays, max_states):
            count = int(progress[COUNT])
            if progress[LEVEL] + 1 == len(levels):
                levels = np.concatenate((levels, np.zeros_like(levels)))
            # At most half of the places are taken.
            if count + len(out) > size // 2:
                size *= 4
                longer = np.empty(size // 2, np.int64)
                longer[:count] = states[:count]
                states = longer
                table = np.full(size, EMPTY)
                fill(table, states, count)
    except MemoryError:
        size = 0
    count, level = int(progress[COUNT]), int(progress[LEVEL])
    complete = size > 0 and int(progress[AT]) == count <= max_states
    shown, stuck = int(progress[SHOWN]), int(progress[STUCK])
    return states[:count], int(progress[MOVES]), levels[: level + 1], first, shown, stuck, complete
