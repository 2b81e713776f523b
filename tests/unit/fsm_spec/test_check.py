"""The check by search: counts are pinned, planted faults are refuted by the right property, and bounds are honest."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fsm_spec.checker import properties
from fsm_spec.checker.automaton import Automaton
from fsm_spec.checker.check import PROVED, REFUTED, UNDETERMINED, Bounds, Checked, check, limits_of
from fsm_spec.checker.counterexample import Counterexample
from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.language.expression import Const, parse
from fsm_spec.load import load, loads
from fsm_spec.policy_file import load_policy
from fsm_spec.table import Table
from fsm_spec.tiers import tiers_of

MODELS = Path(__file__).resolve().parents[2] / "models"
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
  always: {a running request has tokens to commit: state == finished or done < total}
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


def kvpool(text: str | None = None) -> Table:
    """Compile the common model, or a change of it, for pages of two slots."""
    path = MODELS / "kvpool.yaml"
    loaded = loads(text or path.read_text(), path.name)
    return compile_table(loaded.spec, check=True, page_size=2, line_of=loaded.line_of)


def only_counterexample(result: Checked) -> Counterexample:
    """Give the steps of the one property that is refuted."""
    (decided,) = result.refuted
    assert decided.counterexample is not None
    return decided.counterexample


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


# states / transitions / depth: reserve and holdback with one request, with two in one's pool, with three.
COUNTS = {
    "ar": [(24, 66, 4), (24, 66, 4), (122, 519, 5), (152, 655, 5), (1268, 8952, 6), (1279, 9064, 7)],
    "isd": [(46, 136, 5), (46, 136, 5), (150, 654, 6), (205, 936, 8), (2281, 18938, 7), (2330, 19552, 7)],
    "linear_spec": [
        (52, 160, 5),
        (52, 160, 5),
        (175, 800, 6),
        (295, 1399, 6),
        (2713, 23497, 7),
        (3746, 39918, 7),
    ],
    "ngram": [
        (101, 668, 5),
        (101, 668, 5),
        (255, 2168, 6),
        (595, 7991, 6),
        (12452, 2667436, 7),
        (13259, 2964890, 7),
    ],
    "uno_linear": [
        (67, 198, 5),
        (67, 198, 5),
        (183, 804, 6),
        (312, 1419, 6),
        (3878, 33769, 7),
        (4001, 35292, 7),
    ],
}


@pytest.mark.parametrize("name", COUNTS)
def test_shipped_specs_are_proved_with_pinned_counts(name: str) -> None:
    """Every property of a shipped spec holds within the bounds, and the searched spaces do not change unnoticed."""
    result = checked(name)
    assert result.verdict == PROVED
    assert {PROVED} == {decided.verdict for decided in result.properties}
    assert COUNTS[name] == [(s.states, s.transitions, s.depth) for s in result.searches]
    assert [("reserve", 1), ("holdback", 1), ("reserve", 2), ("holdback", 2)] == [
        (s.policy, s.requests) for s in result.searches[:4]
    ]
    assert result.seconds < 3
    assert {True} == {searched.complete for searched in result.searches}


@pytest.mark.parametrize("name", ["ar", "isd", "linear_spec", "uno_linear"])
def test_shipped_specs_hold_with_chunks_and_every_policy(name: str) -> None:
    """Prompts cut beside running requests, and preemption of whoever is youngest, break nothing either."""
    result = check(compiled(name), Bounds(chunks=True, policies=("reserve", "holdback", "preempt")))
    assert result.verdict == PROVED
    assert result.bounds["chunks"]


# Verdict, states, transitions and depth with N requests and 3N pages; Spin, TLC, Murphi, Storm and a plain search
# agree on them.
KVPOOL = {
    ("greedy", 2): (REFUTED, 276, 576, 14),
    ("greedy", 3): (REFUTED, 6080, 19890, 21),
    ("greedy", 4): (REFUTED, 137328, 621544, 28),
    ("reserve", 2): (PROVED, 84, 116, 14),
    ("reserve", 3): (PROVED, 2648, 7308, 21),
    ("reserve", 4): (PROVED, 74256, 307168, 28),
    ("preempt", 2): (REFUTED, 376, 878, 14),
    ("preempt", 3): (REFUTED, 9380, 33228, 21),
    ("preempt", 4): (REFUTED, 231728, 1109520, 28),
    ("holdback", 2): (PROVED, 376, 788, 14),
    ("holdback", 3): (PROVED, 9380, 30807, 21),
    ("holdback", 4): (PROVED, 231728, 1052780, 28),
}
ALIKE = {
    ("holdback", 2): 195,
    ("holdback", 3): 1723,
    ("holdback", 4): 11802,
    ("reserve", 2): 43,
    ("reserve", 3): 484,
    ("reserve", 4): 3795,
}


@pytest.mark.parametrize(("policy", "requests"), KVPOOL)
def test_common_model(policy: str, requests: int) -> None:
    """The model that every checker must agree on: verdict and counts, and the states that are left by symmetry."""
    bounds = Bounds(requests, 3 * requests, policies=(policy,), symmetry=False)
    content = check(kvpool(), bounds).content()
    found = (content["verdict"], content["states"], content["transitions"], content["depth"])
    assert KVPOOL[policy, requests] == found
    alike = check(kvpool(), replace(bounds, symmetry=True))
    assert KVPOOL[policy, requests][0] == alike.verdict
    assert ALIKE.get((policy, requests), alike.states) == alike.states


@pytest.mark.parametrize("symmetry", [False, True])
def test_faults_of_the_common_model(symmetry: bool) -> None:  # noqa: FBT001 - pytest gives it
    """Greedy admission has its deadlock 4 N moves away; preemption repeats for ever: told with the shortest steps."""
    for requests in (2, 3, 4):
        bounds = Bounds(requests, 3 * requests, policies=("greedy",), symmetry=symmetry)
        example = only_counterexample(check(kvpool(), bounds))
        assert 4 * requests == example.depth
        assert "deadlock: no move changes anything any more" == example.why
        assert 0 <= example.setting.pool.pages - example.steps[-1].in_use <= 1
        looping = only_counterexample(check(kvpool(), replace(bounds, policies=("preempt",))))
        assert "livelock: the last 2 moves can repeat for ever without progress" == looping.why
        assert looping.loop == looping.depth - 2
        assert ["admit", "preempt"] == [step.event for step in looping.steps[-2:]]


def test_defects_of_the_common_model() -> None:
    """The planted defects are found at their depth: no slot for the bonus token, and pages that trim keeps."""
    text = (MODELS / "kvpool.yaml").read_text()
    bonus = kvpool(text.replace("provisional: b + 1", "provisional: b"))
    result = check(bonus, Bounds(2, 6, policies=("reserve",)))
    assert [properties.TAKEN, "accepted tokens lie in owned pages"] == refuted(result)
    assert [4, 3] == [decided.counterexample.depth for decided in result.refuted if decided.counterexample]
    leak = text.replace("columns:\n", "columns:\n  kept: {init: 0, max: b + 1}\n")
    leak = leak.replace("page_size + com}", "page_size + com, provisional: kept}")
    leak = leak.replace("acc: 0}}", "acc: 0, kept: b + 1}}", 1)
    result = check(kvpool(leak), Bounds(2, 6, policies=("reserve",)))
    found = next(decided for decided in result.refuted if decided.name == properties.COMMITTED_ONLY)
    assert found.counterexample is not None
    assert 4 == found.counterexample.depth


def test_a_pool_that_holds_no_request() -> None:
    """A request that no empty pool could hold is named as the reason."""
    result = check(compiled("ar"), Bounds(pages=2))
    never = "cannot make progress: it may need 3 pages, and the pool has 2 even when empty"
    fits, ends = (decided.counterexample for decided in result.refuted)
    assert [properties.FITS, "every request reaches end"] == refuted(result)
    assert fits is not None
    assert ends is not None
    assert (1, f"broken in step 1: request 0 {never}") == (fits.depth, fits.why)
    assert f"request 0 is in wait: {never}" in ends.reasons
    result = check(kvpool(), Bounds(1, 3, policies=("greedy",)))
    fits, ends = (decided.counterexample for decided in result.refuted)
    assert fits is not None
    assert ends is not None
    assert 0 == fits.depth
    assert "cannot make progress: it may need 4 pages" in ends.reasons[0]


def test_abstract_model() -> None:
    """Requests of an abstract model are admitted like others and interleave."""
    result = check(compiled("phases"), Bounds(symmetry=False, policies=("reserve",)))
    assert result.verdict == PROVED
    assert [1, 2, 3] == [searched.requests for searched in result.searches]
    assert not result.bounds["abort"]
    assert "limits" not in result.bounds


def test_full_contract() -> None:
    """Under the contract `full` KV covers every emitted token where a round starts."""
    result = checked("late")
    assert result.verdict == PROVED
    assert properties.CONTRACT["full"] in [decided.name for decided in result.properties]
    table = compiled("late")
    assert properties.CONTRACT["full"] in refuted(
        check(table.with_row(row_of(table, "decode", "decode"), keep=Const(0)))
    )


def test_bounds_are_reported() -> None:
    """The result says for which requests, pools and parameters it speaks, and which freedoms were on."""
    expected = {
        "params": {"b": 2},
        "requests": [1, 2, 3],
        "pages": [6, 17],
        "page_size": 2,
        "pool": "one longest case for 1 or 2 requests, all longest cases less a page for more",
        "policies": ["reserve", "holdback"],
        "symmetry": True,
        "abort": True,
        "chunks": False,
        "lag": 0,
        "prefix": False,
        "interleave": "rounds",
        "prompts": [1, 2],
        "limits": {"1": [0, 1, 2, 3, 4, 5, 6, 7, 8], "2": [0, 2, 8], "3": [0, 2, 8]},
    }
    assert expected == checked("uno_linear").bounds
    assert (0, 2, 4) == limits_of(compiled("ar"), 2)


def test_an_abstract_model_has_no_lag() -> None:
    """Single events have no rounds that a host could see late."""
    with pytest.raises(UserError, match="phases is an abstract model: it has no rounds"):
        check(compiled("phases"), Bounds(lag=1))


def test_bounds_that_are_given_stand_alone() -> None:
    """Requests given are searched alone, in the pool that so many always get; pages given are those of every search."""
    result = check(compiled("ar"), Bounds(requests=2, policies=("preempt",), abort=False))
    assert [(2, 3)] == [(searched.requests, searched.pages) for searched in result.searches]
    result = check(compiled("ar"), Bounds(pages=20, page_size=4, policies=("preempt",)))
    assert [(1, 20, 4), (2, 20, 4), (3, 20, 4)] == [
        (s.requests, s.pages, s.page_size) for s in result.searches
    ]
    told = [
        check(compiled("ar"), Bounds(requests, pages)).bounds["pool"]
        for requests, pages in ((2, None), (3, None), (2, 9))
    ]
    assert ["one longest case", "all longest cases less a page", "as given"] == told


@pytest.mark.parametrize(
    ("bounds", "sentence"),
    [
        (Bounds(requests=0), "requests must be at least 1, not 0"),
        (Bounds(pages=-1), "pages must be at least 1, not -1"),
        (Bounds(page_size=0), "page size must be at least 1, not 0"),
        (Bounds(max_states=0), "max states must be at least 1, not 0"),
        (Bounds(max_memory=0), "max memory must be at least 1, not 0"),
        (Bounds(policies=()), "no policy is named; name reserve and holdback, for example"),
        (Bounds(policies=("hold",)), "no policy is called 'hold' and no such file exists"),
        (
            Bounds(requests=17),
            "17 requests of 48 local states do not pack into one word; 7 at most, or smaller parameters",
        ),
    ],
)
def test_senseless_bounds_are_refused(bounds: Bounds, sentence: str) -> None:
    """Bounds within which nothing can be searched are refused with one sentence."""
    with pytest.raises(UserError) as refused:
        check(compiled("ar"), bounds)
    assert str(refused.value).startswith(sentence)


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
    ("isd", "cold", "verify", {"target": "cold"}, "drafts are judged"),
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
    result = check(table.with_row(index, **changes), Bounds(requests=2))
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
    assert properties.COMMITTED_ONLY in refuted(check(compile_table(loads(kept).spec, check=True)))
    leaked = PHASES.replace("kv: {}, ignore", "kv: {committed: 1}, ignore")
    assert [properties.RELEASED] == refuted(check(compile_table(loads(leaked).spec, check=True)))


def test_a_state_without_events_is_a_deadlock() -> None:
    """A state of an abstract model that nothing leaves, and that is not the last one, is stuck."""
    table = compiled("phases")
    stuck = table.with_row(row_of(table, "cut", "finished"), sources=("finished",))
    stuck = stuck.with_row(row_of(table, "cut", "draft"), sources=("finished",))
    events = {**stuck.events, "cut": replace(stuck.events["cut"], states=("finished",))}
    result = check(replace(stuck, events=events, cache={}))
    found = next(decided for decided in result.refuted if decided.kind == "eventually")
    assert found.counterexample is not None
    assert "deadlock: no move changes anything any more" == found.counterexample.why
    assert "request 0 is in trim with 1 page: no event leaves this state" in found.counterexample.reasons


def test_greedy_deadlocks_and_the_report_reads_well() -> None:
    """Naive admission lets two requests starve each other; the counterexample shows how, step by step."""
    result = check(compiled("uno_linear"), Bounds(policies=("greedy",)))
    assert [ENDS] == refuted(result)
    expected = """\
2 requests, policy greedy, 6 pages of 2 slots
  step  who        event                          states            changes                    in use  spec
  1     request 0  arrive(prompt = 2, limit = 8)  wait                                         0 of 6
  2     request 1  arrive(prompt = 2, limit = 8)  wait                                         0 of 6
  3     request 0  admit                          wait -> prefill   pages 0 -> 1               1 of 6  line 33
        request 0  first                          prefill -> draft  emitted 0 -> 1, kv 0 -> 2  1 of 6  line 33
        request 1  admit                          wait -> prefill   pages 0 -> 1               2 of 6  line 33
        request 1  first                          prefill -> draft  emitted 0 -> 1, kv 0 -> 2  2 of 6  line 33
  4     request 0  draft                          draft -> verify   kv 2 -> 3, pages 1 -> 3    4 of 6  line 36
        request 0  verify(a = 0)                  verify -> draft   emitted 1 -> 3, kv 3 -> 4  4 of 6  line 37
        request 1  draft                          draft -> verify   kv 2 -> 3, pages 1 -> 3    6 of 6  line 36
        request 1  verify(a = 0)                  verify -> draft   emitted 1 -> 3, kv 3 -> 4  6 of 6  line 37
  deadlock: no move changes anything any more
    request 0 is in draft with 3 pages: its round needs 1 page more
    request 1 is in draft with 3 pages: its round needs 1 page more
    0 pages of 6 are free
"""
    assert expected.splitlines() == only_counterexample(result).lines()


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
    example = found["counterexample"]
    assert "1 request, policy reserve, 6 pages of 2 slots" == example["setting"]
    assert {"emitted": [1, 3], "kv": [2, 3]} == example["steps"][-1]["changes"]
    keys = "spec digest verdict bounds states transitions depth seconds liveness_seconds compile_seconds searches"
    assert [*keys.split(), "properties", "notes"] == list(content)
    keys = "policy requests pages page_size states transitions depth complete seconds liveness_seconds compile_seconds"
    assert keys.split() == list(content["searches"][0])
    assert ["setting", "depth", "steps", "loop", "why", "reasons"] == list(example)
    keys = "move request event args source target line changes columns transition pages in_use"
    assert keys.split() == list(example["steps"][0])
    json.dumps(content)


def test_giving_up_is_undetermined() -> None:
    """A search that stops early decides nothing it has not seen, and says so."""
    result = check(compiled("ngram"), Bounds(max_states=50))
    assert result.verdict == UNDETERMINED
    assert not any(searched.complete for searched in result.searches)
    # Fifty states are enough to see a token accepted; what must always hold stays open.
    assert {UNDETERMINED, PROVED} >= {decided.verdict for decided in result.properties}
    assert UNDETERMINED == next(d.verdict for d in result.properties if d.name == PENDING)


def test_little_memory_is_undetermined() -> None:
    """A search that would not fit the memory is given up with what it has covered."""
    result = check(kvpool(), Bounds(4, 12, symmetry=False, policies=("reserve",), max_memory=1))
    assert result.verdict == UNDETERMINED
    (searched,) = result.searches
    assert 8_000 < searched.states < 20_000
    assert searched.depth < 28


def test_the_first_fault_can_end_the_search() -> None:
    """With `stop_first` nothing is claimed of properties that did not break so far, and no further search begins."""
    table = compiled("isd")
    wrong = table.with_row(row_of(table, "cold", "verify"), keep=Const(0))
    result = check(wrong, Bounds(stop_first=True))
    assert result.verdict == REFUTED
    assert 1 == len(result.searches)
    assert {REFUTED, UNDETERMINED} >= {d.verdict for d in result.properties if d.kind != "sometimes"}
    assert PROVED == check(table, Bounds(stop_first=True)).verdict
    assert REFUTED == check(kvpool(), Bounds(4, 12, policies=("greedy",), stop_first=True)).verdict


def test_progress_is_told() -> None:
    """Each search is told before it starts."""
    heard: list[str] = []
    check(compiled("ar"), Bounds(policies=("reserve",)), heard.append)
    assert ["1 request, policy reserve", "2 requests, policy reserve", "3 requests, policy reserve"] == heard


def test_policy_files_are_taken_as_they_are(tmp_path: Path) -> None:
    """A policy file keeps its own prefill tokens, and a budget that cuts prompts is reported as chunks."""
    file = tmp_path / "mine.yaml"
    file.write_text("policy: mine\nadmit: preempt\nprefill: {tokens: 2, mixed: false}\n")
    result = check(compiled("ar"), Bounds(policies=(str(file),)))
    assert ["mine"] == result.bounds["policies"]
    assert result.bounds["chunks"]
    assert result.verdict == PROVED


def test_expressions_name_states() -> None:
    """A property may compare the state; `sometimes` also looks at the end of a request."""
    text = (
        load("isd")
        .text.replace("check:\n", "check:\n", 1)
        .replace(
            'sometimes: {"drafts are judged": "state == verify"}',
            "sometimes: {one ends: state == end, one runs: state == verify}",
        )
    )
    result = check(compile_table(loads(text).spec, check=True))
    assert result.verdict == PROVED


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


def test_specs_with_forwards_by_single_actions() -> None:
    """With `interleave` forwards end in any order; the same specs hold, and the same admission deadlocks."""
    for name in ("isd", "uno_linear"):
        result = check(compiled(name), Bounds(requests=2, interleave="action"))
        assert (PROVED, "action") == (result.verdict, result.bounds["interleave"])
    result = check(compiled("ar"), Bounds(requests=2, interleave="action", policies=("greedy",), chunks=True))
    example = only_counterexample(result)
    assert "2 requests, policy greedy, 3 pages of 2 slots, one event at a time" == str(example.setting)
    assert "decode needs 1 page more" in example.reasons[0]
    assert result.bounds["chunks"]


@pytest.mark.parametrize(
    ("name", "policy", "counts"),
    [
        ("uno_linear", "tiers", (1649, 8634, 20)),
        ("linear_spec", "tiers", (1362, 6969, 20)),
        ("uno_switching", "tree_alone", (1092, 5120, 18)),
        ("isd_strided", "strides", (850, 5699, 15)),
    ],
)
def test_single_actions_under_tiers(name: str, policy: str, counts: tuple[int, int, int]) -> None:
    """A round runs under the size that it started with, whatever sizes the rounds of others have meanwhile."""
    bounds = Bounds(requests=2, interleave="action", policies=(policy,))
    result = check(compiled(name), bounds)
    (found,) = result.searches
    assert (PROVED, counts) == (result.verdict, (found.states, found.transitions, found.depth))
    assert policy in result.bounds["tiers"]


def test_a_size_that_needs_more_than_it_gets_is_refuted() -> None:
    """Only the larger size has too few pages: rounds of the smaller one do not hide it, and the steps say the size."""
    policy = load_policy("tiers")
    assert policy.tier is not None
    tiers = tiers_of(compiled("uno_linear"), policy.model_copy(update={"tier": policy.tier.small()}))
    large = tiers.largest
    states = tuple(replace(state, peak=state.peak - 2 * state.round) for state in large.states)
    short = replace(large, states=states, cache={})
    key = ("tiers", policy.tier.small(), policy.max_running)
    tables = tuple(short if each is large else each for each in tiers.tables)
    for each in tables:
        each.cache[key] = replace(tiers, tables=tables)
    result = check(short, Bounds(requests=1, pages=40, page_size=1, interleave="action", policies=("tiers",)))
    assert [properties.SLOTS] == refuted(result)
    assert {"b": 3} == only_counterexample(result).steps[-1].sizes


def test_single_actions_have_no_scheduler() -> None:
    """What a scheduler decides for all at once is refused where there are no rounds, and rounds where none exist."""
    with pytest.raises(UserError, match="a late host plans once a round for all"):
        check(compiled("uno_linear"), Bounds(interleave="action", lag=1))
    with pytest.raises(UserError, match="it moves by single actions only"):
        check(compiled("phases"), Bounds(interleave="rounds"))


def test_chosen_properties() -> None:
    """A property is named by a part of its name; the verdict is that of those chosen."""
    greedy = Bounds(requests=2, policies=("greedy",))
    assert REFUTED == check(compiled("ar"), greedy).verdict
    chosen = check(compiled("ar"), replace(greedy, properties=("free + held",)))
    assert (PROVED, [properties.POOL]) == (chosen.verdict, [decided.name for decided in chosen.properties])
    assert [properties.POOL] == chosen.bounds["properties"]
    both = replace(greedy, properties=("Every  request reaches end", "free + held"), stop_first=True)
    assert ["every request reaches end"] == refuted(check(compiled("ar"), both))
    # A property that is not chosen ends no search.
    alone = replace(greedy, properties=("free + held",), stop_first=True)
    assert PROVED == check(compiled("ar"), alone).verdict
    for name, sentence in (
        ("page", "'page' is part of several properties: every slot"),
        ("evry request reaches end", 'did you mean "every request reaches end"'),
        ("request 1 reaches end", "claims something of one request or under fairness"),
        ("every request reaches end under weak fairness", "without any fairness"),
    ):
        with pytest.raises(UserError, match=sentence):
            check(compiled("ar"), Bounds(properties=(name,)))


def test_a_peak_that_no_outcome_needs_is_noted() -> None:
    """A slot too many a round is no fault of safety, and holds pages for nothing."""
    table = compiled("ar")
    assert () == check(table, Bounds(requests=1)).notes
    states = tuple(replace(state, peak=state.peak + state.round) for state in table.states)
    (note,) = check(replace(table, states=states, cache={}), Bounds(requests=1)).notes
    assert "a round from decode reserves 2 slots above kv, and no outcome uses more than 1" in note


def test_behind_a_step_that_leads_nowhere_liveness_is_open() -> None:
    """A state from which something moves is no deadlock, and what lies behind a missing row is not known."""
    table = compiled("ar")
    (row,) = (row for row in table.rows if row.event == "decode")
    result = check(table.with_row(row.index, guard=parse("kv < 0", "bool")), Bounds(requests=1))
    verdicts = {decided.name: decided.verdict for decided in result.properties}
    assert (REFUTED, UNDETERMINED) == (verdicts[properties.HANDLED], verdicts["every request reaches end"])
    assert (3,) == tuple(each.counterexample.depth for each in result.refuted if each.counterexample)


def test_prompts_that_share_pages() -> None:
    """With a prefix cache pages have several holders; nobody writes them, and the last one gives them back."""
    result = check(compiled("ar"), Bounds(requests=2, prefix=True))
    assert (PROVED, True, [2, 3]) == (result.verdict, result.bounds["prefix"], result.bounds["prompts"])
    assert properties.SHARED in [decided.name for decided in result.properties]
    alone = check(compiled("ar"), Bounds(requests=2))
    assert properties.SHARED not in [decided.name for decided in alone.properties]
    example = only_counterexample(
        check(compiled("isd"), Bounds(requests=2, prefix=True, policies=("greedy",)))
    )
    assert str(example.setting).endswith("prefix cache")
    # The plain search gives up as the compiled one does.
    assert UNDETERMINED == check(compiled("ar"), Bounds(requests=2, prefix=True, max_states=20)).verdict


@pytest.mark.parametrize(
    ("name", "bounds", "sentence"),
    [
        ("ar", Bounds(prefix=True, interleave="action"), "a prefix cache is the scheduler's"),
        ("phases", Bounds(prefix=True), "it has no prompts to share"),
    ],
)
def test_what_cannot_share_pages(name: str, bounds: Bounds, sentence: str) -> None:
    """Bounds that exclude each other get a sentence."""
    with pytest.raises(UserError, match=sentence):
        check(compiled(name), bounds)
