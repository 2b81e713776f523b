"""The check by search: counts are pinned, planted faults are refuted by the right property, and bounds are honest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from fsm_spec import properties
from fsm_spec.automaton import Automaton
from fsm_spec.check import HOLDS, REFUTED, UNDETERMINED, Checked, check, limits_of
from fsm_spec.compile import compile_table
from fsm_spec.composition import ENDED, Composition, Held, Interleaving, Move, State
from fsm_spec.counterexample import Counterexample, StepShown, explain
from fsm_spec.errors import UserError
from fsm_spec.expression import Const, parse
from fsm_spec.load import load, loads
from fsm_spec.policy import Plan, Policy, Pool, plan
from fsm_spec.search import Fault, search
from fsm_spec.table import Table

PENDING = properties.CONTRACT["pending"]
ENDS = "every request reaches end"

# The phases of one request of the common model, without its pool.
PHASES = """
spec: phases
params:
  window: {range: [1, 4], default: 2, check: 2}
  total: {range: [1, 9], default: 4, check: 4}
columns:
  done: {init: 0, max: total}
  seen: {init: 0, max: window}
states:
  draft: {phase: draft, round: true, start: true, kv: {committed: done}, ignore: [judge, cut]}
  verify: {phase: verify, kv: {committed: done, provisional: window + 1}, ignore: [propose, cut]}
  trim: {phase: commit, kv: {committed: done, provisional: seen + 1}, ignore: [propose, judge]}
  finished: {phase: commit, kv: {}, ignore: [propose, judge, cut]}
events:
  propose: {}
  judge: {args: {a: {range: [0, window]}}}
  cut: {}
transitions:
  - {from: draft, on: propose, to: verify}
  - {from: verify, on: judge, to: trim, set: {seen: a}}
  - {from: trim, on: cut, when: done + seen + 1 < total, to: draft, set: {done: done + seen + 1, seen: 0}}
  - {from: trim, on: cut, when: done + seen + 1 >= total, to: finished, set: {done: total, seen: 0}}
check:
  always: {a running request has tokens to commit: done < total}
  sometimes: {a draft is accepted: done > 1}
  eventually: finished
"""

# A spec whose contract is `full`: the newest token is known, and emitted a round later.
FULL = """
spec: late
lossless: {claim: greedy, why: the argmax of the target}
contract: full
forwards:
  decode:
    rows: [{name: last, source: pending, logits: shifted, kv: keep}]
    ops: [{op: sample, rule: argmax, rows: last, out: next}]
states:
  decode: {phase: verify, forward: decode, round: true, start: true}
transitions:
  - {from: decode, to: decode, keep: 1, emit: [pending], set: {pending: next}}
"""


@cache
def compiled(name: str) -> Table:
    """Compile a shipped spec, or one of this file, for the checker's parameters."""
    own = {"phases": PHASES, "late": FULL}
    loaded = loads(own[name], f"{name}.yaml") if name in own else load(name)
    return compile_table(loaded.spec, check=True, line_of=loaded.line_of)


@cache
def checked(name: str) -> Checked:
    """Check a spec under the default policies."""
    return check(compiled(name))


def refuted(result: Checked) -> list[str]:
    """Name what does not hold."""
    return [decided.name for decided in result.refuted]


def row_of(table: Table, event: str, target: str) -> int:
    """Find a row of the spec by event and target."""
    return next(
        row.index for row in table.rows if not row.built_in and (row.event, row.target) == (event, target)
    )


# states / transitions / depth: reserve and holdback with one request; then with two and the small pool, and the tight
# one.
COUNTS = {
    "ar": [(24, 44, 4), (24, 44, 4), (138, 478, 5), (174, 629, 5), (174, 682, 5), (178, 704, 5)],
    "isd": [(46, 92, 5), (46, 92, 5), (169, 593, 6), (237, 918, 8), (254, 1161, 7), (273, 1278, 7)],
    "linear_spec": [
        (52, 110, 5),
        (52, 110, 5),
        (197, 731, 6),
        (324, 1328, 7),
        (238, 1014, 6),
        (368, 1941, 7),
    ],
    "ngram": [(101, 252, 5), (101, 252, 5), (287, 1214, 6), (664, 3355, 7), (679, 5203, 7), (787, 6276, 7)],
    "uno_linear": [(67, 133, 5), (67, 133, 5), (206, 727, 6), (341, 1344, 7), (349, 1636, 6), (376, 1793, 9)],
}


@pytest.mark.parametrize("name", COUNTS)
def test_shipped_specs_hold_with_pinned_counts(name: str) -> None:
    """Every property of a shipped spec holds within the bounds, and the searched spaces do not change unnoticed."""
    result = checked(name)
    assert result.verdict == HOLDS
    assert {HOLDS} == {decided.verdict for decided in result.properties}
    assert COUNTS[name] == [(s.states, s.transitions, s.depth) for s in result.searches]
    assert [("reserve", 1), ("holdback", 1), ("reserve", 2), ("holdback", 2)] == [
        (s.policy, s.requests) for s in result.searches[:4]
    ]


def test_abstract_model() -> None:
    """Requests without a scheduler interleave: two of them have the product of the states of one."""
    result = checked("phases")
    assert result.verdict == HOLDS
    assert [(21, 28, 6), (21**2, 2 * 21 * 28, 12)] == [
        (s.states, s.transitions, s.depth) for s in result.searches
    ]
    assert result.bounds["pool"] is None
    assert result.searches[0].policy is None


def test_full_contract() -> None:
    """Under the contract `full` KV covers every emitted token where a round starts."""
    result = checked("late")
    assert result.verdict == HOLDS
    assert properties.CONTRACT["full"] in [decided.name for decided in result.properties]
    table = compiled("late")
    assert properties.CONTRACT["full"] in refuted(
        check(table.with_row(row_of(table, "decode", "decode"), keep=Const(0)))
    )


def test_bounds_are_reported() -> None:
    """The result says for which requests, pools and parameters it speaks."""
    bounds = checked("uno_linear").bounds
    assert {"b": 2} == bounds["params"]
    assert {"pages": [6, 11], "page_size": 2} == bounds["pool"]
    assert {"1": [0, 1, 2, 3, 4, 5, 6, 7, 8], "2": [0, 2, 8]} == bounds["limits"]
    assert {"reserve": 3, "holdback": 3} == bounds["prefill_tokens"]
    assert (0, 2, 4) == limits_of(compiled("ar"), 2)


MUTANTS: list[tuple[str, str, str, dict[str, Any], str]] = [
    # One slot less or more than tokens emitted: the newest token loses its KV, or a draft's stays.
    ("uno_linear", "verify", "draft", {"keep": parse("a")}, PENDING),
    ("uno_linear", "verify", "draft", {"keep": parse("a + 2")}, properties.VERIFIED),
    ("uno_linear", "draft", "verify", {"keep": Const(2)}, properties.VERIFIED),
    ("linear_spec", "draft", "verify", {"keep": Const(1)}, properties.VERIFIED),
    ("isd", "verify", "cold", {"keep": parse("a + 3")}, properties.VERIFIED),
    ("isd", "verify", "verify", {"keep": Const(9)}, properties.BOUNDS),
    ("ngram", "verify", "propose", {"keep": parse("found + 1")}, properties.VERIFIED),
    # One token less than slots kept.
    ("uno_linear", "verify", "draft", {"emit": 2}, PENDING),
    ("isd", "verify", "cold", {"emit": 1}, PENDING),
    # Another target: a verify that no pages were taken for, an end without cause, a round that goes back to prefill.
    ("uno_linear", "verify", "draft", {"target": "verify"}, properties.SLOTS),
    ("uno_linear", "verify", "draft", {"target": "end"}, properties.FINISH),
    ("uno_linear", "verify", "draft", {"target": "prefill"}, properties.ROUND),
    ("isd", "cold", "verify", {"target": "cold"}, "a draft is accepted"),
    # A draft that is never judged goes on for ever, between rounds and inside one.
    ("uno_linear", "verify", "draft", {"target": "verify", "keep": Const(0), "emit": 0}, ENDS),
    ("linear_spec", "draft", "verify", {"target": "draft"}, ENDS),
    # A guard that leaves a gap.
    ("isd", "verify", "cold", {"guard": parse("a < 0", "bool")}, properties.HANDLED),
    # A column beyond its bound.
    ("ngram", "propose", "verify", {"sets": (("found", parse("count + 1")),)}, properties.BOUNDS),
    ("ar", "decode", "decode", {"sets": (("emitted", parse("limit + 1")),)}, properties.LIMIT),
    ("phases", "judge", "trim", {"sets": (("seen", parse("a + 1")),)}, properties.BOUNDS),
    # An abstract round that ends with provisional slots, and a finished request that holds some.
    ("phases", "propose", "verify", {"target": "draft"}, "every request reaches finished"),
    ("phases", "cut", "finished", {"target": "draft"}, "a running request has tokens to commit"),
]


@pytest.mark.parametrize(("name", "event", "target", "changes", "expected"), MUTANTS)
def test_mutants_are_refuted(
    name: str, event: str, target: str, changes: dict[str, Any], expected: str
) -> None:
    """One changed row of a table is refuted by the property it breaks, with steps that lead there."""
    table = compiled(name)
    index = row_of(table, event, target)
    if isinstance(changes.get("emit"), int):
        changes = changes | {"emit": table.rows[index].emit[: changes["emit"]]}
    result = check(table.with_row(index, **changes))
    assert result.verdict == REFUTED
    assert expected in refuted(result)
    found = next(decided for decided in result.refuted if decided.name == expected)
    if found.kind == "sometimes":
        assert found.counterexample is None
    else:
        assert found.counterexample is not None
        assert found.counterexample.steps or name == "phases"


def test_holdings_of_abstract_models() -> None:
    """An abstract model that keeps provisional slots at a round point, or any slot at its end, is refuted."""
    kept = PHASES.replace(
        "kv: {committed: done}, ignore: [judge", "kv: {committed: done, scratch: 1}, ignore: [judge"
    )
    assert [properties.COMMITTED_ONLY] == refuted(check(compile_table(loads(kept).spec, check=True)))
    leaked = PHASES.replace("kv: {}, ignore", "kv: {committed: 1}, ignore")
    assert [properties.RELEASED] == refuted(check(compile_table(loads(leaked).spec, check=True)))


def test_a_state_without_events_is_a_deadlock() -> None:
    """A state of an abstract model that nothing leaves, and that is not the last one, is stuck."""
    table = compiled("phases")
    stuck = table.with_row(row_of(table, "cut", "finished"), sources=("finished",))
    stuck = stuck.with_row(row_of(table, "cut", "draft"), sources=("draft",))
    events = {**stuck.events, "cut": replace(stuck.events["cut"], states=("draft", "finished"))}
    result = check(replace(stuck, events=events, cache={}))
    found = next(decided for decided in result.refuted if decided.kind == "eventually")
    assert found.counterexample is not None
    assert "deadlock: no move changes anything any more; request 0 is in trim" == found.counterexample.why


def test_greedy_deadlocks_and_the_report_reads_well() -> None:
    """Naive admission lets two requests starve each other; the counterexample shows how, step by step."""
    result = check(compiled("uno_linear"), ["greedy"])
    assert [ENDS] == refuted(result)
    example = result.refuted[0].counterexample
    assert example is not None
    expected = """\
2 requests, policy greedy, 6 pages of 2 slots
  step  who        event                          states            changes                    pages   spec
  1     request 0  arrive(prompt = 1, limit = 8)  wait
  2     request 1  arrive(prompt = 1, limit = 8)  wait
  3     request 0  admit                          wait -> prefill                              0 -> 1  line 33
        request 0  first                          prefill -> draft  emitted 0 -> 1, kv 0 -> 1  1       line 33
        request 1  admit                          wait -> prefill                              0 -> 1  line 33
        request 1  first                          prefill -> draft  emitted 0 -> 1, kv 0 -> 1  1       line 33
  4     request 0  draft                          draft -> verify   kv 1 -> 2                  1 -> 2  line 36
        request 0  verify(a = 0)                  verify -> draft   emitted 1 -> 3, kv 2 -> 3  2       line 37
"""
    assert expected.splitlines() == example.lines()[:10]
    assert example.why.startswith("deadlock: no move changes anything any more; request 0 is in draft with")


def test_counterexample_of_a_broken_contract() -> None:
    """The shortest way to a broken contract: what changes, the pages, the line of the file, the columns found."""
    table = compiled("isd")
    result = check(table.with_row(row_of(table, "cold", "verify"), keep=Const(0)))
    assert [PENDING, "the newest token alone has no KV"] == refuted(result)
    example = result.refuted[0].counterexample
    assert example is not None
    last = example.steps[-1]
    assert ("cold", "cold", "verify", 35) == (last.event, last.source, last.target, last.line)
    assert {"emitted": (1, 2)} == last.changes
    assert "broken in step 3: request 0: prompt = 1, limit = 3, emitted = 2, kv = 1" == example.why
    stops = [step for step in example.steps if "token" in str(step.args)]
    assert [] == stops


def test_stop_tokens_are_shown_where_they_matter() -> None:
    """A step whose run holds a stop token says which one."""
    table = compiled("ar")
    index = next(row.index for row in table.rows if row.event == "first" and row.emit)
    # A first token that keeps nothing: KV falls below 0 where the cut takes one more away.
    result = check(table.with_row(index, keep=Const(0)))
    lines = [
        line
        for decided in result.refuted
        if decided.counterexample
        for line in decided.counterexample.lines()
    ]
    assert any("first" in line for line in lines)
    automaton = Automaton(table)
    waiting = automaton.values(table.new_request(1, 3))
    ways = automaton.admit(waiting, 1)
    assert [0] == [way.events[1].args["stop"] for way in ways if automaton.state_of(way.after) == "end"]


def test_json_content() -> None:
    """The result as JSON values has counts, bounds, and steps of counterexamples."""
    table = compiled("uno_linear")
    content = check(table.with_row(row_of(table, "verify", "draft"), target="end")).content()
    assert REFUTED == content["verdict"]
    assert content["states"] == sum(each["states"] for each in content["searches"])
    found = next(each for each in content["properties"] if each["name"] == properties.FINISH)
    assert "1 request, policy reserve, 6 pages of 2 slots" == found["counterexample"]["setting"]
    assert {"emitted": [1, 3], "kv": [2, 3]} == found["counterexample"]["steps"][-1]["changes"]


def test_giving_up_is_undetermined() -> None:
    """A search that stops early decides nothing it has not seen, and says so."""
    result = check(compiled("ngram"), most_states=50)
    assert result.verdict == UNDETERMINED
    assert not any(searched.complete for searched in result.searches)
    # Fifty states are enough to see a token accepted; what must always hold stays open.
    assert {UNDETERMINED, HOLDS} >= {decided.verdict for decided in result.properties}
    assert UNDETERMINED == next(d.verdict for d in result.properties if d.name == PENDING)


def test_progress_is_told() -> None:
    """A long search tells how many states it has met; a short one says nothing."""
    heard: list[int] = []
    check(compiled("ar"), tick=heard.append)
    assert [] == heard
    check(compiled("phases"), tick=heard.append)
    assert [319] == heard


def test_searches_with_many_moves_are_given_up() -> None:
    """Where states have dozens of successors, moves bound the search before states do."""
    loaded = load("ngram")
    automaton = Automaton(compile_table(loaded.spec, {"k": 5}, check=True))
    composed = Composition(automaton, Policy(), Pool(60, 2), 2, [(1, 9)])
    whole = search(composed, 2_000)
    assert whole.complete
    assert not search(composed, whole.states + 1).complete


def test_policy_files_are_taken_as_they_are(tmp_path: Path) -> None:
    """A policy file keeps its own prefill tokens; an unknown policy is refused."""
    file = tmp_path / "mine.yaml"
    file.write_text("policy: mine\nadmit: preempt\nprefill: {tokens: 5, mixed: false}\n")
    result = check(compiled("ar"), [str(file)])
    assert {"mine": 5} == result.bounds["prefill_tokens"]
    assert result.verdict == HOLDS
    with pytest.raises(UserError, match="no policy is called 'hold'"):
        check(compiled("ar"), ["hold"])


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

        monkeypatch.setattr("fsm_spec.composition.plan", wrong)

    with_pages(5)
    assert properties.POOL in refuted(check(compiled("ar")))
    with_pages(-1)
    assert properties.SLOTS in refuted(check(compiled("ar")))


def test_livelock_of_a_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that are admitted and preempted in turn, for ever, are found as a cycle."""
    true_plan = plan

    def thrash(*args: Any) -> Plan:  # noqa: ANN401 - handed on
        decided = true_plan(*args)
        everyone = tuple(range(len(decided.pages)))
        return Plan(
            everyone, decided.pages * 0, decided.run[:0], (), decided.admit, (0,) * len(decided.admit)
        )

    monkeypatch.setattr("fsm_spec.composition.plan", thrash)
    result = check(compiled("ar"))
    assert ENDS in refuted(result)
    example = next(d.counterexample for d in result.refuted if d.name == ENDS)
    assert example is not None
    assert example.why.startswith(
        "livelock: the last 2 moves can repeat for ever without a token; request 0 is in"
    )
    assert ["arrive", "admit", "preempt"] == [step.event for step in example.steps]


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


def test_interleaving_by_hand() -> None:
    """Each request of an abstract model moves alone, in all ways of its event."""
    composed = Interleaving(Automaton(compiled("phases")), 2)
    first = list(composed.moves(composed.start))
    assert [0, 1] == [move.parts[0].request for move in first]
    second = list(composed.moves(first[0].after))
    assert 3 + 1 == len(second)


def test_expressions_name_states() -> None:
    """A property may compare the state; `sometimes` also looks at the end of a request."""
    text = (
        load("isd")
        .text.replace("check:\n", "check:\n", 1)
        .replace(
            'sometimes: {"a draft is accepted": "state == verify and emitted > 3"}',
            "sometimes: {one ends: state == end, one runs: state == verify}",
        )
    )
    result = check(compile_table(loads(text).spec, check=True))
    assert result.verdict == HOLDS


def test_unread_guard_value() -> None:
    """The run of an event without a fitting row has no length; the fault is the missing row."""
    table = compiled("isd")
    broken = table.with_row(row_of(table, "cold", "verify"), guard=parse("kv < 0", "bool"))
    result = check(broken)
    found = next(decided for decided in result.refuted if decided.name == properties.HANDLED)
    assert found.counterexample is not None
    assert "isd: 0 guards hold for the event cold in state cold; exactly one must" in found.counterexample.why


def test_kept_slots_follow_each_other() -> None:
    """Rows whose slots leave a gap above the committed ones cannot become committed."""
    table = compiled("ar")
    plan = table.forwards["decode"]
    moved = replace(plan, segments=(replace(plan.segments[0], slot=parse("kv + 1")),))
    assert properties.VERIFIED in refuted(check(replace(table, forwards={"decode": moved}, cache={})))


def test_a_round_that_cannot_go_on() -> None:
    """A state inside a round that has no forward to complete is stuck there."""
    table = compiled("uno_linear")
    states = tuple(replace(each, forward=None) if each.name == "verify" else each for each in table.states)
    assert ENDS in refuted(check(replace(table, states=states, cache={})))


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


def test_words_of_a_step() -> None:
    """A stop token and its place, and ended requests, are told as a person would."""
    step = StepShown(1, 0, "verify", {"a": 1, "stop": 0}, "verify", "end", 7, {})
    rows = Counterexample("name", "setting", (step,), "why").lines()
    assert "verify(a = 1, token 1 is a stop)" in rows[2]
    automaton = Automaton(compiled("ar"))
    composed = Composition(automaton, Policy(), Pool(3, 2), 2, [(1, 2)])
    held = Held(automaton.values(compiled("ar").new_request(1, 2)), 1)
    fault = Fault([(ENDED, held)], None, "stuck")
    assert "stuck; request 1 is in wait with 1 page; 2 pages free" == explain(composed, "name", fault).why


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

    def moves(self, state: State) -> Iterator[Move]:
        """Yield the moves of the graph."""
        (entry,) = state
        assert entry is not None
        for successor in self.successors.get(entry.columns[0], []) if entry.columns else ():
            yield Move((), self.state(successor), by_scheduler=True)


@pytest.mark.parametrize(
    ("successors", "path"),
    [
        # A straight way to the end.
        ({0: [1], 1: [99]}, None),
        # A state that leads to itself beside the end.
        ({0: [0, 99]}, [0, 0]),
        # A way to the end beside a way into a cycle.
        ({0: [1, 99], 1: [2], 2: [1]}, [0, 1, 2, 1]),
        # A bridge between two cycles is met before either; the nearest state that is on a cycle counts.
        ({0: [1, 2], 1: [4, 99], 2: [3], 3: [2, 1], 4: [5, 1], 5: [99, 4]}, [0, 1, 4, 1]),
        ({0: [1, 2], 1: [4], 2: [3], 3: [2, 1], 4: [5], 5: [6, 99], 6: [4, 5]}, [0, 2, 3, 2]),
    ],
)
def test_cycles_without_progress(successors: dict[int, list[int]], path: list[int] | None) -> None:
    """The nearest state on a cycle is found, and the shortest way around."""
    fault = search(cast("Composition", Graph(successors)), 100).broken.get(ENDS)
    assert path == (fault and [entry.columns[0] for (entry,) in fault.path if entry])


def test_a_dead_end_is_found() -> None:
    """A state that nothing leaves, with work left, is a deadlock; its path is the shortest."""
    fault = search(cast("Composition", Graph({0: [1, 2], 1: [99], 2: [1, 3]})), 100).broken[ENDS]
    assert [(Held((0,)),), (Held((2,)),), (Held((3,)),)] == fault.path
