"""Linear forms of expressions: sums of `coefficient * term`, so that `kv + a + 1 - kv` is known to be `a + 1`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsm_spec.language import expression
from fsm_spec.language.expression import Const, Expr, Op

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsm_spec.language.expression import Bounds

# Terms are names or opaque parts (min, max, //, ...); None is the constant term.
Linear = dict[Expr | None, int]


def linear(expr: Expr) -> Linear:
    """Expand an integer expression; terms with coefficient 0 are dropped."""
    form: Linear = {}
    _collect(expr, 1, form)
    return {term: factor for term, factor in form.items() if factor}


def _collect(expr: Expr, factor: int, form: Linear) -> None:
    if isinstance(expr, Const):
        form[None] = form.get(None, 0) + factor * expr.value
    elif isinstance(expr, Op) and expr.op in ("+", "-"):
        _collect(expr.args[0], factor, form)
        _collect(expr.args[1], factor if expr.op == "+" else -factor, form)
    elif isinstance(expr, Op) and expr.op == "neg":
        _collect(expr.args[0], -factor, form)
    elif isinstance(expr, Op) and expr.op == "*" and any(isinstance(arg, Const) for arg in expr.args):
        constant, rest = sorted(expr.args, key=lambda arg: not isinstance(arg, Const))
        assert isinstance(constant, Const)
        _collect(rest, factor * constant.value, form)
    else:
        form[expr] = form.get(expr, 0) + factor


def simplify(expr: Expr) -> Expr:
    """Rewrite an integer expression in the order of its linear form, constant last."""
    form = linear(expr)
    constant = form.pop(None, 0)
    result: Expr = Const(0)
    # Positive terms first, so that a difference never starts with a minus sign when it need not.
    for term, factor in sorted(form.items(), key=lambda item: item[1] < 0):
        assert term is not None
        size = term if abs(factor) == 1 else Op("*", (term, Const(abs(factor))))
        result = expression.add(result, size) if factor > 0 else expression.subtract(result, size)
    return expression.add(result, Const(constant))


def difference(left: Expr, right: Expr) -> Expr:
    """Subtract and simplify, so that equal parts cancel."""
    return simplify(Op("-", (left, right)))


def bounds(expr: Expr, names: Mapping[str, Bounds]) -> Bounds:
    """Bound an expression after cancelling equal terms; tighter than plain interval arithmetic."""
    low = high = 0
    for term, factor in linear(expr).items():
        ends = (1, 1) if term is None else expression.interval(term, names)
        low += min(factor * ends[0], factor * ends[1])
        high += max(factor * ends[0], factor * ends[1])
    return low, high
