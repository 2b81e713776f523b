"""The plain search: cycles, dead ends, what leads nowhere, and giving up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import cast

import pytest

from fsm_spec.checker import properties
from fsm_spec.checker.automaton import Automaton
from fsm_spec.checker.composition import ENDED, Composition, Held, Move, State
from fsm_spec.checker.search import DEADLOCK, search
from fsm_spec.compile import compile_table
from fsm_spec.language.expression import parse
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool
from fsm_spec.table import Table

ENDS = "every request reaches end"


@cache
def compiled(name: str) -> Table:
    """Compile a shipped spec for the checker's parameters."""
    loaded = load(name)
    return compile_table(loaded.spec, check=True, line_of=loaded.line_of)


def test_a_search_that_is_given_up_is_not_complete() -> None:
    """Beyond the states allowed nothing more is expanded, and the search says so."""
    composed = Composition(Automaton(compiled("ar")), Policy(), Pool(5, 2), 2, [(1, 4), (2, 4)])
    whole = search(composed, 10_000)
    assert whole.complete
    assert search(composed, whole.states).complete
    part = search(composed, 20)
    assert not part.complete
    assert 20 < part.states < whole.states


def test_a_broken_property_ends_nothing() -> None:
    """What lies behind a broken property is searched like the rest."""
    table = compiled("ar")
    plain = search(Composition(Automaton(table), Policy(), Pool(5, 2), 2, [(1, 4)]), 10_000)
    wrong = replace(table, always={"nothing is emitted": parse("emitted == 0", "bool")}, cache={})
    broken = search(Composition(Automaton(wrong), Policy(), Pool(5, 2), 2, [(1, 4)]), 10_000)
    assert {"nothing is emitted"} == set(broken.broken)
    assert not plain.broken
    assert (plain.states, plain.transitions, plain.depth) == (broken.states, broken.transitions, broken.depth)


class Graph:
    """Be a composition of one request whose states are numbers, with the successors given."""

    def __init__(self, successors: dict[int, list[int]]) -> None:
        self.table = compiled("ar")
        self.successors = successors

    @property
    def start(self) -> State:
        """Give state 0."""
        return self.state(0)

    @staticmethod
    def state(number: int) -> State:
        """Give a state; 99 is the end."""
        return (ENDED if number == 99 else Held((number,)),)

    @staticmethod
    def faults(state: State) -> tuple[str, ...]:
        """Let state 7 hold too much."""
        return (properties.POOL,) if state == (Held((7,)),) else ()

    def moves(self, state: State) -> Iterator[Move]:
        """Yield the moves of the graph; -1 is a move that leads nowhere."""
        (entry,) = state
        assert entry is not None
        for successor in self.successors.get(entry.columns[0], []) if entry.columns else ():
            if successor < 0:
                yield Move((), state, (properties.HANDLED,), by_scheduler=True, lost=True)
            else:
                yield Move((), self.state(successor), by_scheduler=True)


@pytest.mark.parametrize(
    ("successors", "path", "loop"),
    [
        # A straight way to the end.
        ({0: [1], 1: [99]}, None, None),
        # A state that leads to itself beside the end.
        ({0: [0, 99]}, [0, 0], 0),
        # A way to the end beside a way into a cycle.
        ({0: [1, 99], 1: [2], 2: [1]}, [0, 1, 2, 1], 1),
        # A bridge between two cycles is met before either; the nearest state that is on a cycle counts.
        ({0: [1, 2], 1: [4, 99], 2: [3], 3: [2, 1], 4: [5, 1], 5: [99, 4]}, [0, 1, 4, 1], 1),
        ({0: [1, 2], 1: [4], 2: [3], 3: [2, 1], 4: [5], 5: [6, 99], 6: [4, 5]}, [0, 2, 3, 2], 1),
    ],
)
def test_cycles_without_progress(
    successors: dict[int, list[int]], path: list[int] | None, loop: int | None
) -> None:
    """The nearest state on a cycle is found, and the shortest way around."""
    found = search(cast("Composition", Graph(successors)), 100)
    fault = found.broken.get(ENDS)
    assert path == (fault and [entry.columns[0] for (entry,) in fault.path if entry])
    assert loop == (fault and fault.loop)


def test_a_dead_end_is_found() -> None:
    """A state that nothing leaves, with work left, is a deadlock; its path is the shortest."""
    fault = search(cast("Composition", Graph({0: [1, 2], 1: [99], 2: [1, 3]})), 100).broken[ENDS]
    assert [(Held((0,)),), (Held((2,)),), (Held((3,)),)] == fault.path
    assert DEADLOCK == fault.why


def test_moves_that_lead_nowhere_are_no_transitions() -> None:
    """A move without a row is a fault of the state it starts in, and neither a transition nor a way on."""
    found = search(cast("Composition", Graph({0: [1, -1], 1: [7], 7: [99]})), 100)
    assert {properties.HANDLED, properties.POOL} == set(found.broken)
    assert (4, 3, 3) == (found.states, found.transitions, found.depth)
    assert "more is held than the pool has" == found.broken[properties.POOL].why
