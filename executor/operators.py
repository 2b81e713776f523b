"""Operators over the logits of a block: from a row plan's named inputs to the kernels' readings, and back.

What an operator gives is kept by name: tokens [n, length] as arrays, laws [n, length, vocabulary] as tensors, counts
[n] as arguments of the event. Which output is which says the language's registry of operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fsm_spec.budget import Rate, best_total, grant, share
from fsm_spec.executor.block import Block, ReadRows
from fsm_spec.executor.carry import EMPTY, Scope
from fsm_spec.executor.control import shape_block
from fsm_spec.executor.request import Tokens
from fsm_spec.executor.synthetic import BY_QUOTA, Laws, row_of
from fsm_spec.kernels.choose import Chooser
from fsm_spec.kernels.law import SamplingRows
from fsm_spec.kernels.operators import OPERATORS
from fsm_spec.kernels.randomness import Purpose
from fsm_spec.kernels.tree import Tree
from fsm_spec.language.expression import Const, add
from fsm_spec.language.piece import Piece
from fsm_spec.plan import OperatorPlan

Reading = Callable[..., Any]
Counts = NDArray[np.int64]
# Outputs that are read as arrays; laws and trees stay what the readings give.
_HOST = ("token", "index")
# Operators that read the hidden states of rows.
_ON_STATES = ("capture", "sample:markov")


@dataclass(frozen=True)
class Sampling:
    """Hold the sampling parameters and seeds of n requests."""

    rows: SamplingRows
    seeds: torch.Tensor

    def spread(self, counts: Counts) -> tuple[SamplingRows, torch.Tensor]:
        """Repeat each request's parameters and seed for its rows; greedy rows read neither."""
        if self.rows.all_greedy:
            return self.rows, self.seeds
        index = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
        return self.rows.take(index), self.seeds[index]


@dataclass(frozen=True)
class _Draws:
    """Draw for requests with these parameters, as `synthetic.Draws` says."""

    chooser: Chooser
    sample: Reading
    sampling: Sampling

    def count(self, law: torch.Tensor, names: torch.Tensor) -> torch.Tensor:
        """Draw by a law of counts."""
        laws = law.expand(len(names), -1)
        return self.chooser.choose(laws, self.sampling.seeds, names, Purpose.SYNTHETIC)

    def token(self, logits: torch.Tensor, positions: torch.Tensor, rule: str) -> torch.Tensor:
        """Draw the target's token."""
        rows, seeds = self.sampling.rows, self.sampling.seeds
        tokens: torch.Tensor
        tokens, _ = self.sample(logits, rows, seeds, positions, Purpose.TARGET, self.chooser, rule)
        return tokens


class Operators:
    """Run the operators of a launch; `readings` maps keys of the registry to functions over tensors.

    `rate` gives the steps a second of launches by their rows, which verify budgets weigh; without one nothing is
    trimmed. `synthetic` are the laws of counts that are drawn in place of what the rules find.
    """

    def __init__(
        self,
        chooser: Chooser,
        readings: Mapping[str, Reading] = OPERATORS,
        rate: Rate | None = None,
        synthetic: Laws | None = None,
    ) -> None:
        self.chooser = chooser
        self.readings = readings
        self.rate = rate
        self.synthetic = synthetic or Laws(None, None)
        self._calls: dict[str, Callable[..., Sequence[Any]]] = {
            "sample": self._sample,
            "accept": self._accept,
            "unmask": self._unmask,
            "grow": self._grow,
            "prune": self._prune,
            "walk": self._walk,
            "lookup": self._lookup,
            "budget": self._budget,
        }

    def first_tokens(self, logits: torch.Tensor, sampling: Sampling, positions: NDArray[np.int64]) -> Tokens:
        """Sample the token after each prefill, logits [m, V] -> int64 [m]."""
        tokens, _ = self.readings["sample"](
            logits, sampling.rows, sampling.seeds, torch.from_numpy(positions), Purpose.TARGET, self.chooser
        )
        return np.asarray(tokens)

    def run(
        self,
        block: Block,
        logits: torch.Tensor,
        sampling: Sampling,
        hidden: torch.Tensor | None = None,
        drafter: Any = None,  # noqa: ANN401 -- a draft model of any kind
    ) -> dict[str, NDArray[np.int32]]:
        """Run all operators of a block in order -> counts by name, int32 [n]; outputs and counts enter its scope.

        `logits` [m, V] hold the rows of each operator in order, those of one operator request after request;
        `hidden` [T, width] are the states of all rows of the block, `drafter` the draft model that ran them.
        """
        args: dict[str, NDArray[np.int32]] = {}
        at = 0
        for index, plan in enumerate(block.layout.plan.operators):
            rows = block.readers[index]
            part = logits[at : at + len(rows.positions)]
            if plan.op != "capture":
                at += len(rows.positions)
                part = shape_block(block, rows, part, draft=plan.draft, mask_id=block.scope.mask_id)
            if plan.key in _ON_STATES:
                assert hidden is not None, "the runner asked for hidden states"
                states = rows.square(hidden[torch.from_numpy(rows.numbers)], 0.0)
                values = self._on_states(index, block, part, states, sampling, drafter)
            else:
                values = self._run_one(plan, block, part, rows, sampling)
            for value, output in zip(values, plan.outputs, strict=False):
                if output.kind == "count":
                    args[output.name] = value.numpy().astype(np.int32)
                else:
                    block.scope.outputs[output.name] = value.numpy() if output.kind in _HOST else value
        block.scope.integers.update(args)
        return args

    def _run_one(
        self, plan: OperatorPlan, block: Block, logits: torch.Tensor, rows: ReadRows, sampling: Sampling
    ) -> Sequence[Any]:
        """Call a reading with the inputs of its kind."""
        return self._calls[plan.op](self.readings.get(plan.key), plan, block.scope, logits, rows, sampling)

    def _lookup(
        self,
        reading: Reading,
        plan: OperatorPlan,
        scope: Scope,
        *_: object,
    ) -> Sequence[torch.Tensor]:
        """Look for what followed the newest tokens -> (tokens [n, size], count [n])."""
        texts = [request.text for request in scope.requests]
        sizes = (plan.number(name) for name in ("size", "min", "max"))
        return reading(texts, *sizes)  # type: ignore[no-any-return]

    def _budget(
        self,
        _: None,
        plan: OperatorPlan,
        scope: Scope,
        *__: object,
    ) -> Sequence[torch.Tensor]:
        """Grant drafts over all requests of the launch -> (count [n],); without a cost table nothing is trimmed."""
        size = plan.number("size")
        whole = (Piece(plan.read["from_"], Const(0), Const(size)),)
        members = range(len(scope.requests))
        chances = np.stack([scope.wide(whole, member).double().numpy() for member in members])
        if plan.rule == "early_stop":
            return (torch.from_numpy(grant(chances, self.rate)),)
        before = (Piece(plan.read["earlier"], Const(0), Const(size)),)
        earlier = np.stack([scope.wide(before, member).double().numpy() for member in members])
        return (torch.from_numpy(share(chances, best_total(earlier, self.rate))),)

    def _grow(
        self,
        reading: Reading,
        plan: OperatorPlan,
        scope: Scope,
        logits: torch.Tensor,
        rows: ReadRows,
        sampling: Sampling,
    ) -> Sequence[Any]:
        """Grow a tree from each root -> (trees,), or by a level -> (trees, rows that new nodes hang on)."""
        levels = rows.square(logits, None)
        top, size = plan.number("top"), plan.number("size")
        if plan.rule == "best":
            root = scope.outputs[plan.read["root"]]
            assert isinstance(root, np.ndarray)
            roots = torch.from_numpy(root[:, 0])
            return (reading(levels, roots, sampling.rows, top, size, exclude=scope.mask_id),)
        if "tree" in plan.read:
            pool = Tree.join([scope.tree(plan.read["tree"], at) for at in range(len(scope.requests))])
        else:
            root = scope.tokens(Piece(plan.read["root"], Const(0), Const(1)), 1)
            pool = Tree.rooted(torch.from_numpy(root[:, 0]), size, levels.dtype)
        return reading(levels, pool, sampling.rows, top, exclude=scope.mask_id)  # type: ignore[no-any-return]

    def _prune(
        self,
        reading: Reading,
        plan: OperatorPlan,
        scope: Scope,
        *_: object,
    ) -> Sequence[Tree]:
        """Keep the best nodes of each tree -> (trees,)."""
        tree = scope.outputs[plan.read["tree"]]
        assert isinstance(tree, Tree)
        return (reading(tree, plan.number("size")),)

    def _walk(
        self,
        reading: Reading,
        plan: OperatorPlan,
        scope: Scope,
        logits: torch.Tensor,
        rows: ReadRows,
        sampling: Sampling,
    ) -> Sequence[torch.Tensor]:
        """Walk each tree -> (edges [n], rows of the path [n, depth + 1], its tokens, next [n, 1])."""
        trees = Tree.join([scope.tree(plan.read["tree"], member) for member in range(len(scope.requests))])
        laws, positions = rows.square(logits, None), rows.square(torch.from_numpy(rows.positions), None)
        deepest = plan.number("depth")
        found = reading(laws, trees, sampling.rows, sampling.seeds, positions, self.chooser, deepest)
        if not self.synthetic.decides(plan):
            return found  # type: ignore[no-any-return]
        pick = row_of(laws, positions)
        return self.synthetic.walk(trees, positions[:, 0], deepest, pick, self._draws(sampling))

    def _unmask(
        self,
        reading: Reading,
        plan: OperatorPlan,
        scope: Scope,
        logits: torch.Tensor,
        rows: ReadRows,
        sampling: Sampling,
    ) -> Sequence[torch.Tensor]:
        """Fill some masks of each block -> (masks left [n], block [n, most])."""
        numbers = {name: torch.from_numpy(scope.numbers(value)) for name, value in plan.numbers.items()}
        whole = Piece(plan.read["block"], Const(0), Const(rows.most))
        blocks = scope.tokens(whole, rows.most)
        last = numbers["steps"] <= 1 if "steps" in numbers else torch.zeros(len(blocks), dtype=torch.bool)
        positions = rows.square(torch.from_numpy(rows.positions), None)
        if self.synthetic.decides(plan):
            reading = self.readings[BY_QUOTA]
            draws = self._draws(sampling)
            numbers["quota"] = self.synthetic.quota(numbers["left"], positions[:, 0], draws)
        return reading(  # type: ignore[no-any-return]
            rows.square(logits, None),
            torch.from_numpy(blocks),
            torch.from_numpy(rows.counts),
            sampling.rows,
            sampling.seeds,
            positions,
            numbers["left"],
            self.chooser,
            quota=numbers.get("quota"),
            last=last,
            first=numbers.get("start"),
            stop_ids=[request.stop_ids for request in scope.requests] if plan.freeze else None,
            exclude=scope.mask_id,
            **plan.rule_options,
        )

    def _sample(
        self,
        reading: Reading,
        plan: OperatorPlan,
        scope: Scope,
        logits: torch.Tensor,
        rows: ReadRows,
        sampling: Sampling,
    ) -> Sequence[torch.Tensor]:
        """Draw a token for each row -> tokens [n, most], and laws [n, most, V] where they are wanted."""
        parameters, seeds = sampling.spread(rows.counts)
        tokens, law = reading(
            logits,
            parameters,
            seeds,
            torch.from_numpy(rows.positions),
            Purpose.DRAFT if plan.draft else Purpose.TARGET,
            self.chooser,
            plan.rule,
            exclude=scope.mask_id if plan.draft else None,
            want_law=len(plan.out) > 1,
        )
        found = [rows.square(tokens, EMPTY)]
        return found if law is None else [*found, rows.square(law, 0.0)]

    def _on_states(
        self,
        index: int,
        block: Block,
        logits: torch.Tensor,
        states: torch.Tensor,
        sampling: Sampling,
        drafter: Any,  # noqa: ANN401 -- a draft model of any kind
    ) -> Sequence[torch.Tensor]:
        """Run an operator on the hidden states [n, most, width] of its rows: give them, or draft under a head.

        The head gives tokens [n, g], laws [n, g, V] and survival [n, g], as many as are wanted.
        """
        plan, scope, rows = block.layout.plan.operators[index], block.scope, block.readers[index]
        reading = self.readings[plan.key]
        if plan.op == "capture":
            path = scope.outputs[plan.read["path"]] if "path" in plan.read else None
            assert path is None or isinstance(path, np.ndarray)
            return (reading(states, None if path is None else torch.from_numpy(path)),)
        first = block.first_tokens(index)
        tokens, laws = reading(
            rows.square(logits, None),
            first,
            drafter.biases(states),
            sampling.rows,
            sampling.seeds,
            rows.square(torch.from_numpy(rows.positions), None),
            self.chooser,
            plan.rule,
            exclude=scope.mask_id,
            want_law=len(plan.out) > 1,
        )
        found = [tokens] if laws is None else [tokens, laws]
        if len(plan.out) > 2:
            found.append(drafter.survival(states, torch.cat((first[:, None], tokens[:, :-1]), 1)))
        return found

    def _accept(
        self,
        reading: Reading,
        plan: OperatorPlan,
        scope: Scope,
        logits: torch.Tensor,
        rows: ReadRows,
        sampling: Sampling,
    ) -> Sequence[torch.Tensor]:
        """Judge the drafts -> (accepted [n], next [n, 1])."""
        most = rows.most
        assert plan.drafts is not None
        drafts = scope.tokens(plan.drafts, most - 1)
        accepted, token = reading(
            logits,
            torch.from_numpy(drafts),
            torch.from_numpy(rows.counts - 1),
            sampling.rows,
            sampling.seeds,
            rows.square(torch.from_numpy(rows.positions), None),
            self.chooser,
            q=self._laws(scope, plan.read["q"], plan.drafts, most - 1) if "q" in plan.read else None,
            **plan.rule_options,
        )
        if self.synthetic.decides(plan):
            start, live = (torch.from_numpy(n) for n in (rows.counts.cumsum() - rows.counts, rows.counts - 1))
            positions = torch.from_numpy(rows.positions)
            accepted, token = self.synthetic.accept(
                live,
                positions[start],
                plan.rule,
                lambda row: (logits[start + row], positions[start + row]),
                self._draws(sampling),
            )
        return accepted, token.unsqueeze(1)

    def _draws(self, sampling: Sampling) -> _Draws:
        return _Draws(self.chooser, self.readings["sample"], sampling)

    def _laws(self, scope: Scope, name: str, drafts: Piece, length: int) -> torch.Tensor:
        """Stack the laws of the drafts, [n, length, V]; they begin where the drafts that are judged do."""
        start = drafts.start or Const(0)
        piece = (Piece(name, start, add(start, Const(length))),)
        laws = [scope.wide(piece, member) for member in range(len(scope.requests))]
        return laws[0].unsqueeze(0) if len(laws) == 1 else torch.stack(laws)
