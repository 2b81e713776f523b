"""Masks left: what an unmask operator says under `left` is the number of masks that its block holds.

The range of the operator's count follows from it, so checker and simulator would otherwise see other passes than the
executor runs. It is held by induction: where the start state is entered, and over each transition. The rules are asked
only where every name on the way is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from fsm_spec.language import expression
from fsm_spec.language.domain import assignments
from fsm_spec.language.expression import TRUE, Const, Expr, Name, Op, evaluate, substitute, to_text
from fsm_spec.language.findings import Path
from fsm_spec.language.linear import difference, simplify
from fsm_spec.language.operations import Unmask
from fsm_spec.language.piece import Piece, pieces
from fsm_spec.language.scope import Scope, Violation, forward_of, shown_values, sources_of
from fsm_spec.language.spec import Transition
from fsm_spec.rules.masks import MASK, masked_carries, unfilled
from fsm_spec.table import ArgPlan

_REMEDY: Final = "let it count the masks of {}, in a column that moves with them"


def rules(scope: Scope) -> Iterator[Violation]:
    """Hold `left` of every unmask operator to the masks that its block holds, on every way."""
    counts = _Counts(scope)
    for block in counts.blocks:
        yield from counts.begun(block)
        for number, transition in enumerate(scope.spec.transitions):
            for state in sources_of(transition):
                yield from counts.moved(block, transition, state, ("transitions", number))


class _Counts:
    """Know how many masks a block holds in each state: what `left` says there."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.masked = masked_carries(scope)
        # By block and forward what the operators say, and where; another state goes by the first that the file has.
        self.said: dict[str, dict[str, tuple[Expr, Path]]] = {}
        for name, forward in scope.spec.forwards.items():
            for index, op in enumerate(forward.ops):
                if isinstance(op, Unmask):
                    place = (op.left, ("forwards", name, "ops", index, "left"))
                    self.said.setdefault(op.block, {}).setdefault(name, place)
        self.blocks = tuple(self.said)

    def _at(self, block: str, state: str) -> tuple[Expr, Path] | None:
        """Give what counts the masks of a block in a state, and where it is said; None where there are none."""
        said = self.said.get(block, {}).get(forward_of(self.scope.spec, state) or "")
        if said is None and block in self.masked.get(state, ()):
            said = next(iter(self.said.get(block, {}).values()), None)
        return said

    def begun(self, block: str) -> Iterator[Violation]:
        """Compare where a request enters the start state."""
        spec = self.scope.spec
        begun = spec.carry[block].init or []
        for state in spec.states:
            said = self._at(block, state) if spec.states[state].start else None
            whole = self.scope.carries[block].length
            if said is None or whole is None or not any(piece.name == MASK for piece in begun):
                continue
            held = expression.subtract(whole, self._text()) if Piece("text") in begun else whole
            first: dict[str, Expr] = {}
            for name, column in spec.columns.items():
                first[name] = substitute(column.init, first)
            for found in self._differ(held, substitute(said[0], first), TRUE, ()):
                message = f"left is {found[1]} where {block} begins with {_masks(found[0])}{found[2]}"
                yield said[1], f"{message}; {_REMEDY.format(block)}"

    def _text(self) -> Expr:
        """Count the tokens behind `kv` where a request enters the start state."""
        block = self.scope.block
        return (
            Const(1) if block is None else Op("%", (expression.add(Name("prompt"), Name("emitted")), block))
        )

    def moved(self, block: str, transition: Transition, state: str, path: Path) -> Iterator[Violation]:
        """Compare behind a transition with what it leaves in the block."""
        said = self._at(block, transition.to)
        if said is None:
            return
        held = self._left_behind(block, transition, state)
        if held is None:
            message = f"how many masks {block} holds behind this transition is not known"
            yield (*path, "set", block), f"{message}; set it to whole results, carries and mask"
            return
        moves = {
            name: expression.parse(transition.set[name])  # type: ignore[arg-type]
            for name in self._set_columns(transition)
        }
        moves["kv"] = expression.add(Name("kv"), transition.keep)
        for found in self._differ(held, substitute(said[0], moves), transition.when, self._args(state)):
            message = f"{block} holds {_masks(found[0])} behind this transition, and left is {found[1]} in the state"
            yield path, f"{message} {transition.to}{found[2]}; {_REMEDY.format(block)}"
            return

    def _set_columns(self, transition: Transition) -> list[str]:
        return [name for name in transition.set if name in self.scope.spec.columns]

    def _left_behind(self, block: str, transition: Transition, state: str) -> Expr | None:
        """Count the masks of a block behind a transition; None where that is not known."""
        if block not in transition.set:
            said = self._at(block, state)
            return said[0] if said is not None and block in self.masked[state] else Const(0)
        scope = self.scope
        name = forward_of(scope.spec, state) or ""
        rests = {op.out[1]: Name(op.out[0]) for op in scope.spec.forwards[name].ops if isinstance(op, Unmask)}
        may = self.masked[state] | unfilled(scope, transition, state)
        values = dict(scope.carries) | scope.results.get(name, {})
        total: Expr = Const(0)
        rest = scope.carries[block].length
        for piece in pieces(transition.set[block]):
            if piece.name == MASK:
                return None if rest is None else expression.add(total, rest)
            length = values[piece.name].length
            if rest is not None and length is not None:
                rest = expression.subtract(rest, piece.length(length))
            if piece.name not in may:
                continue
            said = self._at(piece.name, state)
            held = rests.get(piece.name) or (None if said is None else said[0])
            if held is None or piece != Piece(piece.name):
                return None
            total = expression.add(total, held)
        return total

    def _args(self, state: str) -> tuple[ArgPlan, ...]:
        name = forward_of(self.scope.spec, state)
        return () if name is None else self.scope.counts(name)

    def _differ(
        self, held: Expr, said: Expr, guard: Expr, args: Sequence[ArgPlan]
    ) -> Iterator[tuple[str, str, str]]:
        """Give the masks held, those said, and where both differ; nothing where they never do."""
        if difference(held, said) == Const(0):
            return
        for params in self.scope.settings():
            parts = [substitute(part, params) for part in (held, said, guard)]
            if difference(parts[0], parts[1]) == Const(0):
                continue
            try:
                found = self._walk(parts, [_under(arg, params) for arg in args], params)
            except ZeroDivisionError:
                return  # the divisor has a finding of its own
            if found is not None:
                sizes = {name for part in (held, said, guard) for name in expression.names(part)} & set(
                    params
                )
                yield (
                    found[0],
                    found[1],
                    shown_values({name: params[name] for name in params if name in sizes} | found[2]),
                )
                return

    def _walk(
        self, parts: Sequence[Expr], args: Sequence[ArgPlan], params: Mapping[str, int]
    ) -> tuple[str, str, dict[str, int]] | None:
        held, said, guard = parts
        columns = self.scope.bounds(params)
        edges = [edge for arg in args for edge in (arg.low, arg.high)]
        read = {name for part in (*parts, *edges) for name in expression.names(part)}
        if not read <= {*columns, *(arg.name for arg in args)} or self.scope.walks <= 0:
            return to_text(simplify(held)), to_text(simplify(said)), {}
        for values in assignments(parts, columns, args, self.scope.walks):
            self.scope.walks -= 1
            masks, told = evaluate(held, values), evaluate(said, values)
            if masks != told and evaluate(guard, values):
                return str(masks), str(told), values
        return None


def _under(arg: ArgPlan, params: Mapping[str, int]) -> ArgPlan:
    return ArgPlan(arg.name, substitute(arg.low, params), substitute(arg.high, params))


def _masks(count: str) -> str:
    return "no mask" if count == "0" else f"{count} mask" + "s" * (count != "1")
