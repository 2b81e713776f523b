"""One request on a toy model, all of whose random outcomes are run: what tests of output laws share.

What a toy row predicts depends on everything it sees, so the law also shows KV that should not be there.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fsm_spec.budget import table_rate
from fsm_spec.engine import Engine
from fsm_spec.executor.cache import PageAllocator
from fsm_spec.executor.operators import Operators, Reading
from fsm_spec.executor.request import Request
from fsm_spec.executor.runner import Runner
from fsm_spec.executor.toy import ToyCache, ToyModel
from fsm_spec.executor.toy_drafters import toy_drafters
from fsm_spec.kernels.enumeration import Enumerator, enumerate_outcomes
from fsm_spec.kernels.law import SamplingParams, law_plain
from fsm_spec.kernels.operators import OPERATORS
from fsm_spec.language.expression import evaluate
from fsm_spec.policy import Plan, Policy, Pool
from fsm_spec.table import Table

VOCABULARY, MASK = 4, 3
PROMPT = (1, 2)
PAGES, PAGE_SIZE = 12, 4
# What verify budgets weigh: a cost that lets confidences decide, with a dip behind the first draft.
RATE = table_rate([1, 2, 3], [1.0, 0.6, 0.5])
# The token of a slot that nobody may read.
STALE = -7
Tokens = tuple[int, ...]


class Preempting:
    """Preempt the lone request after its first round; decide as ever otherwise."""

    def __init__(self) -> None:
        self.preempted = 0

    def __call__(self, engine: Engine) -> Plan:
        """Plan the next iteration."""
        if engine.iterations == 2 and len(engine.live):
            self.preempted += 1
            return Plan((0,), np.zeros(1, np.int32), np.zeros(0, np.int64), (), (), ())
        return engine.decide()


@dataclass
class Run:
    """Hold one request on its way: the engine and the runner, whose chooser is that of the present iteration."""

    engine: Engine
    runner: Runner
    request: Request

    @classmethod
    def begin(
        cls,
        table: Table,
        params: SamplingParams,
        limit: int,
        *,
        model: ToyModel,
        planner: Callable[[Engine], Plan] | None = None,
        readings: dict[str, Reading] | None = None,
    ) -> Run:
        """Return a run before its first iteration."""
        runner = Runner(
            table,
            model,
            ToyCache(PAGES * PAGE_SIZE),
            PageAllocator(PAGES, PAGE_SIZE),
            vocabulary=VOCABULARY,
            mask_id=MASK,
            operators=Operators(Enumerator(), {**OPERATORS, **(readings or {})}, RATE),
            drafters=toy_drafters(table, PAGES * PAGE_SIZE, VOCABULARY),
        )
        engine = Engine(table, Policy(), Pool(PAGES, PAGE_SIZE), runner, planner=planner)
        request = Request(PROMPT, limit, params)
        runner.add(engine.submit(len(PROMPT), limit), request)
        return cls(engine, runner, request)

    def iterate(self, chooser: Enumerator) -> Run:
        """Return the run after one iteration; slots whose KV is not committed are made unreadable in it."""
        drafters = [draft.model for draft in self.runner.drafting.models.values()]
        shared = (self.engine.table, self.runner.model, self.engine.planner, *drafters)
        after = copy.deepcopy(self, {id(each): each for each in shared})
        # A copy of a view is an array of its own: the columns are lines of one array again.
        after.engine.columns = dict(zip(after.engine.columns, after.engine._lines, strict=True))
        after.runner.operators.chooser = chooser
        after.engine.iterate()
        stale = torch.ones(PAGES * PAGE_SIZE, dtype=torch.bool)
        stale[after.committed()] = False
        after.runner.cache.tokens[stale] = STALE
        return after

    def committed(self) -> torch.Tensor:
        """List the slots of committed KV in the order of positions."""
        live = self.engine.live.tolist()
        if not live:
            return torch.zeros(0, dtype=torch.int64)
        return self.runner.allocator.slots(0, 0, int(self.engine.columns["kv"][live[0]]))

    def drafted(self, name: str) -> tuple[object, ...]:
        """List what the cache of a draft model has committed."""
        live = self.engine.live.tolist()
        columns = {
            column: int(values[slot]) for column, values in self.engine.columns.items() for slot in live
        }
        if not live or columns["state"] < self.engine.table.codes[self.engine.table.start.name]:
            return ()
        count = columns["kv"] - evaluate(self.engine.table.models[name].behind, columns)
        slots = self.runner.allocator.slots(0, 0, count).tolist()
        return tuple(self.runner.drafting.models[name].cache.rows[slot] for slot in slots)

    def place(self) -> tuple[object, ...]:
        """Describe all that the further law depends on: text, columns, carries and committed KV."""
        live = self.engine.live.tolist()
        columns = tuple(int(values[slot]) for values in self.engine.columns.values() for slot in live)
        slots, cache, carries = self.committed(), self.runner.cache, self.runner.carries
        held = [
            *carries.tokens.values(),
            *(law.numpy() for tensors in carries.wide.values() for law in tensors.values()),
        ]
        held += [tree.tokens.numpy() for trees in carries.trees.values() for tree in trees.values()]
        held += [tree.parents.numpy() for trees in carries.trees.values() for tree in trees.values()]
        kv = tuple(values[slots].numpy().tobytes() for values in (cache.tokens, cache.positions, cache.gates))
        carried = tuple(values.tobytes() for values in held)
        drafted = tuple(self.drafted(name) for name in self.engine.table.models)
        return tuple(self.request.output), columns, carried, kv, drafted, self.engine.iterations


def output_law(start: Run) -> dict[Tokens, float]:
    """Return the law of the output: outcomes are enumerated an iteration at a time, and equal places merged."""
    law: dict[Tokens, float] = {}
    level = {start.place(): (1.0, start)}
    while level:
        deeper: dict[tuple[object, ...], tuple[float, Run]] = {}
        for mass, run in level.values():
            for after, chance in enumerate_outcomes(run.iterate):
                if not after.engine.has_work:
                    tokens = tuple(after.request.output)
                    law[tokens] = law.get(tokens, 0.0) + mass * chance
                    continue
                known, first = deeper.get(after.place(), (0.0, after))
                deeper[after.place()] = known + mass * chance, first
        level = deeper
    return law


def target_law(model: ToyModel, params: SamplingParams, limit: int) -> dict[Tokens, float]:
    """Return the joint law of the first tokens under plain decoding, from the definition."""
    joint = {}
    for tokens in itertools.product(range(VOCABULARY), repeat=limit):
        mass = 1.0
        for at, token in enumerate(tokens):
            logits = model.after((*PROMPT, *tokens[:at]))
            mass *= law_plain(logits, params)[token] if mass else 0.0
        joint[tokens] = mass
    return joint


def distance(
    table: Table,
    params: SamplingParams,
    limit: int,
    support: int = 2,
    seed: int = 0,
    **more: Any,  # noqa: ANN401 -- passed on
) -> float:
    """Return the largest difference between the output law of a table and the target's; `seed` draws the target."""
    model = ToyModel(VOCABULARY, support, seed)
    found = output_law(Run.begin(table, params, limit, model=model, **more))
    expected = target_law(model, params, limit)
    assert set(found) <= set(expected), "tokens were emitted beyond the limit"
    return max(abs(found.get(tokens, 0.0) - mass) for tokens, mass in expected.items())
