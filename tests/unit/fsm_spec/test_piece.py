"""Pieces: names with slices of tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_spec.language.expression import Const, ExpressionError, Name, evaluate, parse, to_text
from fsm_spec.language.piece import Piece, parse_piece


@pytest.mark.parametrize(
    ("text", "piece", "printed"),
    [
        ("next", Piece("next"), "next"),
        (" drafts [ : a ] ", Piece("drafts", None, Name("a")), "drafts[:a]"),
        ("drafts[1:]", Piece("drafts", Const(1)), "drafts[1:]"),
        ("drafts[1:a + 1]", Piece("drafts", Const(1), parse("a + 1")), "drafts[1:a + 1]"),
        ("drafts[a]", Piece("drafts", Name("a"), parse("a + 1")), "drafts[a:a + 1]"),
        ("drafts[0]", Piece("drafts", Const(0), Const(1)), "drafts[0:1]"),
        ("drafts[:]", Piece("drafts"), "drafts"),
    ],
)
def test_pieces_are_read_and_printed(text: str, piece: Piece, printed: str) -> None:
    """A slice would cut other tokens than it says, or a dump would read as another piece."""
    assert piece == parse_piece(text)
    assert printed == str(piece)
    assert piece == parse_piece(printed)


@pytest.mark.parametrize(
    ("text", "message", "offset"),
    [
        ("", "'' is no piece such as next or drafts[:a]", 0),
        ("3", "'3' is no piece such as next or drafts[:a]", 0),
        ("a[1", "'a[1' is no piece such as next or drafts[:a]", 0),
        ("a[]", "an index stands between the brackets", 2),
        ("a[1:2:3]", "a slice has one colon", 2),
        ("ab[1: +]", "expected a number or a name, found '+'", 6),
        ("ab[) :1]", "expected a number or a name, found ')'", 3),
    ],
)
def test_faults_are_said_with_their_place(text: str, message: str, offset: int) -> None:
    """A slip inside a slice would be named at another column."""
    with pytest.raises(ExpressionError) as caught:
        parse_piece(text)
    assert (message, offset) == (str(caught.value), caught.value.offset)


@given(st.integers(0, 5), st.integers(0, 5), st.integers(5, 9))
def test_lengths_count_the_tokens(start: int, length: int, whole: int) -> None:
    """An emitted run would be counted longer or shorter than it is."""
    assert length == evaluate(parse_piece(f"d[{start}:{start + length}]").length(Const(whole)), {})
    assert whole - start == evaluate(parse_piece(f"d[{start}:]").length(Name("w")), {"w": whole})
    assert Const(whole) == parse_piece("d").length(Const(whole))


def test_parameters_are_substituted_in_the_bounds() -> None:
    """A compiled piece would still ask for parameters."""
    assert Piece("d", Const(2), Name("a")) == parse_piece("d[n - 1:a]").substitute({"n": 3})
    assert Piece("d") == parse_piece("d").substitute({"n": 3})
    assert "a + 3" == to_text(parse_piece("d[:a + n]").substitute({"n": 3}).length(Const(9)))
