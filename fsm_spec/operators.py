"""The registry of operators: what each one reads, gives, and in which range; readings and kernels are in `kernels/`.

A new operator is one entry here, one model in `spec.py`, and one reading in `kernels/`; a test compares the sets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fsm_spec import expression
from fsm_spec.expression import Const, Expr
from fsm_spec.linear import simplify

if TYPE_CHECKING:
    from fsm_spec.plan import ForwardPlan, OperatorPlan


@dataclass(frozen=True)
class Output:
    """Describe one output of an operator.

    `kind`: `tokens` (ids), `law` (float32 distributions, one a token) or `count` (an integer that guards and effects
    may read). `most` gives the length of tokens or law, or the upper bound of a count, whose lower bound is 0.
    """

    kind: str
    most: Callable[[OperatorPlan, ForwardPlan], Expr]


@dataclass(frozen=True)
class Operator:
    """Describe an operator: its key in the registry, what it does, where that comes from, and its outputs in order."""

    key: str
    about: str
    source: str
    outputs: tuple[Output, ...]


def _row_count(plan: OperatorPlan, forward: ForwardPlan) -> Expr:
    return simplify(expression.total(forward.segment(name).count for name in plan.rows))


def _drafts_judged(plan: OperatorPlan, forward: ForwardPlan) -> Expr:
    """Row i judges draft i, and the last row gives the token after the last draft."""
    return simplify(expression.subtract(_row_count(plan, forward), Const(1)))


def _size(plan: OperatorPlan, _: ForwardPlan) -> Expr:
    return Const(plan.size)


def _one(_: OperatorPlan, __: ForwardPlan) -> Expr:
    return Const(1)


_ACCEPTED: Final = (Output("count", _drafts_judged), Output("tokens", _one))

OPERATORS: Final[dict[str, Operator]] = {
    operator.key: operator
    for operator in (
        Operator(
            "sample",
            "draw one token for each row from its law (argmax at temperature 0), and give the laws drawn from",
            "inverse of the cumulative law at one counter-based uniform a row",
            (Output("tokens", _row_count), Output("law", _row_count)),
        ),
        Operator(
            "accept:greedy",
            "accept drafts while they equal the target's argmax; next is the argmax after the accepted run",
            "Leviathan et al., arXiv 2211.17192, at temperature 0",
            _ACCEPTED,
        ),
        Operator(
            "accept:match",
            "draw the target's own token for each row; accept drafts while they equal it; next is that token",
            "sample-and-match; Nemotron-Labs-Diffusion's linear_spec_generate",
            _ACCEPTED,
        ),
        Operator(
            "accept:rejection",
            "accept draft x with min(1, p(x) / q(x)); after a rejection next is drawn from max(0, p - q), normalised",
            "Leviathan et al., arXiv 2211.17192, theorem 1; without q the draft is a point mass",
            _ACCEPTED,
        ),
        Operator(
            "lookup",
            "find the longest run of newest tokens, from max down to min, earlier in the text; give what followed it",
            "prompt lookup decoding (Saxena 2023)",
            (Output("tokens", _size), Output("count", _size)),
        ),
    )
}
