"""The values that a spec is compiled for, and what its expressions and pieces are under them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsm_spec.errors import UserError
from fsm_spec.language import expression
from fsm_spec.language.domain import column_bounds
from fsm_spec.language.expression import Const, Expr, Name, evaluate, interval, to_text
from fsm_spec.language.findings import nearest
from fsm_spec.language.linear import simplify
from fsm_spec.language.piece import Piece
from fsm_spec.table import ColumnPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsm_spec.language.spec import Spec
    from fsm_spec.rules.soundness import Fault


def resolve_params(
    spec: Spec, given: Mapping[str, int] | None = None, *, check: bool = False
) -> dict[str, int]:
    """Give every parameter its value: as given, else the default (or the checker's small value).

    Raises UserError for an unknown name, a value out of range, or a requirement that fails.
    """
    given = dict(given or {})
    for name, value in given.items():
        if name not in spec.params:
            known = nearest(name, spec.params) if spec.params else "; it has none"
            raise UserError(f"{spec.spec} has no parameter {name!r}{known}")
        low, high = spec.params[name].range
        if not low <= value <= high:
            raise UserError(f"{spec.spec}: {name}={value} is out of range; choose {low} to {high}")
    values = {
        name: given.get(name, param.check if check else param.default) for name, param in spec.params.items()
    }
    for condition in spec.require:
        if not evaluate(condition, values):
            shown = ", ".join(f"{name}={values[name]}" for name in dict.fromkeys(expression.names(condition)))
            raise UserError(f"{spec.spec} requires {to_text(condition)}, which fails for {shown}")
    return values


class Values:
    """Substitute the values of parameters in a spec; `faults` are those that only values show."""

    def __init__(self, spec: Spec, params: dict[str, int], page_size: int) -> None:
        self.spec = spec
        self.params = params
        self.page_size = page_size
        self.constants = params if spec.contract else {**params, "page_size": page_size}
        self.faults: list[Fault] = []
        self.columns = self._columns()
        self.bounds = column_bounds({c.name: c.max for c in self.columns}, len(spec.states) + 3)
        self.carry_length = {name: self.fixed(carry.shape[0]) for name, carry in spec.carry.items()}
        self.faults += [
            (("carry", name, "shape"), f"carry {name} would hold {length}; give 0 to 2147483647")
            for name, length in self.carry_length.items()
            if length is not None and not 0 <= length < 2**31
        ]
        if isinstance(spec.contract, str):
            self.carry_length["pending"] = 1

    def sub(self, expr: Expr) -> Expr:
        """Give an expression with its parameters replaced, in its simplest form."""
        return (
            simplify(expression.substitute(expr, self.constants))
            if not expression.is_boolean(expr)
            else expression.substitute(expr, self.constants)
        )

    def fixed(self, size: Expr | str) -> int | None:
        """Evaluate a size over parameters; `vocab` stays open (None)."""
        return None if size in ("vocab", Name("vocab")) else evaluate(size, self.params)  # type: ignore[arg-type]

    def _columns(self) -> tuple[ColumnPlan, ...]:
        plans: list[ColumnPlan] = []
        # An init reads columns above it as they start, not as they were before.
        above: dict[str, Expr] = {}
        for name, column in self.spec.columns.items():
            top = evaluate(column.max, self.params)
            if not 0 <= top < 2**31:
                self.faults.append(
                    (("columns", name, "max"), f"column {name} would run to {top}; give 0 to 2147483647")
                )
            above[name] = expression.substitute(self.sub(column.init), above)
            plans.append(ColumnPlan(name, above[name], top))
        return tuple(plans)

    def value(self, expr: Expr) -> int:
        """Give the greatest value that an expression can have."""
        return interval(self.sub(expr), self.bounds)[1]

    def piece(self, piece: Piece, outputs: Mapping[str, int]) -> Piece:
        """Substitute parameters and write both ends out."""
        whole = outputs.get(piece.name, self.carry_length.get(piece.name)) or 1
        start = Const(0) if piece.start is None else self.sub(piece.start)
        stop = Const(whole) if piece.stop is None else self.sub(piece.stop)
        if piece.name in ("mask", "noise"):
            return Piece(piece.name)
        return Piece(piece.name, start, stop)
