"""The exact output law of whole runs: all random outcomes of engine and runner on a toy model, with probabilities.

What a toy row predicts depends on everything it sees, so the law also shows KV that should not be there.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from fsm_spec.budget import table_rate
from fsm_spec.compile import compile_table
from fsm_spec.engine import Engine
from fsm_spec.executor.cache import PageAllocator
from fsm_spec.executor.operators import Operators, Reading
from fsm_spec.executor.request import Request
from fsm_spec.executor.runner import Runner
from fsm_spec.executor.toy import ToyCache, ToyModel
from fsm_spec.executor.toy_drafters import toy_drafters
from fsm_spec.expression import evaluate
from fsm_spec.kernels.enumeration import Enumerator, enumerate_outcomes
from fsm_spec.kernels.law import SamplingParams, law_plain
from fsm_spec.kernels.operators import OPERATORS
from fsm_spec.load import load, shipped
from fsm_spec.piece import parse_piece
from fsm_spec.policy import Plan, Policy, Pool
from fsm_spec.table import Table

VOCABULARY, MASK = 4, 3
PROMPT = (1, 2)
EXACT = 1e-9
SAMPLED = [SamplingParams(1.0), SamplingParams(0.7, 3, 0.9), SamplingParams(1.5, 0, 0.8, 0.3)]
PAGES, PAGE_SIZE = 12, 4
# What verify budgets weigh: a cost that lets confidences decide, with a dip behind the first draft.
RATE = table_rate([1, 2, 3], [1.0, 0.6, 0.5])
# The token of a slot that nobody may read.
STALE = -7
Tables = Callable[..., Table]
Tokens = tuple[int, ...]
Pair = tuple[torch.Tensor, torch.Tensor]


def claiming(claim: str) -> list[str]:
    """List the shipped specs that claim so."""
    specs = {name: load(path).spec for name, path in shipped().items()}
    return sorted(name for name, spec in specs.items() if spec.lossless and spec.lossless.claim == claim)


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


def distance(table: Table, params: SamplingParams, limit: int, support: int = 2, **more: Any) -> float:  # noqa: ANN401 -- passed on
    """Return the largest difference between the output law of a table and the target's."""
    model = ToyModel(VOCABULARY, support)
    found = output_law(Run.begin(table, params, limit, model=model, **more))
    expected = target_law(model, params, limit)
    assert set(found) <= set(expected), "tokens were emitted beyond the limit"
    return max(abs(found.get(tokens, 0.0) - mass) for tokens, mass in expected.items())


@pytest.mark.parametrize("params", SAMPLED, ids=str)
@pytest.mark.parametrize("spec", claiming("sampling"))
def test_output_law_is_the_targets(spec: str, params: SamplingParams, table_of: Tables) -> None:
    """What a spec claims: whatever it drafts, its text is distributed as the target's own."""
    assert distance(table_of(spec, check=True), params, 4) < EXACT


@pytest.mark.parametrize("spec", claiming("sampling"))
def test_output_law_survives_preemption(spec: str, table_of: Tables) -> None:
    """A request that lost its KV and drafts goes on by the same law."""
    planner = Preempting()
    assert distance(table_of(spec, check=True), SAMPLED[0], 4, planner=planner) < EXACT
    assert planner.preempted > 0


@pytest.mark.parametrize("spec", claiming("sampling"))
def test_output_law_over_wider_laws(spec: str, table_of: Tables) -> None:
    """Three of four tokens are possible everywhere, so that drafts and target overlap in part."""
    assert distance(table_of(spec, check=True), SAMPLED[0], 3, support=3) < EXACT


def judging(rule: str) -> list[str]:
    """List the specs that judge drafts by a rule."""
    found = []
    for name in claiming("sampling"):
        table = compile_table(load(name).spec, check=True)
        operators = [operator for plan in table.forwards.values() for operator in plan.operators]
        if any(operator.op == "accept" and operator.rule == rule for operator in operators):
            found.append(name)
    return found


@pytest.mark.parametrize("spec", [*judging("match"), *judging("rejection")])
def test_accepting_always_is_refuted(spec: str, table_of: Tables) -> None:
    """An operator that accepts every draft gives the drafts' law, and the enumeration sees it."""

    def always(
        logits: torch.Tensor, _: torch.Tensor, count: torch.Tensor, *__: object, **___: object
    ) -> Pair:
        return count, logits[torch.arange(len(count)), count].argmax(-1)

    readings = {key: always for key in OPERATORS if key.startswith("accept")}
    assert distance(table_of(spec, check=True), SAMPLED[0], 4, readings=readings) > 0.01


@pytest.mark.parametrize("spec", judging("match"))
def test_judging_by_another_rule_is_refuted(spec: str, table_of: Tables) -> None:
    """A table whose acceptance is greedy has another law at a temperature: the executor does what the table says."""
    table = table_of(spec, check=True)
    forwards = {}
    for name, plan in table.forwards.items():
        operators = tuple(
            replace(operator, key="accept:greedy", rule="greedy") if operator.op == "accept" else operator
            for operator in plan.operators
        )
        forwards[name] = replace(plan, operators=operators)
    assert distance(replace(table, forwards=forwards, cache={}), SAMPLED[0], 4) > 0.01


def accepting_row(table: Table) -> int:
    """Find the last row that emits drafts and the token after them."""
    return [row.index for row in table.rows if not row.built_in and len(row.emit) > 1][-1]


@pytest.mark.parametrize("spec", [*judging("match"), *judging("rejection")])
def test_emitting_the_wrong_tokens_is_refuted(spec: str, table_of: Tables) -> None:
    """One row that emits its drafts where the next token belongs: same lengths, another law."""
    table = table_of(spec, check=True)
    index = accepting_row(table)
    emit = table.rows[index].emit
    swapped = table.with_row(index, emit=(*emit[:-1], parse_piece("pending[0:1]")))
    assert distance(swapped, SAMPLED[0], 4) > 0.01


@pytest.mark.parametrize("spec", [*judging("match"), *judging("rejection")])
def test_carrying_the_wrong_token_is_refuted(spec: str, table_of: Tables) -> None:
    """One row that carries a stale pending token: the text is right at first, the KV behind it is not."""
    table = table_of(spec, check=True)
    index = accepting_row(table)
    carries = tuple(
        (name, (parse_piece("pending[0:1]"),) if name == "pending" else pieces)
        for name, pieces in table.rows[index].carries
    )
    assert distance(table.with_row(index, carries=carries), SAMPLED[0], 4) > 0.01
