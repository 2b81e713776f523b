"""A hash set of packed states for the compiled search: open addressing in one plain array, a power of two long."""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: ANN001, ANN201 - numba infers types

from __future__ import annotations

import numpy as np

from fsm_spec.jit import jit

# A word that no state packs to: `packed.py` leaves the sign bit free.
EMPTY = np.int64(-1)


@jit(inline="always")
def mixed(word):
    """Mix the bits of a word (the finaliser of splitmix64)."""
    word = np.uint64(word)
    word ^= word >> np.uint64(30)
    word *= np.uint64(0xBF58476D1CE4E5B9)
    word ^= word >> np.uint64(27)
    word *= np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@jit(inline="always")
def insert(table, word):
    """Put a word into the hash set; tell whether it is new."""
    mask = np.uint64(len(table) - 1)
    at = mixed(word) & mask
    while True:
        held = table[at]
        if held == word:
            return False
        if held == EMPTY:
            table[at] = word
            return True
        at = (at + np.uint64(1)) & mask


@jit()
def empty(size):
    """Give an empty hash set; a loop, as numba takes a second to compile `np.full`."""
    table = np.empty(size, np.int64)
    for at in range(size):
        table[at] = EMPTY
    return table


@jit()
def rebuilt(size, states, count):
    """Give a hash set of another size with the words of `states`."""
    table = empty(size)
    for index in range(count):
        insert(table, states[index])
    return table


@jit()
def fill(table, states, count):
    """Put distinct words into an empty hash set."""
    mask = np.uint64(len(table) - 1)
    for index in range(count):
        at = mixed(states[np.uint64(index)]) & mask
        while table[at] != EMPTY:
            at = (at + np.uint64(1)) & mask
        table[at] = states[np.uint64(index)]


@jit()
def index_of(states):
    """Give a hash map from words to their places in `states`: (words, places)."""
    size = 1 << 10
    while size < 2 * len(states):
        size *= 2
    words = empty(size)
    places = np.empty(size, np.int32)
    mask = np.uint64(size - 1)
    for index in range(len(states)):
        at = mixed(states[index]) & mask
        while words[at] != EMPTY:
            at = (at + np.uint64(1)) & mask
        words[at] = states[index]
        places[at] = index
    return words, places


@jit(inline="always")
def place_of(words, places, word):
    """Give the place of a word that the map of `index_of` holds."""
    mask = np.uint64(len(words) - 1)
    at = mixed(word) & mask
    while words[at] != word:
        at = (at + np.uint64(1)) & mask
    return places[at]
