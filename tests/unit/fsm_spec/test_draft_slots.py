"""Slots of draft caches: what a draft model keeps and reads is the token of its place, and nothing lies between."""

from __future__ import annotations

from textwrap import dedent

import pytest
from loader_findings import findings

from fsm_spec.compile import compile_table
from fsm_spec.load import load, shipped
from fsm_spec.rules import positions

# Lookup first, a draft model where it finds nothing; the draft model reads what it missed when it next runs.
BOTH = dedent(
    """\
    spec: both
    lossless: {claim: sampling, why: every emitted token is the target's own sample}
    params:
      k: {range: [1, 16], default: 4, check: 2}
      g: {range: [2, 8], default: 3, check: 2}
    contract: pending
    models:
      early: {kind: language_model, behind: late}
    columns:
      made: {init: 0, max: g}
      width: {init: 0, max: "max(k, g)"}
      late: {init: 0, max: "max(k, g) + 1"}
    carry:
      drafts: {shape: ["max(k, g)"], type: token}
      recent: {shape: ["max(k, g) + 1"], type: token, init: [text]}
    forwards:
      search:
        ops: [{op: lookup, size: k, min: 2, max: 4, out: [found, count]}]
      sync:
        model: early
        rows: [{name: known, source: "recent[:late]", count: late, kv: keep}]
        ops: []
      begin:
        model: early
        rows:
          - {name: known, source: "recent[:late]", count: late, kv: keep}
          - {name: seed, source: pending, logits: shifted, kv: open}
        ops: [{op: sample, rows: seed, rule: argmax, out: new}]
      more:
        model: early
        rows: [{name: tip, source: "drafts[made - 1:made]", at: kv + made, logits: shifted, kv: open}]
        ops: [{op: sample, rows: tip, rule: argmax, out: further}]
      verify:
        rows:
          - {name: anchor, source: pending, logits: shifted, kv: keep}
          - {name: judged, source: "drafts[:width]", count: width, logits: shifted, kv: provisional}
        ops: [{op: accept, rule: match, drafts: "drafts[:width]", rows: [anchor, judged], out: [a, next]}]
    states:
      search: {phase: draft, forward: search, round: true, start: true}
      sync: {phase: refresh, forward: sync}
      begin: {phase: draft, forward: begin}
      more: {phase: draft, forward: more}
      verify: {phase: verify, forward: verify}
    transitions:
      - {from: search, to: verify, when: count > 0 and late == 0, set: {drafts: found, width: count}}
      - {from: search, to: sync, when: count > 0 and late > 0, set: {drafts: found, width: count}}
      - {from: search, to: begin, when: count == 0}
      - {from: sync, to: verify, keep: late, set: {late: 0}}
      - {from: begin, to: more, keep: late, set: {drafts: new, made: 1, late: 0}}
      - {from: more, to: more, when: made + 1 < g, set: {drafts: ["drafts[:made]", further], made: made + 1}}
      - from: more
        to: verify
        when: made + 1 >= g
        set: {drafts: ["drafts[:made]", further], width: g, made: 0}
      - from: verify
        to: search
        keep: a + 1
        emit: ["drafts[:a]", next]
        set: {pending: next, recent: [pending, "drafts[:a]"], late: a + 1, width: 0}
    check:
      eventually: end
    """
)
STAND = "let at be the position of its first token"
BEHIND = "let open rows stand one behind the other, from the end of the cache"


def changed(text: str, old: str, new: str) -> str:
    """Change the one place where a text has something."""
    assert 1 == text.count(old), old
    return text.replace(old, new)


def test_guards_pin_what_behind_reads() -> None:
    """A way past the draft model, taken only where its cache lacks nothing, was refused."""
    assert [] == findings(BOTH)


@pytest.mark.parametrize(
    "guards", [("late < 1", "late >= 1"), ("0 == late", "0 < late"), ("late <= 0", "not (late <= 0)")]
)
def test_guards_pin_however_they_are_written(guards: tuple[str, str]) -> None:
    """The least value is known, and so is the side that a comparison starts with."""
    text = changed(BOTH, "count > 0 and late == 0", f"count > 0 and {guards[0]}")
    assert [] == findings(changed(text, "count > 0 and late > 0", f"count > 0 and {guards[1]}"))


def test_a_guard_that_leaves_two_values_pins_nothing() -> None:
    """One row may be lacking behind the guard, and `behind` forgets it."""
    text = changed(BOTH, "and late == 0", "and late <= 1")
    text = changed(text, "and late > 0", "and late > 1")
    assert [
        (
            "transitions[7]: the cache of early lacks a + late + 1 rows here, and behind comes out as a + 1 "
            "(k=4, g=3); let set give late the value a + late + 1"
        )
    ] == findings(text)


def test_a_cache_ahead_of_the_target_is_told_to_keep_less() -> None:
    """A negative number of missing rows is no value of a column."""
    text = changed(BOTH, "{from: begin, to: more, keep: late,", "{from: begin, to: more, keep: late + 1,")
    found = "the cache of early holds 1 row more than the target's here, and behind comes out as 0 (k=4, g=3)"
    assert f"transitions[4]: {found}; keep: late" in findings(text)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "at: kv + made, ",
            "",
            (
                "forwards.more.rows[0].at: tip reads the draft of place kv + 1 at position kv, where that of place kv "
                f"belongs, and overwrites the open row seed in the state more (k = 2, g = 2); {STAND}"
            ),
        ),
        (
            "at: kv + made, ",
            "at: kv + made + 1, ",
            (
                "forwards.more.rows[0].at: tip reads the draft of place kv + 1 at position kv + 2, where that of place "
                f"kv + 2 belongs in the state more (k = 2, g = 2); {STAND}"
            ),
        ),
        (
            "at: kv + made, ",
            "at: kv + 1, ",
            (
                "forwards.more.rows[0].at: tip reads the draft of place kv + 2 at position kv + 1, where that of place "
                f"kv + 1 belongs, and overwrites the open row tip in the state more (k = 3, g = 3); {STAND}"
            ),
        ),
        (
            "at: kv + made, ",
            "at: kv + made, slot: kv + made + 1, ",
            (
                "forwards.more.rows[0].slot: tip reads slot kv + 1, to which no row of this round was written in the "
                f"state more (k = 2, g = 2); {BEHIND}"
            ),
        ),
        (
            "at: kv + made, ",
            "at: kv + made, slot: kv, ",
            (
                "forwards.more.rows[0].slot: tip reads no row of position kv in the state more (k = 2, g = 2); "
                f"{BEHIND}"
            ),
        ),
        (
            'recent: [pending, "drafts[:a]"]',
            'recent: ["drafts[:a]", pending]',
            (
                "forwards.begin.rows[0].source: known keeps KV of the token of place kv - 1 at position kv - 2, where "
                "that of place kv - 2 belongs in the state begin (k = 2, g = 2); let its source hold the tokens that "
                "the cache lacks, in the order of the text"
            ),
        ),
        (
            "logits: shifted, kv: open}\n    ops: [{op: sample, rows: seed",
            "logits: shifted, kv: scratch}\n    ops: [{op: sample, rows: seed",
            (
                "forwards.more.rows[0].at: tip reads slot kv, which held the scratch row seed in the state more "
                "(k = 2, g = 2); write kv: open on seed"
            ),
        ),
    ],
    ids=[
        "at left out",
        "a hole",
        "a third draft",
        "a slot too far",
        "a slot too near",
        "another order",
        "scratch",
    ],
)
def test_rows_of_draft_models_stand_for_their_places(old: str, new: str, expected: str) -> None:
    """Output stays right, and accepted drafts are lost in silence."""
    assert [expected] == findings(changed(BOTH, old, new))


@pytest.mark.parametrize(
    ("spec", "old", "new", "expected"),
    [
        (
            "eagle3",
            "slot: kv + level * k",
            "slot: kv + level",
            "beam takes slot kv for node 3 of its tree, and beam wrote another",
        ),
        (
            "eagle3",
            "at: kv - 1",
            "at: kv",
            "beam reads the draft of place kv + 1 at position kv + 1, where that of place kv + 2 belongs",
        ),
        (
            "mtp",
            "at: kv + step",
            "at: kv",
            (
                "last reads the draft of place kv + 2 at position kv, where that of place kv + 1 belongs, and "
                "overwrites the open row last"
            ),
        ),
        (
            "mtp",
            'drafts: ["drafts[:step + 1]", further], q: ["q[:step + 1]", law], step: 0',
            'drafts: [further, "drafts[:step + 1]"], q: [law, "q[:step + 1]"], step: 0',
            "the draft of place 2 behind the text is judged as that of place 1",
        ),
    ],
    ids=["levels of a tree overlap", "a tree one too deep", "a chain in one slot", "drafts in another order"],
)
def test_shipped_draft_caches_are_read_in_order(spec: str, old: str, new: str, expected: str) -> None:
    """Trees and chains with hidden states are followed as chains of tokens are."""
    found = findings(changed(shipped()[spec].read_text(), old, new))
    assert [expected] == [each.partition(": ")[2].partition(" in the state")[0] for each in found]


def test_hidden_states_are_followed_to_their_rows() -> None:
    """A state of another position is a slot of another text."""
    table = compile_table(load("dflash").spec, check=True)
    verify = next(row for row in table.rows if "verify" in row.sources and not row.built_in)
    late = tuple((name, pieces) for name, pieces in verify.carries if name != "features")
    assert [] == list(positions.faults_of(table))
    found = [message for _, message in positions.faults_of(table.with_row(verify.index, carries=late))]
    assert ["context reads the hidden state of place kv - 2 at position kv - 1"] == [
        each.partition(" in the state")[0] for each in found
    ]
