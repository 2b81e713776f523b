"""Host lag: pages are taken for what a late host cannot see, and a scheduler that ignores the lag is refuted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsm_spec.checker import properties
from fsm_spec.checker.automaton import Automaton
from fsm_spec.checker.check import Bounds, check
from fsm_spec.checker.composition import Composition, State
from fsm_spec.checker.counterexample import explain
from fsm_spec.checker.search import Fault
from fsm_spec.checker.shared_prefix import SharedPrefix
from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.load import load, shipped
from fsm_spec.policy import Policy, Pool, headroom, longest_pages, plan
from fsm_spec.table import Table


def table_of(name: str) -> Table:
    """Compile a shipped spec for the checker's parameters."""
    return compile_table(load(name).spec, check=True)


@pytest.mark.shows("checked")
@pytest.mark.parametrize("name", sorted(shipped()))
def test_shipped_specs_hold_with_a_late_host(name: str) -> None:
    """Overlapped scheduling leaks no page and writes no slot that is not owned, for every shipped spec."""
    assert "proved" == check(table_of(name), Bounds(requests=2, lag=1)).verdict


@pytest.mark.parametrize(
    ("name", "policies", "counts"),
    [
        ("isd", ("reserve", "holdback"), [(332, 1286), (507, 1911)]),
        ("isd", ("preempt",), [(730, 2870)]),
        ("uno_linear", ("tiers",), [(795, 3436)]),
    ],
)
def test_what_a_late_host_waits_for(
    name: str, policies: tuple[str, ...], counts: list[tuple[int, int]]
) -> None:
    """Aborts, preemptions and another size would be composed with a round still in flight, which the runtime lands."""
    result = check(table_of(name), Bounds(requests=2, lag=1, policies=policies))
    assert "proved" == result.verdict
    assert counts == [(each.states, each.transitions) for each in result.searches]


@pytest.mark.parametrize("name", ["ar", "isd", "uno_linear"])
def test_a_scheduler_that_ignores_the_lag_is_refuted(name: str) -> None:
    """Without the slots that the round in flight may commit, the next round writes past its pages."""
    table = table_of(name)
    table.cache["headroom", 1, None] = headroom(table)
    found = check(table, Bounds(requests=1, lag=1))
    assert properties.SLOTS in [decided.name for decided in found.refuted]


@pytest.mark.shows("checked")
@pytest.mark.parametrize(
    ("name", "bounds", "counts"),
    [
        ("ar", Bounds(), [(233, 901), (377, 1415)]),
        ("eagle3", Bounds(), [(982, 4306), (1475, 6384)]),
        ("uno_linear", Bounds(policies=("tiers",)), [(979, 4500)]),
        ("isd", Bounds(policies=("preempt",), chunks=True), [(808, 3168)]),
    ],
)
def test_a_late_host_shares_pages(name: str, bounds: Bounds, counts: list[tuple[int, int]]) -> None:
    """A prefix cache and overlapped scheduling hold together, as the runtime runs them."""
    result = check(table_of(name), replace(bounds, requests=2, lag=1, prefix=True))
    assert "proved" == result.verdict
    assert (1, True) == (result.bounds["lag"], result.bounds["prefix"])
    assert counts == [(each.states, each.transitions) for each in result.searches]


def test_a_late_host_that_shares_pages_needs_them_ahead() -> None:
    """Pages found in the cache are no pages for what a late host cannot see."""
    table = table_of("isd")
    table.cache["headroom", 1, None] = headroom(table)
    found = check(table, Bounds(requests=2, lag=1, prefix=True))
    assert properties.SLOTS in [decided.name for decided in found.refuted]


def composed(policy: Policy, pages: int = 9) -> SharedPrefix:
    """Compose three requests of plain decoding that share a page of their prompts."""
    return SharedPrefix(Automaton(table_of("ar")), policy, Pool(pages, 2), 3, [(3, 3)])


def shared(state: State) -> list[int]:
    """Give by request its pages of the common prompt."""
    return [entry.shared if entry else 0 for entry in state]


def onward(requests: SharedPrefix, state: State, *events: str) -> list[State]:
    """Give the states behind every move of these events, the first where the move has the most."""
    found = [
        (len(move.parts), move.after)
        for move in requests.moves(state)
        if set(events) == {event.name for part in move.parts for event in part.events}
    ]
    return [after for _, after in sorted(found, key=lambda each: -each[0])]


def test_a_prompt_is_found_once_its_prefill_has_landed() -> None:
    """A late host finds pages one iteration later; what takes a request away waits for the round in flight."""
    prefilled = []
    for lag in (0, 1):
        requests = composed(Policy(lag=lag))
        arrived = next(iter(requests.moves(requests.start))).after
        prefilled.append(onward(requests, arrived, "admit", "first")[0])
    assert [[1, 0, 0], [0, 0, 0]] == [shared(state) for state in prefilled]
    late = composed(Policy(lag=1))
    second = next(move for move in late.moves(prefilled[1]) if not move.parts[0].events).after
    # Whoever comes in the same iteration finds nothing, and leaves nothing: it keeps what it wrote.
    (decoded, *_) = onward(late, second, "decode", "admit", "first")
    assert [1, 0, 0] == shared(decoded)
    third = next(move for move in late.moves(decoded) if not move.parts[0].events).after
    hits = [
        dict(event.args)["hit"]
        for move in late.moves(third)
        for part in move.parts
        for event in part.events
        if event.name == "admit"
    ]
    assert {0, 2} == set(hits)
    # An abort lands the prefill in flight first, so that its pages are found at once.
    given_up = onward(late, second, "abort")
    assert [1, 0, 0] in [shared(state) for state in given_up]
    assert not any(entry and entry.seen for state in given_up for entry in state)


def test_nobody_is_preempted_while_a_round_is_in_flight() -> None:
    """The host plans once more when it has seen that round, so that nobody gives pages back that the ended leave."""
    requests = composed(Policy(admit="preempt", lag=1), pages=5)
    todo, met, preempted, spared = [requests.start], {requests.start}, 0, 0
    while todo:
        state = todo.pop()
        moves = list(requests.moves(state))
        events = [{event.name for part in move.parts for event in part.events} for move in moves]
        again = any("preempt" in names for names in events)
        preempted += again
        if requests._decide(state, {})[2].preempt and not again:
            spared += 1
        new = {move.after for move in moves} - met
        met |= new
        todo += new
    assert min(preempted, spared) > 0, (preempted, spared)


def test_the_headroom_of_a_late_host() -> None:
    """A late host takes the largest peak and the largest advance for every round state (isd, n = 2)."""
    table = table_of("isd")
    cold, verify = table.codes["cold"], table.codes["verify"]
    assert [2, 3] == headroom(table)[[cold, verify]].tolist()
    assert [5, 5] == headroom(table, Policy(lag=1))[[cold, verify]].tolist()
    assert (
        longest_pages(table, Pool(99, 1), 4, 3, Policy(lag=1)) - longest_pages(table, Pool(99, 1), 4, 3) == 2
    )


def test_plan_takes_pages_ahead() -> None:
    """The plan owns pages for the round in flight and the next one."""
    import numpy as np  # noqa: PLC0415 - one test needs it

    table = table_of("ar")
    columns = {name: np.zeros(1, np.int32) for name in table.column_names}
    columns |= {"state": np.array([table.codes["decode"]], np.int32), "kv": np.array([4], np.int32)}
    owned = [
        plan(table, Policy(lag=lag), Pool(9, 1), columns, np.zeros(1, np.int32), []).pages[0]
        for lag in (0, 1)
    ]
    assert [5, 6] == owned


def test_a_lag_that_makes_no_sense_is_refused() -> None:
    """A lag of two rounds, and a lag of an abstract model, get a sentence."""
    with pytest.raises(UserError, match="the lag is 2"):
        Bounds(lag=2).refuse_senseless()


def test_who_only_goes_is_no_reason() -> None:
    """A move that breaks something, while a request goes that had ended unseen, is told by the others' columns."""
    table = table_of("ar")
    table.cache["headroom", 1, None] = headroom(table)
    requests = Composition(Automaton(table), Policy(lag=1), Pool(9, 1), 2, [(1, 2), (1, 4)])
    todo = [requests.start]
    for state in todo:
        for move in requests.moves(state):
            ended = [part for part in move.parts if not part.events and state[part.request] is not None]
            if properties.SLOTS in move.broken and ended:
                example = explain(requests, properties.SLOTS, Fault([state], move))
                assert f"request {ended[0].request}:" not in example.why
                return
            if move.after not in todo:
                todo.append(move.after)
    raise AssertionError("no such move")
