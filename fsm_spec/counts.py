"""Counts that the operators of a table find: which in which state, and how large each can be.

Whoever draws them by chances asks here: the simulator, and the executor where acceptance is synthetic.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fsm_spec.language.domain import column_bounds
from fsm_spec.language.expression import Expr
from fsm_spec.language.linear import bounds
from fsm_spec.plan import OutputPlan
from fsm_spec.table import Table


class Draw(NamedTuple):
    """Name one count that a forward's operators find: the argument, the law, and the most it can be.

    Where `down` holds, what the law draws is taken from the most: the masks filled beyond one, from those that may be
    left.
    """

    name: str
    op: str
    most: Expr
    down: bool = False


# The law of a count whose range is one value.
KNOWN: Final = "known"
# The law of an operator's counts, where it is not called like the operator: walks accept as chains do.
_LAWS: Final = {"walk": "accept"}


def is_known(count: OutputPlan) -> bool:
    """Tell whether the range of a count leaves one value, as where all drafts are accepted unread."""
    return count.least == count.most


def draws_of(table: Table, state: str) -> tuple[Draw, ...]:
    """List the counts that the operators of a state's forward find, in order."""
    forward = table.state(state).forward
    if forward is None:
        return ()
    plan = table.forwards[forward]
    return tuple(
        Draw(
            count.name,
            KNOWN if is_known(count) else _LAWS.get(op.op, op.op),
            count.most,
            down=op.op == "unmask",
        )
        for op in plan.operators
        for count in op.counts
    )


def most_drafts(table: Table, op: str) -> int:
    """Give the largest count that operators of this kind find under the table's parameters; 0 without any."""
    limits = column_bounds({column.name: column.max for column in table.columns}, len(table.states))
    found = [
        bounds(draw.most, limits)[1]
        for state in table.states
        for draw in draws_of(table, state.name)
        if draw.op == op
    ]
    return max(found, default=0)
