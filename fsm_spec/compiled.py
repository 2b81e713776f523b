"""The compiled search: packed states in one hash set, the scheduler's own functions inside, no Python in the loop.

A global state is one unsigned 64-bit word: a field a request, holding the code of its local state and, where the
scheduler hands out pages a round ahead, the pages it owns. `packed.py` builds the arrays that these functions read
and turns words back into states; `search.py` is the same search in plain Python, and a test compares the two.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: ANN001, ANN202, C901, PLR0912, PLR0913, PLR0915, PLR0917 - numba infers types and takes plain arguments

from __future__ import annotations

from types import FunctionType
from typing import Any

import numba
import numpy as np

from fsm_spec import policy

RESERVE, HOLDBACK, PREEMPT, GREEDY = policy.RESERVE, policy.HOLDBACK, policy.PREEMPT, policy.GREEDY
PREEMPTED, RUNS = policy.PREEMPTED, policy.RUNS
# A word that no state packs to: `packed.py` leaves the highest bit free.
EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
# Kinds of edges of a local state, in the search by actions.
EVENT_EDGE, ADMIT_EDGE, PREEMPT_EDGE, ABORT_EDGE = 0, 1, 2, 3
# Kinds of local states, in the search by rounds.
ABSENT, WAITING, PREFILLING, RUNNING, ENDED = 0, 1, 2, 3, 4
# Most requests that a word holds.
MOST_REQUESTS = 16


def compiled(function: Any, **inner: Any) -> Any:
    """Compile one of the scheduler's plain functions; `inner` gives the compiled forms of those that it calls."""
    clone = FunctionType(function.__code__, {**function.__globals__, **inner}, function.__name__)
    clone.__module__ = function.__module__
    clone.__qualname__ = function.__qualname__
    return numba.njit(cache=True)(clone)


admits = compiled(policy.admits)
decide = compiled(policy.decide, admits=admits)


# The hash set ------------------------------------------------------------------------------------------------------


@numba.njit(cache=True, inline="always")
def _hash(word):
    """Mix the bits of a word (the finaliser of splitmix64)."""
    word ^= word >> np.uint64(30)
    word *= np.uint64(0xBF58476D1CE4E5B9)
    word ^= word >> np.uint64(27)
    word *= np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@numba.njit(cache=True, inline="always")
def _insert(table, word):
    """Put a word into the hash set; tell whether it is new."""
    mask = np.uint64(len(table) - 1)
    at = _hash(word) & mask
    while True:
        held = table[at]
        if held == word:
            return False
        if held == EMPTY:
            table[at] = word
            return True
        at = (at + np.uint64(1)) & mask


@numba.njit(cache=True)
def _rebuilt(size, states, count):
    """Give a hash set of another size with the words of `states`."""
    table = np.full(size, EMPTY, np.uint64)
    for index in range(count):
        _insert(table, states[index])
    return table


@numba.njit(cache=True)
def index_of(states):
    """Give a hash map from words to their places in `states`: (words, places)."""
    size = 1 << 10
    while size < 2 * len(states):
        size *= 2
    words = np.full(size, EMPTY, np.uint64)
    places = np.empty(size, np.int32)
    mask = np.uint64(size - 1)
    for index in range(len(states)):
        at = _hash(states[index]) & mask
        while words[at] != EMPTY:
            at = (at + np.uint64(1)) & mask
        words[at] = states[index]
        places[at] = index
    return words, places


@numba.njit(cache=True, inline="always")
def _place(words, places, word):
    mask = np.uint64(len(words) - 1)
    at = _hash(word) & mask
    while words[at] != word:
        at = (at + np.uint64(1)) & mask
    return places[at]


@numba.njit(cache=True)
def _wider(array, count, size):
    """Give a longer array that starts with the same `count` elements."""
    longer = np.empty(size, array.dtype)
    longer[:count] = array[:count]
    return longer


# One action of one request at a time -------------------------------------------------------------------------------


@numba.njit(cache=True, inline="always")
def _alike(word, model, scratch):
    """Order the fields of a word, so that states which differ only in who is who are one."""
    bits, field = np.uint64(model.bits), model.field
    for index in range(model.requests):
        value = (word >> (np.uint64(index) * bits)) & field
        place = index
        while place > 0 and scratch[place - 1] > value:
            scratch[place] = scratch[place - 1]
            place -= 1
        scratch[place] = value
    ordered = np.uint64(0)
    for index in range(model.requests):
        ordered |= scratch[index] << (np.uint64(index) * bits)
    return ordered


@numba.njit(cache=True)
def _actions(word, model, buffers, out):
    """Write the successors of a state, one action of one request each, to `out`; results are those of `_rounds`."""
    bits, field = np.uint64(model.bits), model.field
    used = 0
    live = 0
    promised = 0
    broken = np.uint64(0)
    shown = np.uint64(0)
    ended = True
    for index in range(model.requests):
        code = (word >> (np.uint64(index) * bits)) & field
        used += model.pages[code]
        broken |= model.broken[code]
        shown |= model.shown[code]
        ended = ended and model.status[code] == ENDED
        if model.status[code] == RUNNING:
            live += 1
            promised += model.longest[code]
    if used > model.pool_pages:
        broken |= model.pool_bit
    count = 0
    others = 0
    for index in range(model.requests):
        shift = np.uint64(index) * bits
        code = (word >> shift) & field
        rest = word & ~(field << shift)
        blocked = False
        for edge in range(model.edges[code], model.edges[code + np.uint64(1)]):
            kind = model.kinds[edge]
            target = model.targets[edge]
            grows = model.pages[target] - model.pages[code]
            if kind == ADMIT_EDGE:
                longest = promised + model.longest[target]
                if not admits(model.admission, live, used, grows, longest, model.grow, model.pool_pages):
                    continue
            elif kind == PREEMPT_EDGE:
                # These edges come last: a request gives its pages back only where it is blocked itself.
                if not blocked or model.admission == RESERVE or model.admission == GREEDY:
                    continue
            elif kind == ABORT_EDGE:
                others += 1
            elif grows > 0 and used + grows > model.pool_pages:
                blocked = True
                continue
            after = rest | (target << shift)
            if count < len(out):
                out[count] = _alike(after, model, buffers.scratch) if model.symmetry else after
            count += 1
    return count, broken, shown, not ended and count == others


# One iteration of the scheduler at a time --------------------------------------------------------------------------


@numba.njit(cache=True, inline="always")
def _packed(codes, owned, model):
    """Pack codes and pages; with symmetry, requests that have ended lose their places."""
    word = np.uint64(0)
    place = 0
    for index in range(model.requests):
        if model.symmetry and model.status[codes[index]] == ENDED:
            continue
        value = (np.uint64(codes[index]) << np.uint64(model.page_bits)) | np.uint64(owned[index])
        word |= value << (np.uint64(place) * np.uint64(model.bits))
        place += 1
    while place < model.requests:
        value = np.uint64(model.ended_code) << np.uint64(model.page_bits)
        word |= value << (np.uint64(place) * np.uint64(model.bits))
        place += 1
    return word


@numba.njit(cache=True)
def _rounds(word, model, buffers, out):
    """Write the successors of a state to `out`: arrivals, aborts, and every outcome of one iteration.

    Gives their number (above the length of `out`: a longer one is needed), the properties broken and those shown
    (bits), and whether requests are left that nothing can move.
    """
    bits, field, page_bits = np.uint64(model.bits), model.field, np.uint64(model.page_bits)
    codes, owned = buffers.codes, buffers.owned
    for index in range(model.requests):
        value = (word >> (np.uint64(index) * bits)) & field
        codes[index] = value >> page_bits
        owned[index] = value & ((np.uint64(1) << page_bits) - np.uint64(1))
    count = 0
    active = False
    for index in range(model.requests):
        code, pages = codes[index], owned[index]
        status = model.status[code]
        if status == ABSENT:
            # Requests are numbered as they arrive, so the first absent one is the next to come.
            for arrival in model.arrivals:
                codes[index] = arrival
                if count < len(out):
                    out[count] = _packed(codes, owned, model)
                count += 1
            codes[index] = code
            break
        if status == ENDED:
            continue
        active = True
        if model.abort:
            codes[index], owned[index] = model.ended_code, 0
            if count < len(out):
                out[count] = _packed(codes, owned, model)
            count += 1
            codes[index], owned[index] = code, pages
    if not active:
        return count, np.uint64(0), np.uint64(0), False
    others = count
    count, broken, shown, still = _iterate(word, model, buffers, out, count)
    return count, broken, shown, still or count == others


@numba.njit(cache=True)
def _iterate(word, model, buffers, out, count):
    """Write every outcome of one iteration behind the first `count` successors."""
    codes, owned = buffers.codes, buffers.owned
    live = 0
    waiting = 0
    promised = 0
    for index in range(model.requests):
        code = codes[index]
        status = model.status[code]
        if status == WAITING:
            buffers.queue[waiting, 0] = model.take[code]
            buffers.queue[waiting, 1] = model.longest[code]
            buffers.queue[waiting, 2] = model.fill[code]
            buffers.queued[waiting] = index
            waiting += 1
        elif status == PREFILLING or status == RUNNING:
            buffers.running[live] = status == RUNNING
            buffers.pages[live] = owned[index]
            buffers.need[live] = model.need[code] if status == RUNNING else owned[index]
            buffers.left[live] = model.left[code]
            buffers.rows[live] = model.rows[code]
            buffers.new_pages[live] = 0
            buffers.actions[live] = 0
            buffers.tokens[live] = 0
            buffers.live[live] = index
            promised += model.longest[code]
            live += 1
    buffers.admit_tokens[:waiting] = 0
    admitted = decide(
        model.admission, model.mixed, model.budget, model.max_running, model.pool_pages, model.grow, promised,
        buffers.running[:live], buffers.pages[:live], buffers.need[:live], buffers.left[:live], buffers.rows[:live],
        buffers.queue[:waiting], buffers.new_pages[:live], buffers.actions[:live], buffers.tokens[:live],
        buffers.admit_tokens[:waiting],
    )  # fmt: skip
    # Every request that moves has a list of options; the product of the lists is walked like an odometer.
    moving = 0
    held = 0
    for place in range(live):
        index = buffers.live[place]
        code = codes[index]
        action = buffers.actions[place]
        pages = buffers.new_pages[place]
        if action == PREEMPTED:
            option = model.preempt_options[code]
            pages = 0
        elif action == RUNS:
            option = model.round_options[code]
        elif buffers.tokens[place] > 0:
            option = model.prefill_options[code, buffers.tokens[place]]
        else:
            owned[index] = pages
            held += pages
            continue
        buffers.mover[moving], buffers.option[moving], buffers.option_pages[moving] = index, option, pages
        held += pages
        moving += 1
    for place in range(admitted):
        index = buffers.queued[place]
        option = model.admit_options[codes[index], buffers.admit_tokens[place]]
        buffers.mover[moving], buffers.option[moving] = index, option
        buffers.option_pages[moving] = buffers.queue[place, 0]
        held += buffers.queue[place, 0]
        moving += 1
    broken = np.uint64(0)
    shown = np.uint64(0)
    if held > model.pool_pages:
        broken |= model.pool_bit
    still = moving == 0
    if moving == 0:
        after = _packed(codes, owned, model)
        if after != word:
            still = False
            if count < len(out):
                out[count] = after
            count += 1
        return count, broken, shown, still
    wheel = buffers.wheel
    for place in range(moving):
        wheel[place] = model.option_start[buffers.option[place]]
        if wheel[place] == model.option_start[buffers.option[place] + 1]:
            return count, broken, shown, still
    while True:
        ends = False
        for place in range(moving):
            index, at = buffers.mover[place], wheel[place]
            target = model.option_target[at]
            pages = buffers.option_pages[place]
            faults = model.option_broken[at]
            if model.option_used[at] > pages * model.page_size and model.status[target] != WAITING:
                faults |= model.slots_bit
            broken |= faults
            shown |= model.option_shown[at]
            if target < 0:
                ends = True
                break
            codes[index] = target
            owned[index] = 0 if model.status[target] == ENDED or model.status[target] == WAITING else pages
        if not ends:
            after = _packed(codes, owned, model)
            if after == word:
                still = True
            if count < len(out):
                out[count] = after
            count += 1
        place = moving - 1
        while place >= 0:
            wheel[place] += 1
            if wheel[place] < model.option_start[buffers.option[place] + 1]:
                break
            wheel[place] = model.option_start[buffers.option[place]]
            place -= 1
        if place < 0:
            return count, broken, shown, still




# The search --------------------------------------------------------------------------------------------------------


@numba.njit(cache=True)
def search(start, model, buffers, max_states):
    """Search all reachable states level by level.

    Gives the states in the order found; the number of moves; where each level starts; by property (bit) the first
    state that breaks it; the properties shown (bits); the first state that is stuck (-1: none); and whether all
    reachable states were searched.
    """
    table = np.full(1 << 12, EMPTY, np.uint64)
    states = np.empty(1 << 11, np.uint64)
    levels = np.zeros(1 << 8, np.int64)
    first = np.full(64, -1, np.int64)
    out = np.empty(1 << 8, np.uint64)
    states[0] = start
    _insert(table, start)
    count, at, moves, level, level_end = 1, 0, 0, 0, 1
    stuck = -1
    shown = np.uint64(0)
    complete = True
    while at < count:
        if at == level_end:
            level += 1
            if level == len(levels):
                levels = _wider(levels, level, 2 * level)
            levels[level] = at
            level_end = count
        found, broken, shows, still = _successors(states[at], model, buffers, out)
        if found > len(out):
            out = np.empty(2 * found, np.uint64)
            found, broken, shows, still = _successors(states[at], model, buffers, out)
        if broken:
            for bit in range(64):
                if first[bit] < 0 and (broken >> np.uint64(bit)) & np.uint64(1):
                    first[bit] = at
        shown |= shows
        if still and stuck < 0:
            stuck = at
        if count + found > len(states):
            states = _wider(states, count, max(2 * len(states), count + found))
        moves += found
        for index in range(found):
            if _insert(table, out[index]):
                states[count] = out[index]
                count += 1
        if 2 * count > len(table):
            table = _rebuilt(4 * len(table), states, count)
        at += 1
        if count > max_states:
            complete = False
            break
    return states[:count], moves, levels[: level + 1], first, shown, stuck, complete


@numba.njit(cache=True)
def _successors(word, model, buffers, out):
    if model.by_rounds:
        return _rounds(word, model, buffers, out)
    return _actions(word, model, buffers, out)


@numba.njit(cache=True)
def cycle(states, words, places, model, buffers):
    """Find a cycle among all reachable states, depth first; give its places in `states`, or nothing.

    What moves a request on (tokens emitted, committed slots of an abstract model) never falls, so a cycle holds no
    progress, and all of it can repeat for ever.
    """
    new, open_, closed = np.uint8(0), np.uint8(1), np.uint8(2)
    colour = np.zeros(len(states), np.uint8)
    out = np.empty(1 << 8, np.uint64)
    nodes = np.empty(1 << 10, np.int32)
    ends = np.empty(1 << 10, np.int64)
    arena = np.empty(1 << 12, np.int32)
    nodes[0] = 0
    depth, filled = 1, 0
    expanded = False
    while depth:
        node = nodes[depth - 1]
        if not expanded:
            colour[node] = open_
            found, _, _, _ = _successors(states[node], model, buffers, out)
            if found > len(out):
                out = np.empty(2 * found, np.uint64)
                found, _, _, _ = _successors(states[node], model, buffers, out)
            if filled + found > len(arena):
                arena = _wider(arena, filled, 2 * (filled + found))
            for index in range(found):
                arena[filled] = _place(words, places, out[index])
                filled += 1
            ends[depth - 1] = filled - found
            expanded = True
        if filled == ends[depth - 1]:
            colour[node] = closed
            depth -= 1
            continue
        filled -= 1
        successor = arena[filled]
        if colour[successor] == open_ and successor != node:
            start = depth - 1
            while nodes[start] != successor:
                start -= 1
            return nodes[start:depth].copy()
        if colour[successor] == new:
            if depth == len(nodes):
                nodes = _wider(nodes, depth, 2 * depth)
                ends = _wider(ends, depth, 2 * depth)
            nodes[depth] = successor
            depth += 1
            expanded = False
    return nodes[:0].copy()
