"""The compiled search: packed states in one hash set, no Python in the loop.

What leads from a state to the next is in `rounds.py` and `interleaved.py`. `packed.py` builds the arrays that these
functions read and turns words back into states; `search.py` is the same search in plain Python, and a test compares
the two.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: ANN001, ANN202, C901, PLR0912, PLR0913, PLR0917 - numba infers types, takes plain arguments

from __future__ import annotations

from typing import Any

import numpy as np

from fsm_spec.checker.hash_set import empty, index_of, insert, place_of, rebuilt
from fsm_spec.checker.interleaved import actions, search_actions
from fsm_spec.checker.places import BITS, PAGE_BITS, REQUESTS
from fsm_spec.checker.rounds import rounds
from fsm_spec.jit import compiled, jit

# A model is a few plain arrays, as arrays by name in a tuple take numba ten times as long to compile.


@jit()
def _wider(array, count, size):
    """Give a longer array that starts with the same `count` elements."""
    longer = np.empty(size, array.dtype)
    # A loop, as numba takes seconds to compile the assignment of a slice.
    for index in range(count):
        longer[index] = array[index]
    return longer


# What `_search` and `_cycle` call: `compiled` puts the moves by rounds or by actions in this place.
successors: Any = rounds


def _search(start, settings, local, lists, options, prefills, admits_, arrivals, scratch, queue, max_states):
    """Search all reachable states level by level.

    Gives the states in the order found; the number of moves; where each level starts; by property (bit) the first
    state that breaks it; the properties shown (bits); the first state that is stuck (-1: none); and whether all
    reachable states were searched.
    """
    table = empty(1 << 12)
    states = np.empty(1 << 11, np.int64)
    levels = np.empty(1 << 8, np.int64)
    levels[0] = 0
    first = np.empty(63, np.int64)
    for bit in range(63):
        first[bit] = -1
    out = np.empty(1 << 8, np.int64)
    states[0] = start
    insert(table, start)
    count, at, moves, level, level_end, stuck, shown = 1, 0, 0, 0, 1, -1, 0
    complete = True
    while at < count:
        if at == level_end:
            level += 1
            if level == len(levels):
                levels = _wider(levels, level, 2 * level)
            levels[level] = at
            level_end = count
        found, broken, shows, still = 0, 0, 0, False
        again = True
        while again:
            found, broken, shows, still = successors(
                states[at], settings, local, lists, options, prefills, admits_, arrivals, scratch, queue, out
            )
            again = found > len(out)
            if again:
                out = np.empty(2 * found, np.int64)
        if broken:
            for bit in range(63):
                if first[bit] < 0 and (broken >> bit) & 1:
                    first[bit] = at
        shown |= shows
        if still and stuck < 0:
            stuck = at
        if count + found > len(states):
            states = _wider(states, count, max(2 * len(states), count + found))
        moves += found
        for index in range(found):
            if insert(table, out[index]):
                states[count] = out[index]
                count += 1
        if 2 * count > len(table):
            table = rebuilt(4 * len(table), states, count)
        at += 1
        if count > max_states:
            complete = False
            break
    return states[:count], moves, levels[: level + 1], first, shown, stuck, complete


@jit(inline="always")
def _rank(word, ranks, requests, bits, page_bits):
    """Sum the ranks of a state's requests."""
    field = (np.int64(1) << bits) - 1
    rank = np.int64(0)
    for _ in range(requests):
        rank += ranks[np.uint64((word & field) >> page_bits)]
        word >>= bits
    return rank


def _cycle(
    states, words, places, ranks, settings, local, lists, options, prefills, admits_, arrivals, scratch, queue
):
    """Find a cycle among all reachable states, depth first; give its places in `states`, or nothing.

    What moves a request on (tokens emitted, committed slots of an abstract model) never falls, so a cycle holds no
    progress, and all of it can repeat for ever. Moves that raise the sum of `ranks` are on no cycle (see `ranks.py`).
    """
    fresh, opened, closed = np.uint8(0), np.uint8(1), np.uint8(2)
    requests, bits, page_bits = settings[REQUESTS], settings[BITS], settings[PAGE_BITS]
    colour = np.zeros(len(states), np.uint8)
    out = np.empty(1 << 8, np.int64)
    nodes = np.empty(1 << 10, np.int32)
    starts = np.empty(1 << 10, np.int64)
    arena = np.empty(1 << 12, np.int32)
    for root in range(len(states)):
        if colour[root] != fresh:
            continue
        nodes[0] = root
        depth, filled = 1, 0
        entered = False
        while depth:
            node = nodes[depth - 1]
            if not entered:
                entered = True
                colour[node] = opened
                starts[depth - 1] = filled
                found = 0
                again = True
                while again:
                    found, _, _, _ = successors(
                        states[node],
                        settings,
                        local,
                        lists,
                        options,
                        prefills,
                        admits_,
                        arrivals,
                        scratch,
                        queue,
                        out,
                    )
                    again = found > len(out)
                    if again:
                        out = np.empty(2 * found, np.int64)
                if filled + found > len(arena):
                    arena = _wider(arena, filled, 2 * (filled + found))
                rank = _rank(states[node], ranks, requests, bits, page_bits)
                for index in range(found):
                    if _rank(out[index], ranks, requests, bits, page_bits) == rank:
                        arena[filled] = place_of(words, places, out[index])
                        filled += 1
            if filled == starts[depth - 1]:
                colour[node] = closed
                depth -= 1
                continue
            filled -= 1
            successor = arena[filled]
            if colour[successor] == opened and successor != node:
                first = depth - 1
                while nodes[first] != successor:
                    first -= 1
                return nodes[first:depth].copy()
            if colour[successor] == fresh:
                if depth == len(nodes):
                    nodes = _wider(nodes, depth, 2 * depth)
                    starts = _wider(starts, depth, 2 * depth)
                nodes[depth] = successor
                depth += 1
                entered = False
    return nodes[:0].copy()


search_rounds = compiled(_search, "search_rounds", successors=rounds)
cycle_of_actions = compiled(_cycle, "cycle_of_actions", successors=actions)
cycle_of_rounds = compiled(_cycle, "cycle_of_rounds", successors=rounds)

__all__ = [
    "actions",
    "cycle_of_actions",
    "cycle_of_rounds",
    "index_of",
    "rounds",
    "search_actions",
    "search_rounds",
]
