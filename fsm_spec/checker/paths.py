"""Ways through searched states: which state led to another, and every move there is, compiled like the search."""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: ANN001, ANN202, PLR0913, PLR0917 - numba infers types and takes plain arguments

from __future__ import annotations

from typing import Any

import numpy as np

from fsm_spec.checker.hash_set import place_of
from fsm_spec.checker.interleaved import actions
from fsm_spec.checker.rounds import rounds
from fsm_spec.jit import compiled

# What stands for it in the functions below is given to `compiled`.
successors: Any = rounds


def _parent(
    states,
    begin,
    end,
    word,
    settings,
    local,
    lists,
    options,
    prefills,
    admits_,
    arrivals,
    scratch,
    queue,
):
    """Find the first of the states from `begin` to `end` that a move leads from to `word`; -1 if there is none."""
    out = np.empty(1 << 8, np.int64)
    for at in range(begin, end):
        found = len(out) + 1
        while found > len(out):
            found, _, _, _ = successors(
                states[at], settings, local, lists, options, prefills, admits_, arrivals, scratch, queue, out
            )
            if found > len(out):
                out = np.empty(2 * found, np.int64)
                found = len(out) + 1
        for index in range(found):
            if out[index] == word:
                return at
    return -1


def _edges(
    states,
    words,
    places,
    moves,
    settings,
    local,
    lists,
    options,
    prefills,
    admits_,
    arrivals,
    scratch,
    queue,
):
    """List the moves among all reachable states: where those of each state start, and the places they lead to."""
    starts = np.zeros(len(states) + 1, np.int64)
    targets = np.empty(moves, np.int32)
    out = np.empty(1 << 8, np.int64)
    filled = 0
    for at in range(len(states)):
        found = len(out) + 1
        while found > len(out):
            found, _, _, _ = successors(
                states[at], settings, local, lists, options, prefills, admits_, arrivals, scratch, queue, out
            )
            if found > len(out):
                out = np.empty(2 * found, np.int64)
                found = len(out) + 1
        for index in range(found):
            targets[filled] = place_of(words, places, out[index])
            filled += 1
        starts[at + 1] = filled
    return starts, targets


parent_of_rounds = compiled(_parent, "parent_of_rounds", successors=rounds)
parent_of_actions = compiled(_parent, "parent_of_actions", successors=actions)
edges_of_rounds = compiled(_edges, "edges_of_rounds", successors=rounds)
edges_of_actions = compiled(_edges, "edges_of_actions", successors=actions)
