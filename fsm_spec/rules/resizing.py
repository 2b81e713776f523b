"""Tiered parameters: their size may change between two rounds, so nothing that crosses a round point may hang on it.

Tokens in a carry that is read before it is set were made for the old size; a column whose bound is the parameter may
be beyond the new one. What a policy does with a tiered parameter is in `tiers.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from fsm_spec.language import expression
from fsm_spec.language.scope import Scope, Violation, sources_of
from fsm_spec.language.spec import BlockContract
from fsm_spec.rules.flow import leaving, reads


def rules(scope: Scope) -> Iterator[Violation]:
    """Hold every tiered parameter to sizes that may change at any round point."""
    for name, param in scope.spec.params.items():
        if param.tiered:
            yield from _contract(scope, name)
            yield from _carried(scope, name)
            yield from _bounded(scope, name)


def _contract(scope: Scope, param: str) -> Iterator[Violation]:
    """Hold the contract to be the same for every size."""
    contract = scope.spec.contract
    if isinstance(contract, BlockContract) and param in expression.names(contract.block):
        message = (
            f"{param} may not change between rounds: KV is held to whole blocks of it where a round starts; "
            f"drop `tiered`"
        )
        yield ("params", param, "tiered"), message


def _carried(scope: Scope, param: str) -> Iterator[Violation]:
    """Carries sized by the parameter are set in every round before they are read."""
    sized = {
        name
        for name, carry in scope.spec.carry.items()
        if any(not isinstance(size, str) and param in expression.names(size) for size in carry.shape)
    }
    for state, plan in scope.spec.states.items():
        for carry in sorted(sized & live_carries(scope, state)) if plan.round else ():
            message = (
                f"{param} may not change between rounds: the carry {carry} is sized by it and crosses the round state "
                f"{state}, where it is read before it is set; set {carry} in every round, or drop `tiered`"
            )
            yield ("params", param, "tiered"), message


def live_carries(scope: Scope, start: str) -> set[str]:
    """Name the carries that a round from this state reads before it sets them."""
    arrows = leaving(scope)
    live: set[str] = set()
    met = {(start, frozenset[str]())}
    todo = list(met)
    while todo:
        state, fresh = todo.pop()
        live |= {name for _, name in reads(scope, state)} - fresh
        for transition in arrows.get(state, ()):
            target = scope.spec.states.get(transition.to)
            step = (transition.to, fresh | (set(transition.set) & set(scope.spec.carry)))
            if target is not None and not target.round and step not in met:
                met.add(step)
                todo.append(step)
    return live


def _bounded(scope: Scope, param: str) -> Iterator[Violation]:
    """Columns bounded by the parameter have one value at round points, whatever its size was."""
    for name, column in scope.spec.columns.items():
        if param not in expression.names(column.max):
            continue
        ways = [("prefill", column.init)] + [
            (f"a transition from {' and '.join(sources_of(transition))}", transition.set.get(name))
            for transition in scope.spec.transitions
            if (state := scope.spec.states.get(transition.to)) is not None and state.round
        ]
        for way, value in ways:
            if not _constant(scope, value):
                message = (
                    f"{param} may not change between rounds: the column {name} is bounded by it, and {way} does not "
                    f"set it to a constant; set it to one on every way into a round state, or drop `tiered`"
                )
                yield ("params", param, "tiered"), message
                break


def _constant(scope: Scope, value: object) -> bool:
    """Tell whether a column's value is the same for every size of a tiered parameter."""
    if value is None:
        return False
    expr = expression.parse(value) if isinstance(value, (str, int)) else value
    params = scope.spec.params
    return all(name in params and not params[name].tiered for name in expression.names(expr))  # type: ignore[arg-type]
