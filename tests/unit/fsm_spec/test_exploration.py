"""The compiled search at work: limits, the nearest cycle, and paths that are moves."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fsm_spec.checker import exploration, properties
from fsm_spec.checker.automaton import Automaton
from fsm_spec.checker.composition import Composition
from fsm_spec.checker.exploration import Exploration, Limits, nearest_cycle
from fsm_spec.checker.interleaving import Interleaving
from fsm_spec.checker.search import search
from fsm_spec.compile import compile_table
from fsm_spec.load import load
from fsm_spec.policy import Pool
from fsm_spec.policy_file import load_policy

ENDS = "every request reaches end"
PLENTY = Limits(10**6, 10**9)


def composed(policy: str, pages: int = 4) -> Composition:
    """Compose two requests of a drafting spec in a small pool."""
    automaton = Automaton(compile_table(load("linear_spec").spec, check=True))
    return Composition(automaton, load_policy(policy), Pool(pages, 2), 2, [(1, 6), (2, 6)])


@pytest.mark.parametrize(
    ("moves", "cycle"),
    [
        ([[1], [2], []], []),
        ([[0, 1], [1]], []),
        ([[1], [2], [0]], [0, 1, 2]),
        ([[1, 3], [2], [1, 3], [4], [3]], [1, 2]),
        ([[1], [2, 3], [4], [1], [5], [1]], [1, 3]),
    ],
)
def test_nearest_cycle(moves: list[list[int]], cycle: list[int]) -> None:
    """The first state on a cycle counts, and the shortest way around; a move to itself is no cycle."""
    starts = np.cumsum([0, *map(len, moves)]).astype(np.int64)
    targets = np.array([target for each in moves for target in each], np.int32)
    assert cycle == nearest_cycle(starts, targets)


def test_a_deadlock_is_reached_by_moves() -> None:
    """A counterexample starts at the start, and every state is one move from the one before."""
    explored = Exploration(composed("greedy"), PLENTY)
    fault = explored.fault(ENDS)
    assert explored.composed.start == fault.path[0]
    for before, after in pairwise(fault.path):
        assert after in [move.after for move in explored.composed.moves(before)]
    assert {ENDS: len(fault.path) - 1} == explored.broken


def test_a_livelock_beyond_the_edges_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all moves are too many to keep, the first cycle found is told instead of the nearest."""
    small = composed("preempt", pages=2)
    nearest = Exploration(small, PLENTY)
    monkeypatch.setattr(exploration, "MOST_EDGES", 0)
    first = Exploration(small, PLENTY)
    assert nearest.broken.keys() == first.broken.keys()
    if first.cycle:
        fault = first.fault(ENDS)
        assert fault.loop == len(fault.path) - 1 - len(first.cycle)


def test_limits() -> None:
    """States and bytes end a search; a fault does that a search is to stop at, soon after it."""
    whole = Exploration(composed("greedy"), PLENTY)
    states = len(whole.reached.states)
    few = Exploration(composed("greedy"), Limits(states // 2, 10**9))
    assert not few.reached.complete
    assert few.cycle is None
    little = Exploration(composed("greedy"), Limits(10**6, exploration.STATE_BYTES * states // 2))
    assert not little.reached.complete
    soon = Exploration(composed("greedy"), Limits(10**6, 10**9, stop_at=frozenset({ENDS})))
    assert soon.broken == whole.broken


def test_an_over_committed_pool_is_a_fault_of_a_state() -> None:
    """An admission that trusts a wrong longest case hands out more pages than there are, in both searches."""
    loaded = load(Path(__file__).resolve().parents[2] / "models" / "kvpool.yaml")
    automaton = Automaton(compile_table(loaded.spec, check=True, page_size=2))
    crowd = Interleaving(automaton, load_policy("reserve"), Pool(1, 2), 2, abort=False)
    crowd.longest = 0
    explored = Exploration(crowd, PLENTY, symmetry=False)
    fault = explored.fault(properties.POOL)
    assert (3, None) == (len(fault.path), fault.move)
    assert search(crowd, 1000).broken[properties.POOL] == fault
