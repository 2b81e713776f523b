"""A trace followed through the checker's automaton: what the checker proves is said of ways that it knows.

`replay.py` holds a trace to the table; this holds it to what `checker/automaton.py` makes of that table: every
argument lies in its range, no property breaks, and a round's slots fit in the pages that its plan gave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fsm_spec.checker import properties
from fsm_spec.checker.automaton import Automaton, automaton_of
from fsm_spec.life_cycle import ADMIT, CHUNK, HALT
from fsm_spec.policy import Policy, Pool
from fsm_spec.table import Table
from fsm_spec.tiers import tiers_of

Record = Mapping[str, Any]


def follow(table: Table, policy: Policy, pool: Pool, records: Iterable[Record]) -> int:
    """Hold every step of a trace to the automaton; gives how many rounds were held.

    Raises AssertionError at the first step that the checker does not know, or in which a property breaks.
    """
    tiers = tiers_of(table, policy)
    known = Automaton(tiers.largest)
    automaton = known
    columns: dict[int, dict[str, int]] = {}
    begun: dict[int, dict[str, int]] = {}
    pages: dict[int, int] = {}
    rounds = 0
    for record in records:
        if "arrive" in record:
            columns[record["arrive"]] = tiers.largest.new_request(record["prompt"], record["limit"])
        elif "plan" in record:
            plan = record["plan"]
            automaton = automaton_of(tiers.of_size(plan.get("tier")), known)
            pages |= dict(plan["pages"]) | {number: taken for number, taken, _ in plan["admit"]}
        elif "event" in record:
            number, after = record["request"], record["columns"]
            before, columns[number] = columns[number], after
            _hold_event(automaton, before, record)
            if _rests(automaton, before):
                begun[number] = before
            if record["event"] in automaton.table.codes and _rests(automaton, after):
                _hold_round(automaton, begun[number], after, pages[number] * pool.page_size)
                rounds += 1
    return rounds


def _rests(automaton: Automaton, columns: Mapping[str, int]) -> bool:
    """Tell whether a request is at a round point, or outside of rounds."""
    state = automaton.table.states[columns["state"]]
    return state.round or state.built_in


def _hold_event(automaton: Automaton, before: Mapping[str, int], record: Record) -> None:
    """Find a step among the ways of its event, with just its arguments, and hold that way to break nothing."""
    event, args = record["event"], record["args"]
    given = dict(args) if event in (ADMIT, CHUNK, HALT) else {}
    ways = [
        way
        for way in automaton._event(automaton.values(before), event, given)
        if way.events[0].args.items() <= args.items()
    ]
    assert ways, f"the checker knows no such arguments: {record}"
    assert any(way.after == automaton.values(record["columns"]) for way in ways), (
        f"the checker goes elsewhere: {record}"
    )
    assert not any(way.broken for way in ways), f"{ways[0].broken}: {record}"


def _hold_round(automaton: Automaton, begun: Mapping[str, int], after: Mapping[str, int], slots: int) -> None:
    """Find a whole round among the checker's that uses no more slots than the plan gave."""
    ways = [way for way in automaton.round(automaton.values(begun)) if way.after == automaton.values(after)]
    assert any(not way.broken for way in ways), f"no round of the checker leads from {begun} to {after}"
    assert min(way.used for way in ways) <= slots, f"{properties.SLOTS}: {begun} to {after} in {slots} slots"
