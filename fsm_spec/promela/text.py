"""Expressions of a table in Promela, and conditions with their known parts folded away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsm_spec.language.expression import TRUE, Const, Expr, Name, Op, both

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FALSE: Final = Const(0, boolean=True)
_INFIX: Final = {"+": "+", "-": "-", "*": "*", "and": "&&", "or": "||"}
_CALLS: Final = {"//": "FLOOR", "%": "MOD", "ceil": "CEIL", "min": "MIN", "max": "MAX"}

OPERATORS: Final = """\
#define MIN(a, b)    ((a) < (b) -> (a) : (b))
#define MAX(a, b)    ((a) > (b) -> (a) : (b))
#define FLOOR(a, b)  ((a) >= 0 -> (a) / (b) : -(((b) - 1 - (a)) / (b)))
#define CEIL(a, b)   ((a) > 0 -> ((a) + (b) - 1) / (b) : -((-(a)) / (b)))
#define MOD(a, b)    ((((a) % (b)) + (b)) % (b))
"""


def text_of(expr: Expr, columns: Mapping[str, str]) -> str:
    """Print an expression in Promela; `columns` says how each name is written."""
    if isinstance(expr, Const):
        return str(expr.value) if expr.value >= 0 else f"({expr.value})"
    if isinstance(expr, Name):
        return columns[expr.name]
    args = [text_of(arg, columns) for arg in expr.args]
    if expr.op in _CALLS:
        return f"{_CALLS[expr.op]}({', '.join(args)})"
    if expr.op in ("not", "neg"):
        return f"({'!' if expr.op == 'not' else '-'}{args[0]})"
    return f"({args[0]} {_INFIX.get(expr.op, expr.op)} {args[1]})"


def comment(text: str) -> str:
    """Give a text as a comment on one line."""
    return f"/* {' '.join(text.split()).replace('*/', '* /').replace('/*', '/ *')} */"


def negated(expr: Expr) -> Expr:
    """Negate a condition."""
    return Const(1 - expr.value, boolean=True) if isinstance(expr, Const) else Op("not", (expr,))


def all_of(parts: Iterable[Expr]) -> Expr:
    """Join conditions by `and`, folding known ones."""
    joined: Expr = TRUE
    for part in parts:
        joined = FALSE if FALSE in (joined, part) else both(joined, part)
    return joined


def any_of(parts: Iterable[Expr]) -> Expr:
    """Join conditions by `or`, folding known ones."""
    joined: Expr = FALSE
    for part in parts:
        joined = tidy(Op("or", (joined, part)))
    return joined


def tidy(expr: Expr) -> Expr:
    """Drop the parts of a condition that are known."""
    if not isinstance(expr, Op) or expr.op not in ("and", "or", "not"):
        return expr
    parts = [tidy(arg) for arg in expr.args]
    if expr.op == "not":
        return negated(parts[0])
    if expr.op == "and":
        return all_of(parts)
    if TRUE in parts:
        return TRUE
    left = [part for part in parts if part != FALSE]
    return Op("or", tuple(left)) if len(left) == len(parts) else left[0] if left else FALSE
