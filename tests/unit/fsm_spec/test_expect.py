"""Expected values: the numbers of the common model, all outcomes by hand, cycles, ends that never come."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest

from fsm_spec import life_cycle
from fsm_spec.checker import chain
from fsm_spec.checker.chances import Chances, chances_of
from fsm_spec.checker.expect import Expected, expect
from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.language.expression import evaluate
from fsm_spec.load import load, loads, shipped
from fsm_spec.oracle import next_event, oracle
from fsm_spec.table import END, NO_STOP, PREFILL, STOP, Table

KVPOOL = "tests/models/kvpool.yaml"
TOSS = """\
spec: toss
events: {toss: {args: {n: {range: [0, 1]}}}}
states: {idle: {phase: draft, round: true, start: true, kv: {committed: 1}}}
transitions:
  - {from: idle, on: toss, when: n == 0, to: idle}
  - {from: idle, on: toss, when: n == 1, to: end}
check: {eventually: end}
"""


def table_of(spec: str, **params: int) -> Table:
    """Compile a spec for the checker's parameters, or for those given."""
    return compile_table(load(spec).spec, params, check=True, page_size=2)


def expected(spec: str, texts: list[str], limit: int = 12, **params: int) -> Expected:
    """Compute the expected values of a spec."""
    table = table_of(spec, **params)
    return expect(table, chances_of(table, texts), limit)


@pytest.mark.parametrize(
    ("rate", "rounds"),
    [("0.5", Fraction(21, 8)), ("0.7", Fraction(2243, 1000)), ("0.9", Fraction(2029, 1000))],
)
def test_numbers_of_the_common_model(rate: str, rounds: Fraction) -> None:
    """Two drafts, four tokens: Storm's 2.625, 2.243 and 2.029 rounds, exactly."""
    found = expected(KVPOOL, [f"a=geometric:{rate}"], b=2, l=4)
    assert rounds == found.rounds
    assert (None, None) == (found.tokens_per_round, found.tokens_per_forward)
    # A page of two slots for the prompt, three slots of a round, and what the earlier rounds have committed.
    assert 5 < found.peak_slots <= 8


def paths(
    table: Table, columns: dict[str, int], laws: dict[str, Chances]
) -> Iterator[tuple[Fraction, int, int, int, int]]:
    """Yield (chance, rounds, forwards, tokens, peak) of every way a request can go from here to its end."""
    event = next_event(table, columns)
    if event is None:
        assert END == table.states[columns["state"]].name
        yield Fraction(1), 0, 0, 0, columns["kv"]
        return
    state = table.states[columns["state"]]
    assert state.forward is not None
    plan = table.forwards[state.forward]
    ends = [evaluate(seg.slot, columns) + evaluate(seg.count, columns) for seg in plan.segments]
    outcomes: list[tuple[Fraction, dict[str, int]]] = [(Fraction(1), {})]
    for arg in table.events[event].args:
        low = evaluate(arg.low, columns)
        law = laws[arg.name].law(evaluate(arg.high, columns) - low)
        outcomes = [
            (chance * part, {**args, arg.name: low + count})
            for chance, args in outcomes
            for count, part in enumerate(law)
        ]
    for chance, args in outcomes:
        after = oracle(table, columns, event, {**args, STOP: NO_STOP})
        for more, rounds, forwards, tokens, peak in paths(table, after.columns, laws):
            yield (
                chance * more,
                rounds + state.round,
                forwards + (plan.model is None and bool(plan.segments)),
                tokens + after.emitted,
                # Slots of all caches have the same numbers: the last one says how many are held.
                max(peak, columns["kv"], *ends),
            )


@pytest.mark.parametrize("limit", [1, 2, 6])
@pytest.mark.parametrize("spec", sorted(shipped()))
def test_values_equal_the_sum_over_all_ways(spec: str, limit: int) -> None:
    """The chain gives what an enumeration of all ways of a short request gives, as equal fractions."""
    table = table_of(spec)
    rates = {"a": "0.7", "count": "0.6", "rest": "0.4", "granted": "0.8", "edges": "0.7"}
    names = {arg.name for event in table.events.values() for arg in event.args}
    texts = [f"{name}=geometric:{rate}" for name, rate in rates.items() if name in names]
    laws = chances_of(table, texts)
    columns = oracle(table, table.new_request(1, limit), life_cycle.ADMIT, {"hit": 0}).columns
    if table.states[columns["state"]].name == PREFILL:
        columns = oracle(table, columns, life_cycle.FIRST, {STOP: NO_STOP}).columns
    ways = list(paths(table, columns, laws))
    assert 1 == sum(way[0] for way in ways)
    rounds, forwards, tokens, peak = (sum(way[0] * way[kind] for way in ways) for kind in range(1, 5))
    found = expect(table, laws, limit)
    assert (rounds, forwards, tokens, peak) == (found.rounds, found.forwards, found.tokens, found.peak_slots)
    assert limit - (table.contract == "pending") == found.tokens
    assert isinstance(found.rounds, Fraction)


def test_sure_chances_give_whole_numbers() -> None:
    """Drafts that are always accepted fill rounds; drafts that never are leave the verifier's own token."""
    full = expected("linear_spec", ["geometric:1"], limit=13, b=4)
    assert (3, 4, 2) == (full.rounds, full.tokens_per_round, full.tokens_per_forward)
    # The last round starts with 1 + 8 slots committed and writes four.
    assert 13 == full.peak_slots
    none = expected("linear_spec", ["geometric:0"], limit=13, b=4)
    assert (12, 1, Fraction(1, 2)) == (none.rounds, none.tokens_per_round, none.tokens_per_forward)
    assert 12 + 4 == none.peak_slots


def test_forwards_without_rows_are_no_forwards_of_the_target() -> None:
    """A lookup runs no model: rounds and forwards are the same number."""
    found = expected("ngram", ["geometric:0.5", "count=all:0.5"])
    assert found.rounds == found.forwards
    assert found.tokens_per_round == found.tokens_per_forward


def test_nothing_to_do() -> None:
    """A request without a round has no tokens per round; no division by zero."""
    for limit in (0, 1):
        found = expected("ar", [], limit=limit)
        assert (0, None, None) == (found.rounds, found.tokens_per_round, found.tokens_per_forward)
        assert ["rounds a request", "peak slots a request"] == list(found.numbers)


def test_cycles_are_solved() -> None:
    """A coin tossed until heads takes two tosses on average."""
    table = compile_table(loads(TOSS).spec)
    found = expect(table, chances_of(table, ["geometric:0.5"]))
    assert (2, 1) == (found.rounds, found.peak_slots)
    with pytest.raises(UserError, match="toss: a request in the state idle never ends under these chances"):
        expect(table, chances_of(table, ["geometric:0"]))


def test_large_chains_are_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floats say the same as fractions, by the sweep and by the linear system."""
    exact = expected("isd", ["geometric:0.7"], limit=30)
    monkeypatch.setattr(chain, "MOST_EXACT", 4)
    swept = expected("isd", ["geometric:0.7"], limit=30)
    assert isinstance(swept.rounds, float)
    for one, other in zip(exact.numbers.values(), swept.numbers.values(), strict=True):
        assert float(one) == pytest.approx(float(other), rel=1e-12)
    monkeypatch.setattr(chain, "MOST_SOLVED_EXACTLY", 0)
    table = compile_table(loads(TOSS).spec)
    assert 2.5 == pytest.approx(float(expect(table, chances_of(table, ["geometric:0.4"])).rounds))
    monkeypatch.setattr(chain, "MOST_SOLVED", 1)
    with pytest.raises(
        UserError, match="2 states of one request lie on cycles or behind them, and 1 are solved"
    ):
        expect(table, chances_of(table, ["geometric:0.4"]))
    monkeypatch.setattr(chain, "MOST_STATES", 2)
    with pytest.raises(UserError, match="more than 2 states; give a lower limit or smaller parameters"):
        expected("isd", ["geometric:0.7"], limit=30)


def test_a_choice_of_events_has_no_chances() -> None:
    """Where a state handles two events, nothing says which comes; a state without one never ends."""
    text = TOSS.replace("}}}}\n", "}}}, drop: {}}\n") + "\n"
    text = text.replace("check:", "  - {from: idle, on: drop, to: end}\ncheck:")
    table = compile_table(loads(text).spec)
    with pytest.raises(
        UserError, match="the state idle handles the events toss, drop, and nothing says how often"
    ):
        expect(table, chances_of(table, ["geometric:0.5"]))
    pool = compile_table(load("tests/data/pool.yaml").spec, check=True)
    with pytest.raises(UserError, match="pool: a request in the state idle never ends"):
        expect(pool, chances_of(pool, ["geometric:0.5"]))


def test_lines_and_content() -> None:
    """Short fractions are printed, long ones only as decimals; JSON has both."""
    found = expected(KVPOOL, ["a=geometric:0.5"], b=2, l=4)
    lines = [
        "expected values of one request alone; a = geometric:0.5",
        "  rounds a request      2.625 = 21/8",
        "  peak slots a request  7.5 = 15/2",
    ]
    assert lines == found.lines()
    assert {"value": 2.625, "exact": "21/8"} == found.content()["rounds"]
    assert {"a": "geometric:0.5"} == found.content()["chances"]
    longer = expected("isd", ["0.7,0.6"], limit=40, n=3)
    assert (
        "expected values of one request alone, prompt 1, limit 40, no stop token; a = 0.7,0.6"
        == longer.lines()[0]
    )
    assert "=" not in longer.lines()[1]
    assert {"rounds", "tokens_per_round", "tokens_per_forward", "peak_slots"} < set(longer.content())
    assert longer.content()["rounds"]["exact"]
    far = expected("isd", ["0.7,0.6"], limit=2000, n=3)
    assert far.content()["rounds"]["exact"] is None
    assert "expected values of one request alone, prompt 1" in expected("ar", []).lines()[0]
