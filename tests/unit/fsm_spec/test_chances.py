"""Chances of counts: what each form means, and what a bad one is told."""

from __future__ import annotations

from fractions import Fraction

import pytest

from fsm_spec.checker.chances import Chances, chances_of, parse_chances
from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.load import load
from fsm_spec.table import Table

HALF = Fraction(1, 2)


def table_of(spec: str, **params: int) -> Table:
    """Compile a spec for the checker's parameters, or for those given."""
    return compile_table(load(spec).spec, params, check=True)


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("0.5,0.2", [HALF, Fraction(4, 10), Fraction(1, 10)]),
        ("geometric:0.5", [HALF, Fraction(1, 4), Fraction(1, 4)]),
        ("unconditional:0.5,0.1", [HALF, Fraction(4, 10), Fraction(1, 10)]),
        ("all:0.5", [HALF, Fraction(0), HALF]),
        (" 1, 0", [Fraction(0), Fraction(1), Fraction(0)]),
        ("unconditional:0,0", [Fraction(1), Fraction(0), Fraction(0)]),
    ],
)
def test_forms(text: str, law: list[Fraction]) -> None:
    """Each form is a law of the counts 0 to 2, exactly."""
    assert law == parse_chances(text).law(2)
    assert 1 == sum(parse_chances(text).law(2))
    assert [Fraction(1)] == parse_chances(text).law(0)


def test_decimal_text_is_exact() -> None:
    """Seven tenths are seven tenths; words that no person writes are read as floats and stay quick."""
    assert (Fraction(7, 10),) == parse_chances("0.7").rates
    assert (Fraction(0.7),) == parse_chances("0." + "7" + "0" * 60).rates
    assert (Fraction(1e-3),) == parse_chances("1e-3").rates
    assert (Fraction(0),) == parse_chances("1e-99999999").rates


@pytest.mark.parametrize("text", ["0.8,0.7", "geometric:0.25", "all:0.6"])
def test_description_reads_back(text: str) -> None:
    """What is printed is what was given."""
    assert text == parse_chances(text).describe()
    assert parse_chances(text) == parse_chances(parse_chances(text).describe())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", '"" at position 1 is no number'),
        ("0.8,x", '"x" at position 2 is no number'),
        ("0.8,1.2", "1.2 at position 2 lies outside 0 to 1"),
        ("nan", "outside 0 to 1"),
        ("geometric:0.7,0.6", "geometric takes one rate, not 2; write geometric:0.7"),
        ("all:0.7,0.6", "all takes one rate, not 2; write all:0.7"),
        ("unconditional:0.5,0.6", "0.6 at position 2 rises above 0.5"),
        ("linear:0.5", 'unknown form "linear"'),
    ],
)
def test_bad_forms_get_a_sentence(text: str, words: str) -> None:
    """Each mistake is named with its position."""
    with pytest.raises(UserError, match=words):
        parse_chances(text)


def test_texts_find_their_counts() -> None:
    """A text without a name is the acceptance; a lookup's count is named."""
    each = Chances((HALF, HALF))
    assert {"a": each} == chances_of(table_of("isd", n=3), ["0.5,0.5"])
    found = chances_of(table_of("ngram"), ["geometric:0.5", "count=all:0.5"])
    assert {"a": Chances((HALF,), "geometric"), "count": Chances((HALF,), "all")} == found
    assert {} == chances_of(table_of("ar"), [])
    assert {} == chances_of(table_of("ar"), ["geometric:0.5"])
    assert {"a": each} == chances_of(table_of("tests/models/kvpool.yaml"), ["a=0.5,0.5"])


@pytest.mark.parametrize(
    ("spec", "texts", "words"),
    [
        (
            "isd",
            ["0.5,0.5"],
            "isd: --expect gives 2 rates, but the spec judges 1 draft a round .*; give 1 rate or",
        ),
        ("ar", ["0.5"], "ar: --expect gives 1 rate, but the spec judges 0 drafts .*; give geometric:RATE"),
        ("isd", ["b=0.5"], "isd: no count is called 'b'; known: a"),
        (
            "ngram",
            ["geometric:0.5"],
            "count is a count of the operator lookup .*; give --expect count=all:0.6",
        ),
        ("ngram", ["count=all:1"], "a is a count of the operator accept .*; give --expect a=geometric:0.7"),
        ("tests/models/kvpool.yaml", [], "a is a count of an event without chances"),
    ],
)
def test_misfits_get_a_sentence(spec: str, texts: list[str], words: str) -> None:
    """A count without chances, chances without a count, and lists of another length are refused."""
    with pytest.raises(UserError, match=words):
        chances_of(table_of(spec), texts)
