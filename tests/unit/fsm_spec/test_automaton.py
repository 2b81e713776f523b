"""The local automaton of one request: ways to one end are one, and what is broken goes on where it can."""

from __future__ import annotations

from functools import cache

from fsm_spec.checker import properties
from fsm_spec.checker.automaton import Automaton
from fsm_spec.compile import compile_table
from fsm_spec.language.expression import Const, parse
from fsm_spec.load import load
from fsm_spec.table import Table


@cache
def compiled(name: str) -> Table:
    """Compile a shipped spec for the checker's parameters."""
    loaded = load(name)
    return compile_table(loaded.spec, check=True, line_of=loaded.line_of)


def row_of(table: Table, event: str, target: str) -> int:
    """Find a row of the spec by event and target."""
    return next(
        row.index for row in table.rows if not row.built_in and (row.event, row.target) == (event, target)
    )


def test_ways_to_one_place_are_one() -> None:
    """Outcomes that lead to the same columns are one way, inside a round too."""
    table = compiled("ngram")
    automaton = Automaton(table.with_row(row_of(table, "propose", "verify"), sets=(("found", Const(0)),)))
    running = automaton.values(
        table.new_request(1, 8) | {"state": table.codes["propose"], "emitted": 1, "kv": 1}
    )
    ways = automaton.round(running)
    assert ["propose", "end"] == [automaton.state_of(way.after) for way in ways]
    assert {"count": 0} == ways[0].events[0].args


def test_a_broken_round_goes_on() -> None:
    """A round that breaks a property in its first half runs to its end, with the property named."""
    table = compiled("uno_linear")
    automaton = Automaton(table.with_row(row_of(table, "draft", "verify"), keep=Const(2)))
    running = automaton.values(
        table.new_request(1, 8) | {"state": table.codes["draft"], "emitted": 1, "kv": 1}
    )
    ways = automaton.round(running)
    assert {"draft", "end"} == {automaton.state_of(way.after) for way in ways}
    assert all(properties.VERIFIED in way.broken and not way.lost for way in ways)
    assert all(["draft", "verify"] == [event.name for event in way.events] for way in ways)


def test_what_finds_no_row_leads_nowhere() -> None:
    """An event without a row is a lost way, and so is one whose columns leave their bounds."""
    table = compiled("isd")
    automaton = Automaton(table.with_row(row_of(table, "cold", "verify"), guard=parse("kv < 0", "bool")))
    running = automaton.values(
        table.new_request(1, 6) | {"state": table.codes["cold"], "emitted": 1, "kv": 1}
    )
    (way,) = automaton.round(running)
    assert way.lost
    assert (properties.HANDLED,) == way.broken
    far = Automaton(table.with_row(row_of(table, "cold", "verify"), keep=Const(40)))
    assert all(way.lost for way in far.round(running) if properties.BOUNDS in way.broken)


def test_a_stop_token_may_end_the_first_token() -> None:
    """The first token may be a stop, which ends the request where it is."""
    automaton = Automaton(compiled("ar"))
    waiting = automaton.values(compiled("ar").new_request(1, 3))
    ways = automaton.admit(waiting, 1)
    assert [0] == [way.events[1].args["stop"] for way in ways if automaton.state_of(way.after) == "end"]
