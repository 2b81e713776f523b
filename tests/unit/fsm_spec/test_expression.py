"""Expressions: parsed within bounds, printed so that they parse to the same, evaluated, bounded and rewritten."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_spec.language.expression import (
    INT32_MAX,
    Const,
    Expr,
    ExpressionError,
    Name,
    Op,
    add,
    both,
    divisors,
    evaluate,
    interval,
    names,
    parse,
    substitute,
    subtract,
    to_text,
    total,
)

RANGES: Final = {"a": (0, 5), "b": (-3, 4), "k": (1, 3)}
NUMBERS = st.recursive(
    st.one_of(st.integers(0, 9).map(Const), st.sampled_from([Name(name) for name in RANGES])),
    lambda inner: st.one_of(
        st.builds(
            lambda op, a, b: Op(op, (a, b)), st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner
        ),
        st.builds(
            lambda op, a, b: Op(op, (a, b)), st.sampled_from(["//", "%", "ceil"]), inner, st.just(Name("k"))
        ),
        st.builds(lambda a: Op("neg", (a,)), inner),
    ),
    max_leaves=8,
)
CONDITIONS = st.recursive(
    st.one_of(
        st.builds(
            lambda op, a, b: Op(op, (a, b)),
            st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
            NUMBERS,
            NUMBERS,
        ),
        st.booleans().map(lambda value: Const(int(value), boolean=True)),
    ),
    lambda inner: st.one_of(
        st.builds(lambda op, a, b: Op(op, (a, b)), st.sampled_from(["and", "or"]), inner, inner),
        st.builds(lambda a: Op("not", (a,)), inner),
    ),
    max_leaves=4,
)
VALUES = st.fixed_dictionaries({name: st.integers(*ends) for name, ends in RANGES.items()})


@given(NUMBERS)
def test_printed_numbers_parse_to_the_same_tree(expr: Expr) -> None:
    """A dumped spec would mean something else."""
    assert expr == parse(to_text(expr))


@given(CONDITIONS)
def test_printed_conditions_parse_to_the_same_tree(expr: Expr) -> None:
    """A dumped guard would hold elsewhere."""
    assert expr == parse(to_text(expr), "bool")


@given(st.one_of(NUMBERS, CONDITIONS), VALUES)
def test_values_lie_within_their_interval(expr: Expr, values: dict[str, int]) -> None:
    """A bound would be too narrow, and a plan would overflow its slots."""
    low, high = interval(expr, RANGES)
    assert low <= evaluate(expr, values) <= high


@given(st.one_of(NUMBERS, CONDITIONS), VALUES)
def test_substitution_keeps_the_value(expr: Expr, values: dict[str, int]) -> None:
    """A table compiled for given parameters would compute something else than the spec says."""
    whole = substitute(expr, values)
    assert Const(evaluate(expr, values), whole.boolean if isinstance(whole, Const) else False) == whole
    some = substitute(expr, {"k": values["k"], "a": Name("z")})
    assert evaluate(expr, values) == evaluate(some, {**values, "z": values["a"]})
    assert not {"a", "k"} & set(names(some))


@given(NUMBERS, NUMBERS, VALUES)
def test_sums_keep_the_value(left: Expr, right: Expr, values: dict[str, int]) -> None:
    """Positions and lengths would be off."""
    a, b = evaluate(left, values), evaluate(right, values)
    assert a + b == evaluate(add(left, right), values)
    assert a - b == evaluate(subtract(left, right), values)
    assert a + b + 1 == evaluate(total([left, right, Const(1)]), values)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("1", Const(1)),
        (" a ", Name("a")),
        ("a + 1 - b", Op("-", (Op("+", (Name("a"), Const(1))), Name("b")))),
        ("a - (b - 1)", Op("-", (Name("a"), Op("-", (Name("b"), Const(1)))))),
        ("-a * b", Op("*", (Op("neg", (Name("a"),)), Name("b")))),
        ("min(a, b, 1)", Op("min", (Op("min", (Name("a"), Name("b"))), Const(1)))),
        ("ceil(a, 2)", Op("ceil", (Name("a"), Const(2)))),
        (7, Const(7)),
        (-7, Const(-7)),
    ],
)
def test_numbers_are_parsed_by_precedence(text: str | int, tree: Expr) -> None:
    """`a - b - c` or `-a * b` would be read another way than people read it."""
    assert tree == parse(text)


def test_conditions_are_parsed_by_precedence() -> None:
    """`not a == b or c` would be read another way than people read it."""
    left = Op("not", (Op("==", (Name("a"), Name("b"))),))
    right = Op("and", (Const(1, boolean=True), Op("<", (Name("a"), Const(3)))))
    assert Op("or", (left, right)) == parse("not a == b or true and a < 3", "bool")
    assert Const(0, boolean=True) == parse(value_of_no(), "bool")


def value_of_no() -> bool:
    """Give what YAML's `false` is read as."""
    return False


@pytest.mark.parametrize(
    ("text", "kind", "message", "offset"),
    [
        ("", "int", "expected a number or a name, found the end", 0),
        ("a +", "int", "expected a number or a name, found the end", 3),
        ("a b", "int", "unexpected 'b'", 2),
        ("a = b", "bool", "'=' is no part of an expression; equality is ==", 2),
        ("a / b", "int", "'/' is no part of an expression; division is // (floor) or ceil(a, b)", 2),
        ("a  $", "int", "'$' is no part of an expression", 3),
        ("(a", "int", "expected ')', found the end", 2),
        ("a == b == c", "bool", "comparisons do not chain; join two with 'and'", 7),
        ("a", "bool", "expected a condition, found 'a'", 0),
        ("a == b", "int", "expected an integer, found 'a == b'", 0),
        ("(a == b) + 1", "int", "a condition stands where a number is needed", 9),
        ("a and b == c", "bool", "'a' is a number where a condition is needed", 2),
        ("ceil(a)", "int", "ceil takes two arguments, not 1", 6),
        ("min(a)", "int", "min takes at least two arguments, not 1", 5),
        ("and", "int", "expected a number or a name, found 'and'", 0),
        ("3000000000", "int", "3000000000 does not fit in 32 bits", 0),
        ("1 + 99999999999999999999999", "int", "99999999999999999999 does not fit in 32 bits", 4),
        (INT32_MAX + 1, "int", "2147483648 does not fit in 32 bits", 0),
        ("a" * 1001, "int", "the expression has 1001 characters; 1000 at most", 0),
        ("+".join(["a"] * 300), "int", "the expression has more than 200 operators", 0),
        ("(" * 30 + "a" + ")" * 30, "int", "the expression is nested more than 24 deep", 25),
        ("not " * 30 + "a == b", "bool", "the expression is nested more than 24 deep", 100),
        ("-" * 30 + "a", "int", "the expression is nested more than 24 deep", 25),
    ],
)
def test_faults_are_said_with_their_place(text: str | int, kind: str, message: str, offset: int) -> None:
    """A slip would be named badly or at another column, or an absurd text would exhaust the stack."""
    with pytest.raises(ExpressionError) as caught:
        parse(text, kind)
    assert (message, offset) == (str(caught.value), caught.value.offset)


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("a + 0", "a"),
        ("0 + a", "a"),
        ("a - 0", "a"),
        ("1 * a", "a"),
        ("a * 1", "a"),
        ("a + 1 - 1", "a"),
        ("a - 1 + 3", "a + 2"),
        ("a - 3 + 1", "a - 2"),
        ("2 * 3 + a", "a + 6"),
        ("a // 0", "a // 0"),
        ("1 // 0", "1 // 0"),
        ("a - b", "a - b"),
        ("a + b + 1", "a + b + 1"),
    ],
)
def test_neutral_parts_disappear(text: str, simple: str) -> None:
    """Equal lengths would print differently and be taken for different ones."""
    assert simple == to_text(substitute(parse(text), {}))


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("true and a == b", "a == b"),
        ("a == b and true", "a == b"),
        ("false or a == b", "a == b"),
        ("a == b or false", "a == b"),
        ("not (1 == 1)", "false"),
        ("a == b or 1 < 2", "a == b or true"),
        ("a == b and 2 < 1", "a == b and false"),
    ],
)
def test_decided_parts_of_conditions_disappear(text: str, simple: str) -> None:
    """A guard that parameters decide would still be evaluated per request."""
    assert simple == to_text(substitute(parse(text, "bool"), {}))


def test_calls_of_many_arguments_print_flat() -> None:
    """A minimum of many would nest deeper than the parser allows, and a dump would not load."""
    text = f"min({', '.join(['a'] * 60)})"
    assert text == to_text(parse(text))
    assert "max(a, min(b, 1), 2)" == to_text(parse("max(max(a, min(b, 1)), 2)"))


def test_conditions_join() -> None:
    """A guard would lose one of its halves."""
    left, right = parse("a == 1", "bool"), parse("b == 2", "bool")
    assert "a == 1 and b == 2" == to_text(both(left, right))
    assert right == both(Const(1, boolean=True), right)


def test_differences_of_equals_are_nothing() -> None:
    """`a - a` would stand in a length."""
    assert Const(0) == subtract(Name("a"), Name("a"))
    assert Op("-", (Name("a"), Const(2))) == add(Const(-2), Name("a"))


def test_divisors_are_found_at_any_depth() -> None:
    """A division by a column would pass the rules."""
    found = list(divisors(parse("a // k + ceil(b % 3, a * 2)")))
    assert ["k", "a * 2", "3"] == [to_text(divisor) for divisor in found]


def test_negative_constants_print_in_brackets() -> None:
    """A folded constant would change the meaning of what stands around it."""
    assert "a * (-2)" == to_text(Op("*", (Name("a"), Const(-2))))
    assert "-2" == to_text(Const(-2))
    assert ("true", "false") == (to_text(Const(1, boolean=True)), to_text(Const(0, boolean=True)))
