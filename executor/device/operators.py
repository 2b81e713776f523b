"""Operators on the device: from a row plan's named inputs to the kernels in fixed shapes, and back.

What each operator is handed says `executor/operators.py`, of which this is the form without a host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fsm_spec.executor.device.control import NO_WISHES, Wishes, shaped
from fsm_spec.executor.device.rows import RowForm, Rows
from fsm_spec.executor.device.scope import DeviceScope
from fsm_spec.executor.synthetic import BY_QUOTA, row_of
from fsm_spec.kernels.fixed.budget import grant, share
from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.fixed.operators import FIXED_OPERATORS
from fsm_spec.kernels.randomness import Purpose
from fsm_spec.kernels.tree import Tree
from fsm_spec.language.expression import Const, add
from fsm_spec.language.piece import Piece
from fsm_spec.plan import OperatorPlan


@dataclass(frozen=True)
class Given:
    """Hold what one operator reads of its rows, live ones first: r of them a request."""

    scope: DeviceScope
    sampling: SamplingColumns
    logits: Tensor
    """[n, r, V], or hidden states [n, r, width] where it reads those alone"""
    positions: Tensor
    """int64 [n, r], of the tokens that the rows predict"""
    counts: Tensor
    """int64 [n]"""
    first: Tensor | None = None
    states: Tensor | None = None
    drafter: Any = None
    alive: Tensor | None = None
    """bool [n], for operators without rows"""


@dataclass(frozen=True)
class Ran:
    """Hold the rows of one state after their forward.

    `logits(i)` gives [n, r, V] of the rows that operator i reads, `hidden` [n, R, width] are the states of all rows,
    `drafter` is the draft model that ran them, of any kind. Logits are shaped as `wishes` says.
    """

    form: RowForm
    rows: Rows
    scope: DeviceScope
    alive: Tensor
    logits: Callable[[int], Tensor]
    hidden: Tensor | None
    drafter: Any
    wishes: Wishes = NO_WISHES


def run_operators(ran: Ran) -> dict[str, Tensor]:
    """Run all operators of a state in order -> counts by name, int32 [n]; outputs and counts enter the scope."""
    scope = ran.scope
    sampling = scope.state.sampling_of(scope.lines)
    args: dict[str, Tensor] = {}
    for index, plan in enumerate(ran.form.plan.operators):
        call = _CALLS[plan.op if plan.key != "sample:markov" else plan.key]
        for value, output in zip(call(plan, _given(index, plan, ran, sampling)), plan.outputs, strict=False):
            if output.kind == "count":
                args[output.name] = scope.integers[output.name] = value.int()
            else:
                scope.outputs[output.name] = value
    return args


def _given(index: int, plan: OperatorPlan, ran: Ran, sampling: SamplingColumns) -> Given:
    """Gather what an operator reads."""
    form, rows, scope = ran.form, ran.rows, ran.scope
    own = form.readers[index]
    if not len(own):
        none = torch.zeros(len(scope.lines), 0, dtype=torch.int64, device=scope.lines.device)
        # A size may leave an operator no row: it is handed laws of none, in the shape of laws.
        sizes = scope.state.sizes
        laws = none.new_empty((len(none), 0, sizes.vocabulary), dtype=sizes.real)
        return Given(scope, sampling, laws, none, none.sum(1), alive=ran.alive)
    on_states = plan.op == "capture" or plan.key == "sample:markov"
    states = first = None
    if on_states:
        assert ran.hidden is not None, "the phase has asked for hidden states"
        states, positions, counts = form.read_by(index, rows, ran.hidden[:, own], own)
        if plan.op == "capture":
            return Given(scope, sampling, states, positions, counts)
        first = form.first_ids(index, rows)
    logits = ran.logits(index)
    if ran.wishes.adjusts:
        logits = shaped(form, index, rows, scope, logits, ran.wishes)
    values, positions, counts = form.read_by(index, rows, logits, own)
    return Given(scope, sampling, values, positions, counts, first, states, ran.drafter)


@dataclass(frozen=True)
class _Draws:
    """Draw for requests with these parameters, as `synthetic.Draws` says."""

    sampling: SamplingColumns

    def count(self, law: Tensor, names: Tensor) -> Tensor:
        """Draw by a law of counts: as logits, at temperature 1."""
        logits = law.log().float().expand(len(names), 1, -1)
        drawn: Tensor = self._drawn(logits, names, Purpose.SYNTHETIC, plain(self.sampling), "law")
        return drawn

    def token(self, logits: Tensor, positions: Tensor, rule: str) -> Tensor:
        """Draw the target's token."""
        return self._drawn(logits.unsqueeze(1), positions, Purpose.TARGET, self.sampling, rule)

    @staticmethod
    def _drawn(
        logits: Tensor, names: Tensor, purpose: Purpose, sampling: SamplingColumns, rule: str
    ) -> Tensor:
        drawn: Tensor
        drawn, _ = FIXED_OPERATORS["sample"](logits, sampling, names.unsqueeze(1), purpose, rule)
        return drawn.squeeze(1)


def plain(sampling: SamplingColumns) -> SamplingColumns:
    """Give the parameters that draw from laws as they are, with the same seeds."""
    ones, none = torch.ones_like(sampling.temperature), torch.zeros_like(sampling.top_k)
    return SamplingColumns(ones, none, ones, torch.zeros_like(ones), sampling.seeds)


def _sample(plan: OperatorPlan, given: Given) -> Sequence[Any]:
    """Draw a token for each row -> tokens [n, r], laws [n, r, V] or None."""
    if not given.logits.shape[1]:
        return given.positions, given.logits
    return FIXED_OPERATORS["sample"](  # type: ignore[no-any-return]
        given.logits,
        given.sampling,
        given.positions,
        Purpose.DRAFT if plan.draft else Purpose.TARGET,
        plan.rule,
        exclude=_excluded(plan, given),
        want_law=len(plan.out) > 1,
    )


def _excluded(plan: OperatorPlan, given: Given) -> int | None:
    """Give the token that may not be proposed."""
    return given.scope.mask_id if plan.draft else None


def _sequential(plan: OperatorPlan, given: Given) -> Sequence[Any]:
    """Draft under a head that reads the token before -> tokens [n, g], laws and survival where they are wanted."""
    assert given.first is not None
    tokens, laws = FIXED_OPERATORS["sample:markov"](
        given.logits,
        given.first,
        given.drafter.biases(given.states),
        given.sampling,
        given.positions,
        plan.rule,
        exclude=given.scope.mask_id,
        want_law=len(plan.out) > 1,
    )
    found = [tokens] if laws is None else [tokens, laws]
    if len(plan.out) > 2:
        before = torch.cat((given.first.unsqueeze(1), tokens[:, :-1]), 1)
        found.append(given.drafter.survival(given.states, before))
    return found


def _accept(plan: OperatorPlan, given: Given) -> Sequence[Any]:
    """Judge the drafts -> (accepted [n], next [n, 1])."""
    assert plan.drafts is not None
    scope, most = given.scope, given.logits.shape[1] - 1
    laws = None
    if "q" in plan.read:
        start = plan.drafts.start or Const(0)
        laws = scope.read(Piece(plan.read["q"], start, add(start, Const(most))), most)
    accepted, token = FIXED_OPERATORS[plan.key](
        given.logits,
        scope.read(plan.drafts, most),
        given.counts - 1,
        given.sampling,
        given.positions,
        q=laws,
        **plan.rule_options,
    )
    synthetic = scope.state.synthetic
    if synthetic.decides(plan):
        pick = row_of(given.logits, given.positions)
        live, first = given.counts - 1, given.positions[:, 0]
        accepted, token = synthetic.accept(live, first, plan.rule, pick, _Draws(given.sampling))
    return accepted, token.unsqueeze(1)


def _unmask(plan: OperatorPlan, given: Given) -> Sequence[Any]:
    """Fill some masks of each block -> (masks left [n], block [n, r])."""
    scope = given.scope
    most = given.logits.shape[1]
    numbers = {name: scope.numbers(value) for name, value in plan.numbers.items()}
    key, synthetic = plan.key, scope.state.synthetic
    if synthetic.decides(plan):
        draws = _Draws(given.sampling)
        key, numbers["quota"] = BY_QUOTA, synthetic.quota(numbers["left"], given.positions[:, 0], draws)
    return FIXED_OPERATORS[key](  # type: ignore[no-any-return]
        given.logits,
        scope.read(Piece(plan.read["block"], Const(0), Const(most)), most),
        given.counts,
        given.sampling,
        given.positions,
        numbers["left"],
        quota=numbers.get("quota"),
        last=numbers["steps"] <= 1 if "steps" in numbers else None,
        first=numbers.get("start"),
        stop_ids=scope.state.stop_ids.index_select(0, scope.lines) if plan.freeze else None,
        exclude=scope.mask_id,
        **plan.rule_options,
    )


def _grow(plan: OperatorPlan, given: Given) -> Sequence[Any]:
    """Grow a tree from each root -> (trees,), or by a level -> (trees, rows that new nodes hang on)."""
    scope, top, size = given.scope, plan.number("top"), plan.number("size")
    grow = FIXED_OPERATORS[plan.key]
    if plan.rule == "best":
        root = scope.read(Piece(plan.read["root"], Const(0), Const(1)), 1).squeeze(1)
        return (grow(given.logits, root, given.sampling, top, size, exclude=scope.mask_id),)
    if "tree" in plan.read:
        pool = scope.tree(plan.read["tree"])
    else:
        root = scope.read(Piece(plan.read["root"], Const(0), Const(1)), 1).squeeze(1)
        pool = Tree.rooted(root, size, scope.state.sizes.real)
    return grow(given.logits, pool, given.sampling, top, exclude=scope.mask_id)  # type: ignore[no-any-return]


def _prune(plan: OperatorPlan, given: Given) -> Sequence[Any]:
    """Keep the best nodes of each tree -> (trees,)."""
    return (FIXED_OPERATORS["prune"](given.scope.tree(plan.read["tree"]), plan.number("size")),)


def _walk(plan: OperatorPlan, given: Given) -> Sequence[Any]:
    """Walk each tree -> (edges [n], rows of the path [n, depth + 1], its tokens, next [n, 1])."""
    tree, deepest = given.scope.tree(plan.read["tree"]), plan.number("depth")
    found = FIXED_OPERATORS[plan.key](given.logits, tree, given.sampling, given.positions, deepest)
    synthetic = given.scope.state.synthetic
    if not synthetic.decides(plan):
        return found  # type: ignore[no-any-return]
    pick = row_of(given.logits, given.positions)
    return synthetic.walk(tree, given.positions[:, 0], deepest, pick, _Draws(given.sampling))


def _lookup(plan: OperatorPlan, given: Given) -> Sequence[Any]:
    """Look for what followed the newest tokens -> (tokens [n, size], count [n])."""
    scope = given.scope
    length = (scope.integers["prompt"] + scope.integers["emitted"]).long()
    sizes = (plan.number(name) for name in ("size", "min", "max"))
    return FIXED_OPERATORS["lookup"](scope.state.text[:, :-1].index_select(0, scope.lines), length, *sizes)  # type: ignore[no-any-return]


def _capture(plan: OperatorPlan, given: Given) -> Sequence[Any]:
    """Give the hidden states of rows, along a path where one is named -> ([n, r, width],)."""
    path = given.scope.outputs[plan.read["path"]] if "path" in plan.read else None
    return (FIXED_OPERATORS["capture"](given.logits, path),)


def _budget(plan: OperatorPlan, given: Given) -> Sequence[Any]:
    """Grant drafts over all requests of the launch -> (count [n],)."""
    scope, size = given.scope, plan.number("size")
    assert given.alive is not None, "a budget looks at a launch"
    now, rates = scope.read(Piece(plan.read["from_"], Const(0), Const(size)), size), scope.state.rates
    if plan.rule == "early_stop":
        return (grant(now, given.alive, rates),)
    earlier = scope.read(Piece(plan.read["earlier"], Const(0), Const(size)), size)
    return (share(now, given.alive, rates, earlier),)


_CALLS: dict[str, Callable[[OperatorPlan, Given], Sequence[Any]]] = {
    "sample": _sample,
    "sample:markov": _sequential,
    "accept": _accept,
    "unmask": _unmask,
    "grow": _grow,
    "prune": _prune,
    "walk": _walk,
    "lookup": _lookup,
    "capture": _capture,
    "budget": _budget,
}
