"""Composed requests: arrivals, aborts, iterations and single events lead where the columns say."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fsm_spec.checker import properties
from fsm_spec.checker.automaton import Automaton
from fsm_spec.checker.composition import ENDED, Composition, Held, State, move_between
from fsm_spec.checker.interleaving import Interleaving
from fsm_spec.checker.search import Found, search
from fsm_spec.compile import compile_table
from fsm_spec.load import load
from fsm_spec.policy import Plan, Policy, Pool, plan
from fsm_spec.policy_file import load_policy
from fsm_spec.table import Table

MODEL = Path(__file__).resolve().parents[2] / "models" / "kvpool.yaml"
ENDS = "every request reaches end"


@cache
def compiled(name: str) -> Table:
    """Compile a spec for the checker's parameters and pages of two slots."""
    loaded = load(name)
    return compile_table(loaded.spec, check=True, page_size=2, line_of=loaded.line_of)


def test_moves_by_hand() -> None:
    """Arrivals, aborts and iterations lead where the columns say."""
    table = compiled("ar")
    automaton = Automaton(table)
    composed = Composition(automaton, Policy(), Pool(4, 2), 1, [(1, 2)])
    assert composed.start == (None,)
    (arrival,) = composed.moves(composed.start)
    waits: State = (Held(automaton.values(table.new_request(1, 2))),)
    assert waits == arrival.after
    moves = list(composed.moves(waits))
    assert ["abort", "admit", "admit"] == [move.parts[0].events[0].name for move in moves]
    assert [False, True, True] == [move.by_scheduler for move in moves]
    # The first token is the last where it stops; else the request runs with the page it was given.
    assert {"decode", "end"} == {
        "end" if not move.after[0].columns else "decode" for move in moves[1:] if move.after[0]
    }
    assert (1, 1) == moves[1].parts[0].pages[1:]
    certain = Composition(automaton, Policy(), Pool(4, 2), 1, [(1, 2)], abort=False)
    assert ["admit", "admit"] == [move.parts[0].events[0].name for move in certain.moves(waits)]


def test_interleaving_by_hand() -> None:
    """Each request of an abstract model moves alone, in all ways of its event, with the pages its state holds."""
    composed = Interleaving(Automaton(compiled(str(MODEL))), Policy(), Pool(6, 2), 2, abort=False)
    first = list(composed.moves(composed.start))
    assert [0, 1] == [move.parts[0].request for move in first]
    assert [1, 0] == [entry.pages for entry in first[0].after if entry]
    second = list(composed.moves(first[0].after))
    assert ["propose", "admit"] == [move.parts[0].events[0].name for move in second]
    third = list(composed.moves(second[0].after))
    assert [0, 1, 2] == [move.parts[0].events[0].args["a"] for move in third if move.parts[0].request == 0]
    with_abort = Interleaving(Automaton(compiled(str(MODEL))), Policy(), Pool(6, 2), 2)
    aborted = [move for move in with_abort.moves(first[0].after) if not move.by_scheduler]
    assert [0, 1] == [move.parts[0].request for move in aborted]


def test_blocked_requests_give_pages_back_where_the_policy_says_so() -> None:
    """A request that lacks pages waits under greedy and gives its own back under preempt."""
    for policy, expected in (("greedy", []), ("preempt", ["preempt"])):
        composed = Interleaving(
            Automaton(compiled(str(MODEL))), load_policy(policy), Pool(2, 2), 1, abort=False
        )
        (admitted,) = composed.moves(composed.start)
        assert expected == [move.parts[0].events[0].name for move in composed.moves(admitted.after)]


def test_states_that_differ_only_in_who_is_who_are_one() -> None:
    """Interleaved requests are exchanged freely; those of a scheduler keep their order of arrival."""
    table = compiled("ar")
    automaton = Automaton(table)
    composed = Composition(automaton, Policy(), Pool(4, 2), 3, [(1, 2)])
    one, two = (Held(automaton.values(table.new_request(prompt, 2))) for prompt in (1, 2))
    assert (two, one, ENDED) == composed.alike((ENDED, two, one))
    abstract = Interleaving(Automaton(compiled(str(MODEL))), Policy(), Pool(6, 2), 2)
    first, second = (move.after for move in abstract.moves(abstract.start) if move.by_scheduler)
    assert first != second
    assert abstract.alike(first) == abstract.alike(second)


def test_an_over_committed_pool_is_a_fault_of_the_state() -> None:
    """More pages held than the pool has is a fault whatever moves follow."""
    abstract = Interleaving(Automaton(compiled(str(MODEL))), Policy(), Pool(1, 2), 1)
    held: State = (Held(abstract.first, 2),)
    assert (properties.POOL, properties.FITS) == abstract.faults(held)
    assert () == Interleaving(abstract.automaton, Policy(), Pool(6, 2), 1).faults(abstract.start)


def test_move_between_prefers_what_breaks_nothing() -> None:
    """A path of the search is told by moves that lead from each state to the next."""
    composed = Interleaving(Automaton(compiled(str(MODEL))), Policy(), Pool(6, 2), 1, abort=False)
    (admitted,) = composed.moves(composed.start)
    assert admitted == move_between(composed, composed.start, admitted.after)


def searched() -> Found:
    """Search two requests in a small pool."""
    sizes = [(prompt, limit) for prompt in (1, 2) for limit in (0, 2, 4)]
    return search(Composition(Automaton(compiled("ar")), Policy(), Pool(3, 2), 2, sizes), 100_000)


def test_pages_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that hands out more than the pool, or too little for a round, is refuted."""
    true_plan = plan

    def with_pages(change: int) -> None:
        def wrong(*args: Any) -> Plan:  # noqa: ANN401 - handed on
            decided = true_plan(*args)
            return decided.__class__(
                decided.preempt,
                decided.pages + change,
                decided.run,
                decided.chunks,
                decided.admit,
                decided.admit_chunks,
            )

        monkeypatch.setattr("fsm_spec.checker.composition.plan", wrong)

    with_pages(5)
    assert properties.POOL in searched().broken
    with_pages(-1)
    assert properties.SLOTS in searched().broken


def test_livelock_of_a_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that are admitted and preempted in turn, for ever, are found as a cycle."""
    true_plan = plan

    def thrash(*args: Any) -> Plan:  # noqa: ANN401 - handed on
        decided = true_plan(*args)
        everyone = tuple(range(len(decided.pages)))
        return Plan(
            everyone, decided.pages * 0, decided.run[:0], (), decided.admit, (0,) * len(decided.admit)
        )

    monkeypatch.setattr("fsm_spec.checker.composition.plan", thrash)
    fault = searched().broken[ENDS]
    assert "livelock: the last 2 moves can repeat for ever without progress" == fault.why
    assert fault.loop == len(fault.path) - 3
