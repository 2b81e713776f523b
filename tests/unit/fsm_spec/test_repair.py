"""Drafts: what the models refuse, said in plain sentences, one finding a mistake."""

from __future__ import annotations

import pytest

from fsm_spec.language.findings import MAX_FINDINGS, SpecFindings
from fsm_spec.load import loads, shipped

MASKS = (
    "      - {{{}source: mask, count: n - 1, weights: adapter, logits: shifted, kv: scratch}}\n    ops:\n"
    "      - {{op: sample, rows: clean"
)
COMMA = "; inside {} a comma ends a value, so quote an expression that holds one"


def findings(name: str, *replaced: tuple[str, str]) -> list[str]:
    """Give the findings of a shipped spec after replacements in its text."""
    text = shipped()[name].read_text()
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    with pytest.raises(SpecFindings) as caught:
        loads(text)
    return [
        f"{finding.line}:{finding.column} {finding.path}: {finding.message}"
        for finding in caught.value.findings
    ]


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        (
            "ar",
            "contract:",
            "contrct:",
            ['8:1 contrct: unknown key "contrct"; did you mean "contract"?'],
        ),
        (
            "ar",
            "claim: sampling",
            "claim: maybe",
            ['7:19 lossless.claim: "maybe" is not known here; known: greedy, sampling, no'],
        ),
        (
            "ar",
            "claim: sampling",
            "claim: [greedy]",
            ["7:12 lossless.claim: expected one of greedy, sampling, no, found a list"],
        ),
        (
            "ar",
            "start: true",
            "start: yes",
            ['17:64 states.decode.start: expected true or false, found "yes"'],
        ),
        ("ar", "claim: sampling", "clam: [greedy]", ['7:12 lossless.clam: unknown key "clam"; did you mean "claim"?']),
        ("ar", "keep: 1,", "keep: *k,", ["19:38 transitions[0].keep: the alias *k has no anchor &k before it"]),
        ("ar", "keep: 1,", "keep: 1, 3: *k,", [
            "19:41 transitions[0]: a key is a text, not 3; quotes make it one",
            '19:44 transitions[0]["?"]: the alias *k has no anchor &k before it']),
        ("ar", "spec: ar\n", "", ['2:1 : the key "spec" is missing']),
        ("ar", "spec: ar\n", "spec: 1st\n", [
            '2:7 spec: "1st" is no name; names are ASCII letters, digits and _, and start with no digit']),
        ("ar", "spec: ar\n", f"spec: {'x' * 70}\n", ["2:7 spec: the name has 70 characters; 64 at most"]),
        ("ar", "spec: ar\n", "spec: 5\n", ["2:7 spec: expected a text, found 5"]),
        ("ar", "op: sample", "op: smaple", [
            '15:14 forwards.decode.ops[0].op: "smaple" is not known here; did you mean "sample"?']),
        ("ar", "op: sample", "op: conjure", [
            ('15:14 forwards.decode.ops[0].op: "conjure" is not known here; known: '
            "sample, capture, budget, accept, unmask, grow, prune, walk, lookup")]),
        ("ar", "op: sample", "op: acts", [
            '15:14 forwards.decode.ops[0].op: "acts" is not known here; did you mean "accept"?']),
        ("ar", "op: sample", "op: [sample]", [
            "15:9 forwards.decode.ops[0]: expected an operator, found a mapping"]),
        ("ar", "op: sample, ", "", ['15:9 forwards.decode.ops[0]: the key "op" is missing']),
        ("ar", "{op: sample, rows: last, out: next}", "sample", [
            '15:9 forwards.decode.ops[0]: expected an operator, found "sample"']),
        ("ar", "out: next", "sample: next", [
            '15:9 forwards.decode.ops[0]: the key "out" is missing',
            '15:34 forwards.decode.ops[0].sample: unknown key "sample"; known: op, rows, rule, head, out']),
        ("ar", "rows: last", "rows: 7", [
            "15:28 forwards.decode.ops[0].rows: expected a name or a list of names, found 7"]),
        ("ar", "rows: last", "rows: [last, 7]", [
            "15:35 forwards.decode.ops[0].rows[1]: expected a text, found 7"]),
        ("ar", "rows: last", "rows: a-b", [
            ('15:28 forwards.decode.ops[0].rows: "a-b" is no name; names are ASCII letters, digits and _, and start '
            "with no digit")]),
        ("ar", "out: next", "out: [next, law, more, most]", [
            "15:34 forwards.decode.ops[0].out: expected at most 3 items, found 4"]),
        ("ar", "keep: 1", "keep: 1.5", [("19:38 transitions[0].keep: expected an expression, found a number with a "
            "fraction")]),
        ("ar", "keep: 1", "keep: 1 + + 2", ["19:42 transitions[0].keep: expected a number or a name, found '+'"]),
        ("ar", "keep: 1", "keep: true", ["19:38 transitions[0].keep: expected an integer, found 'true'"]),
        ("ar", "emit: [next]", "emit: next", ['19:47 transitions[0].emit: expected a list, found "next"']),
        ("ar", "emit: [next]", "emit: [next, 3]", [
            "19:54 transitions[0].emit[1]: expected a piece such as next or 'drafts[:a]', found 3"]),
        ("ar", "set: {pending: next}", "set: {pending: null}", [
            "19:61 transitions[0].set.pending: expected an expression, a piece or a list of pieces, found nothing"]),
        ("ar", "set: {pending: next}", "set: {pend ing: next}", [
            ('19:61 transitions[0].set["pend ing"]: "pend ing" is no name; names are ASCII letters, digits and _, and '
            "start with no digit")]),
        ("ar", "to: decode, ", "", ['19:5 transitions[0]: the key "to" is missing']),
        ("ar", "states:\n  decode: {phase: verify, forward: decode, round: true, start: true}\n", "states: {}\n", [
            "16:1 states: expected at least 1 items, found 0"]),
        ("ar", "  decode: {phase: verify, forward: decode, round: true, start: true}\n", "  decode: 3\n", [
            "17:11 states.decode: expected a mapping, found 3"]),
        ("isd", "range: [2, 16]", "range: [2]", ["9:7 params.n.range: expected 2 items or more, found 1"]),
        ("isd", "range: [2, 16]", "range: [2, 9999999]", [
            "9:18 params.n.range[1]: 9999999 is out of range; 1048576 is the bound"]),
        ("isd", "default: 4", "default: true", ["9:32 params.n.default: expected an integer, found true"]),
        ("isd", "default: 4", "default: four", ['9:32 params.n.default: expected an integer, found "four"']),
        ("isd", "shape: [n - 1]", "shape: [n - 1, n, 2, vocab]", [
            "12:12 carry.drafts.shape: expected at most 3 items, found 4"]),
        ("isd", "shape: [n - 1]", "shape: [n -]", [("12:23 carry.drafts.shape[0]: expected a number or a name, found "
            "the end")]),
        ("ngram", "forward: propose", "KV: propose", ['32:27 states.propose.KV: unknown key "KV"; did you mean "kv"?']),
        ("isd", "keep: 1,", "keep: ,", ["35:30 transitions[0].keep: expected an expression, found nothing"]),
        ("dflash", "max: b,", "max: max(b, k, 2) + 0,", [
            "16:30 columns.fresh.max: expected ')', found the end",
            '16:32 columns.fresh.k: unknown key "k"' + COMMA,
            '16:35 columns.fresh["2) + 0"]: unknown key "2) + 0"' + COMMA]),
        ("isd", "from: cold,", "from cold,", [
            '35:5 transitions[0]: the key "from" is missing',
            '35:6 transitions[0]["from cold"]: unknown key "from cold"; did you mean "from"?']),
    ],
)  # fmt: skip
def test_each_mistake_gives_its_sentence(name: str, old: str, new: str, expected: list[str]) -> None:
    """A mistake would be named in pydantic's words, at another place, or with findings that only follow from it."""
    assert expected == findings(name, (old, new))


def test_faults_in_every_part_are_found_in_one_run() -> None:
    """A fault in one part would hide those of the parts around it, or move their places."""
    assert [
        '7:12 lossless.clam: unknown key "clam"; did you mean "claim"?',
        '7:18 lossless.clam: "smpling" is not known here; did you mean "sampling"?',
        "9:7 params.n.range: the range runs from 16 down to 2; the smaller value stands first",
        '17:40 forwards.cold.rows[0].logit: unknown key "logit"; did you mean "logits"?',
        '18:9 forwards.cold.rows[1]: the key "name" is missing',
        '29:14 forwards.verify.ops[0].op: "acept" is not known here; did you mean "accept"?',
        '35:22 transitions[0].to: the state "verfy" is not declared; did you mean "verify"?',
    ] == findings(
        "isd_gated",
        ("claim: sampling", "clam: smpling"),
        ("[2, 16]", "[16, 2]"),
        ("name: clean, source: pending, logits", "name: clean, source: pending, logit"),
        (MASKS.format("name: masks, "), MASKS.format("")),
        ("op: accept", "op: acept"),
        ("{from: cold, to: verify", "{from: cold, to: verfy"),
    )  # fmt: skip


def test_a_file_of_faults_ends_early() -> None:
    """A file in which everything is wrong would be mended for minutes."""
    text = (
        shipped()["ar"].read_text()
        + "columns:\n"
        + "".join(f"  c{index}: {{ini: 0}}\n" for index in range(190))
    )
    with pytest.raises(SpecFindings) as caught:
        loads(text)
    assert MAX_FINDINGS == len(caught.value.findings)


def test_places_in_texts_that_are_not_verbatim_fall_back_to_the_node() -> None:
    """An expression over two lines would be given a column that is not its own."""
    found = findings("isd", ("keep: 1,", 'keep: "1 +\n      + 2",'))
    assert ["35:36 transitions[0].keep: expected a number or a name, found '+'"] == found
