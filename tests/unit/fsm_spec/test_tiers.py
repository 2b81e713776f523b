"""Tiers: which size a count of running requests gets, what a policy file may say, and what may not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fsm_spec.compile import compile_table
from fsm_spec.errors import PoolExhausted, UserError
from fsm_spec.language.findings import SpecFindings
from fsm_spec.load import load, loads, shipped
from fsm_spec.policy import Policy, Pool, headroom, longest_pages, plan, refuse_impossible
from fsm_spec.policy_file import load_policy
from fsm_spec.table import Table
from fsm_spec.tiers import Tier, refuse_given, tiers_of

STEPS: list[dict[str, Any]] = [{"to": 1, "value": 6}, {"to": 3, "value": 4}, {"value": 2}]


def tiered(steps: list[dict[str, Any]] = STEPS, **fields: object) -> Policy:
    """Return a policy with tiers of b."""
    return Policy.model_validate({"policy": "sizes", "tier": {"param": "b", "steps": steps}, **fields})


def table_of(name: str, **params: int) -> Table:
    """Compile a shipped spec."""
    loaded = load(name)
    return compile_table(loaded.spec, params, line_of=loaded.line_of)


def test_the_first_step_that_covers_the_count_gives_the_size() -> None:
    """A tier chosen by another count, or recomputed beside the plan, would mix sizes in one round."""
    tiers = tiers_of(table_of("uno_linear"), tiered())
    sizes = [tiers.size(tiers.table(running)) for running in range(6)]
    assert [6, 6, 4, 4, 2, 2] == sizes
    assert [6, 4, 2] == [table.params["b"] for table in tiers.tables]
    assert 6 == tiers.largest.params["b"]
    assert tiers is tiers_of(tiers.tables[1], tiered())


def test_tables_of_one_family_differ_in_the_size_only() -> None:
    """Rows, states, columns and lines are the same, so that a transition code means one row in all of them."""
    first, *rest = tiers_of(table_of("uno_linear"), tiered()).tables
    for table in rest:
        assert first.column_names == table.column_names
        assert [state.name for state in first.states] == [state.name for state in table.states]
        assert [(row.event, row.target, row.line) for row in first.rows] == [
            (row.event, row.target, row.line) for row in table.rows
        ]


def test_plan_chooses_the_size_and_takes_pages_by_it() -> None:
    """Pages taken by another size than the round runs would be too few, or held for nothing."""
    table = table_of("linear_spec")
    state = table.codes["draft"]
    for running, size in ((1, 6), (2, 4), (4, 2)):
        columns = {name: np.full(running, 10, np.int32) for name in table.column_names}
        columns["state"] = np.full(running, state, np.int32)
        decided = plan(table, tiered(), Pool(99, 1), columns, np.zeros(running, np.int32), [])
        assert (size, [10 + size] * running) == (decided.tier, decided.pages.tolist())


def test_the_reserve_is_that_of_the_largest_reachable_size() -> None:
    """A pool sized by a small tier would be too small when the crowd is gone."""
    table = table_of("linear_spec")
    alone = {size: longest_pages(table_of("linear_spec", b=size), Pool(0, 1), 5, 9) for size in (2, 4, 6)}
    assert alone[6] == longest_pages(table, Pool(0, 1), 5, 9, tiered())
    rising = [{"to": 2, "value": 2}, {"value": 6}]
    assert alone[6] == longest_pages(table, Pool(0, 1), 5, 9, tiered(rising))
    # With two running requests at most, the size of a crowd is never chosen.
    assert alone[2] == longest_pages(table, Pool(0, 1), 5, 9, tiered(rising, max_running=2))
    with pytest.raises(PoolExhausted):
        refuse_impossible(table, Pool(alone[6] - 1, 1), 5, 9, tiered())


def test_a_late_host_keeps_what_the_round_in_flight_may_use() -> None:
    """The round in flight may run under a larger size than the one planned now."""
    tiers = tiers_of(table_of("uno_linear"), tiered(lag=1))
    large, small = tiers.table(1), tiers.table(9)
    state = large.codes["draft"]
    assert large.peak + large.advance == headroom(large, tiered(lag=1))[state]
    assert max(large.peak, small.peak + large.advance) == headroom(small, tiered(lag=1))[state]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{param: b, steps: [{to: 4, value: 8}]}", "no step takes more than 4 running requests"),
        (
            "{param: b, steps: [{to: 4, value: 8}, {to: 2, value: 4}, {value: 2}]}",
            "`to: 2` stands behind `to: 4`",
        ),
        ("{param: b, steps: [{value: 8}, {value: 2}]}", "a step without `to` takes all counts"),
        ("{param: b, steps: []}", "expected at least 1 items, found 0"),
        ("{param: b, steps: [{upto: 4, value: 8}, {value: 2}]}", 'unknown key "upto"'),
        ("{parm: b, steps: [{value: 2}]}", 'unknown key "parm"; did you mean "param"?'),
        ("{param: b, by: load, steps: [{value: 2}]}", 'tiers go by running requests, not by "load"'),
        ("{param: b, steps: [{to: 0, value: 2}, {value: 2}]}", "0 is out of range; 1 is the bound"),
        ("{steps: [{value: 2}]}", 'the key "param" is missing'),
        ("{param: b, steps: [{to: 4}, {value: 2}]}", 'the key "value" is missing'),
    ],
)
def test_faults_of_tiers_in_a_policy_file(text: str, told: str, tmp_path: Path) -> None:
    """Tiers that leave counts out, or say two things, are findings of the policy file with their line."""
    path = tmp_path / "mine.yaml"
    path.write_text(f"policy: mine\ntier: {text}\n")
    with pytest.raises(SpecFindings) as caught:
        load_policy(str(path))
    assert told in str(caught.value)
    assert str(caught.value).startswith(f"{path}:2:")


def test_sizes_that_a_spec_cannot_take_are_refused_together() -> None:
    """Every size is compiled before anything runs, and all that fail are named."""
    with pytest.raises(UserError, match=r"b=17 is out of range; choose 2 to 16; .* b=1 is out of range"):
        tiers_of(
            table_of("uno_linear"), tiered([{"to": 2, "value": 17}, {"to": 4, "value": 4}, {"value": 1}])
        )
    # A step that the policy never reaches is no fault.
    reached = tiered([{"to": 4, "value": 4}, {"value": 1}], max_running=4)
    assert 1 == len(tiers_of(table_of("uno_linear"), reached).tables)


def test_a_size_that_leaves_a_carry_less_than_nothing_is_refused() -> None:
    """Rules follow the default and the checker's values: another mode would have ended in a traceback of the runner."""
    text = shipped()["uno_switching"].read_text(encoding="utf-8")
    old = "drafts: {shape: [short - 1], type: token}"
    assert old in text
    spec = loads(text.replace(old, "drafts: {shape: [(short * (mode - 1)) - 1], type: token}")).spec
    plain = Policy(tier=Tier.model_validate({"param": "mode", "steps": [{"value": 0}]}))
    with pytest.raises(
        UserError, match=r"carry\.drafts\.shape: carry drafts would hold -5; give 0 to 2147483647"
    ):
        tiers_of(compile_table(spec), plain)


def test_parameters_that_are_not_tiered_are_refused() -> None:
    """A policy may only change what the spec says may change."""
    with pytest.raises(UserError, match="isd has no such parameter"):
        tiers_of(table_of("isd"), tiered())
    other = Policy(tier=Tier.model_validate({"param": "n", "steps": [{"value": 2}]}))
    with pytest.raises(UserError, match="isd does not declare it `tiered: true`"):
        tiers_of(table_of("isd"), other)
    text = Path("tests/models/kvpool.yaml").read_text(encoding="utf-8")
    with pytest.raises(UserError, match="abstract model"):
        tiers_of(compile_table(loads(text).spec), tiered())
    with pytest.raises(UserError, match="drop --set b"):
        refuse_given(tiered(), {"b": 3})


def test_sizes_in_words() -> None:
    """Reports say which sizes a run has chosen from."""
    policy = load_policy("tiers")
    assert policy.tier is not None
    assert "b = 16 up to 4 running, 8 up to 32, 4 beyond" == policy.tier.describe()
    assert "b = 3 up to 1 running, 2 beyond" == policy.tier.small().describe()
    assert policy.tier.small().small() == policy.tier.small()


CARRIED = 'tiered: true, about: "tokens a round'


def test_a_carry_that_crosses_a_round_point_may_not_be_sized_by_a_tier() -> None:
    """Drafts of a large block would be judged in a small one: isd's drafts live from one round to the next."""
    text = shipped()["isd"].read_text(encoding="utf-8").replace('about: "tokens a round', CARRIED)
    with pytest.raises(SpecFindings) as caught:
        loads(text)
    (finding,) = caught.value.findings
    assert "params.n.tiered" == finding.path
    assert "the carry drafts is sized by it and crosses the round state verify" in finding.message


def test_a_column_bounded_by_a_tier_is_reset_at_round_points() -> None:
    """A count of the old size could lie beyond the bound of the new one."""
    text = (
        shipped()["ngram"]
        .read_text(encoding="utf-8")
        .replace("check: 2, about: most", "check: 2, tiered: true, about: most")
    )
    assert "tiered" in text
    loads(text)
    with pytest.raises(SpecFindings, match="a transition from verify does not set it to a constant"):
        loads(text.replace("set: {pending: next, found: 0}", "set: {pending: next}"))
    with pytest.raises(SpecFindings, match="the column found is bounded by it, and prefill"):
        loads(text.replace("found: {init: 0", "found: {init: k"))


def test_a_block_contract_is_not_held_to_a_tier() -> None:
    """KV of whole blocks of the old size is none of whole blocks of the new one."""
    text = shipped()["sdar"].read_text(encoding="utf-8").replace("b: {range:", "b: {tiered: true, range:")
    with pytest.raises(SpecFindings) as caught:
        loads(text)
    messages = [finding.message for finding in caught.value.findings]
    assert "KV is held to whole blocks of it" in messages[0]
    assert "the carry block is sized by it" in messages[1]
