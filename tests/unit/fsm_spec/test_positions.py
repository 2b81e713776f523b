"""Tokens at their places: what is emitted or kept is the text's token there, whatever way it went."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

import pytest
from loader_findings import findings

from fsm_spec.compile import compile_table
from fsm_spec.language.piece import parse_piece
from fsm_spec.load import load
from fsm_spec.rules import positions
from fsm_spec.table import Table

# Two passes of plain decoding, whose tokens wait in carries, and drafts behind them.
TWO_CLEAN = dedent(
    """\
    spec: two_clean
    lossless: {claim: sampling, why: every token is the target's own}
    params:
      b: {range: [2, 8], default: 4, check: 2}
    contract: pending
    carry:
      one: {shape: [1], type: token}
      two: {shape: [1], type: token}
      drafts: {shape: [b - 1], type: token}
    forwards:
      first:
        rows: [{name: seed, source: pending, logits: shifted, kv: keep}]
        ops: [{op: sample, rows: seed, out: x}]
      second:
        rows:
          - {name: seed, source: one, logits: shifted, kv: keep}
          - {name: noise, source: noise, count: b - 1, weights: adapter, logits: shifted, kv: scratch}
        ops:
          - {op: sample, rows: seed, out: y}
          - {op: sample, rows: noise, out: new}
      verify:
        rows:
          - {name: seed, source: two, logits: shifted, kv: keep}
          - {name: judged, source: drafts, count: b - 1, logits: shifted, kv: provisional}
        ops: [{op: accept, rule: match, drafts: drafts, rows: [seed, judged], out: [a, next]}]
    states:
      begin: {phase: draft, forward: first, round: true, start: true}
      second: {phase: draft, forward: second}
      verify: {phase: verify, forward: verify}
    transitions:
      - {from: begin, to: second, keep: 1, set: {one: x}}
      - {from: second, to: verify, keep: 1, set: {two: y, drafts: new}}
      - {from: verify, to: begin, keep: a + 1, emit: [one, two, "drafts[:a]", next], set: {pending: next}}
    """
)
ONCE = "emit each token of the text once, in its order"


def test_tokens_may_wait_in_carries() -> None:
    """A round of three forwards, each keeping one token of the text, was refused: its rows read no pending token."""
    assert [] == findings(TWO_CLEAN)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "emit: [one, two",
            "emit: [two, one",
            (
                f"transitions[2].emit[0]: two[0:1] emits the token of place 2 behind the text where the text goes on "
                f"in the state verify (b = 2, a = 0); {ONCE}"
            ),
        ),
        (
            "source: two",
            "source: one",
            (
                "transitions[2].keep: seed keeps KV of the token of place 1 behind the text where the text has another "
                "token in the state verify (b = 2, a = 0); keep rows of the text, in its order"
            ),
        ),
        (
            "source: one",
            "source: pending",
            (
                "transitions[1].keep: seed keeps KV of a token that stands in the text already where the text has "
                "another token in the state second (b = 2); keep rows of the text, in its order"
            ),
        ),
    ],
    ids=["another order", "a row of another token", "a token kept twice"],
)
def test_tokens_stand_at_their_places(old: str, new: str, expected: str) -> None:
    """Lengths and claims are right, and a token of the target stands at another's place."""
    assert 1 == TWO_CLEAN.count(old)
    assert [expected] == findings(TWO_CLEAN.replace(old, new))


def changed(table: Table, source: str, **changes: object) -> Table:
    """Change the last row from a state."""
    index = [row.index for row in table.rows if not row.built_in and source in row.sources][-1]
    return replace(table.with_row(index, **changes), cache={})


def found(spec: str, source: str, **changes: object) -> list[str]:
    """List what is found of a table with a changed row, behind the loader's back."""
    table = compile_table(load(spec).spec, check=True)
    assert [] == list(positions.faults_of(table))
    return [
        message.partition(" in the state")[0]
        for _, message in positions.faults_of(changed(table, source, **changes))
    ]


def pieces(*texts: str) -> tuple[object, ...]:
    """Parse pieces with explicit ends."""
    return tuple(map(parse_piece, texts))


def test_pending_is_the_newest_token() -> None:
    """A round that starts with another pending token would keep its KV in the newest one's place."""
    wrong = found(
        "isd", "cold", carries=(("pending", pieces("pending[0:1]")), ("drafts", pieces("new[0:1]")))
    )
    assert ["pending is a token that stands in the text already where a round starts"] == wrong


def test_a_mask_is_no_token() -> None:
    """What a carry is filled up with is told from drafts."""
    wrong = found("isd", "cold", carries=(("pending", pieces("mask")), ("drafts", pieces("new[0:1]"))))
    assert ["pending is a mask where a round starts"] == wrong


def test_rows_beyond_the_block_are_not_kept() -> None:
    """Heads further apart than the groups are lie behind the last row."""
    assert ["keep counts a row that is not there where the text has another token"] == found(
        "quadratic", "round", keep_stride=9
    )


def test_a_position_far_away_is_no_text() -> None:
    """A list of all places up to it would fill the memory."""
    far = TWO_CLEAN.replace("{name: seed, source: pending,", "{name: seed, source: pending, at: 2000000000,")
    assert ["transitions[0].keep"] == [each.partition(":")[0] for each in findings(far)]


def test_a_path_kept_densely_is_another_text() -> None:
    """The first nodes of a tree are no path of it."""
    wrong = found("eagle3", "verify", keep_rows=None)
    assert [
        "nodes keeps KV of a token that the target has not vouched for where the text has another token"
    ] == wrong


def test_abstract_models_and_unclaimed_tokens_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is claimed of them; and a walk that takes too many steps says so, instead of passing for a proof."""
    assert [] == list(positions.faults_of(compile_table(load("sdar").spec, check=True)))
    assert [] == list(positions.faults_of(compile_table(load("isd_topk").spec, check=True)))
    table = compile_table(load("isd").spec, check=True)
    monkeypatch.setattr(positions, "_MOST_STEPS", 3)
    assert [
        (("params",), "rounds cannot be followed within 3 steps for n=2; give smaller check values")
    ] == list(positions.faults_of(table))


def test_a_carry_may_stay_unread_for_any_number_of_rounds() -> None:
    """Drafts of an older round stand in the carry while single tokens pass: one place, however far the text goes on."""
    table = compile_table(load("docs/examples/echo.yaml").spec, check=True)
    assert [] == list(positions.faults_of(table))
