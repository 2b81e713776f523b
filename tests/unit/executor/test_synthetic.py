"""Synthetic acceptance: counts have the law that is given, whatever the model says, in every runner alike."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from shipped_specs import operators, sizes
from typer.testing import CliRunner

from fsm_spec.checker.chances import parse_chances
from fsm_spec.cli import application
from fsm_spec.compile import compile_table
from fsm_spec.counts import most_drafts
from fsm_spec.errors import UserError
from fsm_spec.executor.device.place import CpuPlace
from fsm_spec.executor.device.resident import Resident
from fsm_spec.executor.generate import Options, Session, trace_header
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.executor.request import Controls
from fsm_spec.executor.synthetic import synthetic_of
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.kernels.tree import NO_NODE, Tree
from fsm_spec.kernels.walk import path_of
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool
from fsm_spec.replay import replay_records
from fsm_spec.trace import TraceWriter

# Chains by match, rejection with laws, and rank; trees over marginals and by level; masks by three rules; both.
SPECS_TRIED = (
    *("isd", "draft_lm", "isd_topk", "uno_tree", "eagle3", "sdar", "sdar_entropy", "fast_dllm"),
    "linear_spec_threshold",
)


def ran(spec: str, rates: str, resident: Resident | None = None, tokens: int = 30) -> list[dict[str, Any]]:
    """Run two requests, one of which samples, and return the records of the trace; they are replayed first."""
    loaded = load(spec)
    table = compile_table(loaded.spec, sizes(spec, 4))
    model = tiny_model(vocab=48, hidden=32, heads=2, kv_heads=1)
    masks = rates if most_drafts(table, "unmask") else None
    drafts = rates if most_drafts(table, "accept") else None
    synthetic = synthetic_of(drafts, masks, table)
    pool, policy = Pool(80, 4), Policy(max_running=2)
    records: list[dict[str, Any]] = []
    session = Session(
        table,
        model,
        pool=pool,
        policy=policy,
        trace=TraceWriter(records, trace_header(table, policy, pool, loaded.text, synthetic)),
        drafters=random_drafters(table, model),
        resident=resident,
        synthetic=synthetic,
    )
    source = random.Random(3)
    for number in range(2):
        prompt = [source.randrange(1, 46) for _ in range(5 + number)]
        session.add(prompt, Options(tokens, SamplingParams(0.9 * number), seed=number + 1))
    session.run()
    replay_records(enumerate(records, 1))
    return records


def judgements(records: list[dict[str, Any]], spec: str) -> Iterator[tuple[str, int]]:
    """Yield what each operator that judges drafts or fills masks has found, with its name."""
    table = compile_table(load(spec).spec, sizes(spec, 4))
    plans = {state.name: table.forwards.get(state.forward or "") for state in table.states}
    for record in records:
        plan = plans.get(record.get("event", ""))
        for operator in plan.operators if plan is not None else ():
            for count in operator.counts:
                if operator.op in ("accept", "walk", "unmask"):
                    yield operator.op, record["args"][count.name]


@pytest.mark.parametrize("spec", SPECS_TRIED)
def test_all_or_none_are_accepted_as_told(spec: str) -> None:
    """A chance of 1 accepts all drafts and fills all masks in one pass; one of 0 none, and the surest mask alone."""
    most = [ran(spec, f"geometric:{chance}") for chance in (0, 1)]
    rounds = [len([record for record in records if "event" in record]) for records in most]
    assert rounds[0] > rounds[1]
    for op in {key.partition(":")[0] for key in operators(spec)} & {"accept", "walk", "unmask"}:
        none, every = ({count for by, count in judgements(records, spec) if by == op} for records in most)
        none, every = (every, none) if op == "unmask" else (none, every)
        assert {0} == none
        assert max(every) > 0


@pytest.mark.parametrize("spec", SPECS_TRIED)
def test_all_runners_draw_the_same(spec: str) -> None:
    """The records of the CPU's own runner are those of the resident one, with and without graphs."""
    expected = ran(spec, "geometric:0.6", tokens=14)
    assert expected == ran(spec, "geometric:0.6", Resident(CpuPlace()), tokens=14)
    assert expected == ran(
        spec, "geometric:0.6", Resident(CpuPlace(graphs=True), require_graphs=True), tokens=14
    )


def test_counts_have_the_given_law() -> None:
    """Counts of some hundred judgements of 3 drafts lie about the chances, position by position."""
    rates = "0.9,0.5,0.2"
    found = Counter(count for _, count in judgements(ran("isd", rates, tokens=290), "isd"))
    total = sum(found.values())
    assert total > 150
    for count, chance in enumerate(parse_chances(rates).law(3)):
        spread = np.sqrt(float(chance) * (1 - float(chance)) / total)
        assert abs(found[count] / total - float(chance)) < 3 * spread, (count, found)


def test_a_path_ends_at_the_depth_or_at_the_deepest_node() -> None:
    """A walk of three edges through a tree of depth two has two; dead nodes are no way."""
    tree = Tree(
        tokens=torch.tensor([[5, 6, 7, 8, 9]]),
        parents=torch.tensor([[NO_NODE, 0, 0, 2, 3]]),
        depths=torch.tensor([[0, 1, 1, 2, 3]]),
        scores=torch.zeros(1, 5),
        count=torch.tensor([4]),
    )
    found = [path_of(tree, torch.tensor([edges]), 3)[0].tolist() for edges in range(4)]
    assert [[0, -1, -1, -1], [0, 1, -1, -1], [0, 2, 3, -1], [0, 2, 3, -1]] == found


def test_a_trace_says_by_which_chances() -> None:
    """Whoever reads a trace sees that its counts were not the model's; the header of another has no such key."""
    assert {"acceptance": "geometric:0.6"} == ran("isd", "geometric:0.6", tokens=4)[0]["synthetic"]
    table = compile_table(load("ar").spec)
    assert "synthetic" not in trace_header(table, Policy(), Pool(1, 1), "")


def test_a_grammar_is_refused() -> None:
    """Drafts stand that it does not allow."""
    table = compile_table(load("isd").spec)
    session = Session(
        table, tiny_model(), pool=Pool(20, 4), synthetic=synthetic_of("geometric:0.6", None, table)
    )
    with pytest.raises(UserError, match="a grammar cannot be kept"):
        session.add([1], Options(controls=Controls(grammar=object())))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "options", "said"),
    [
        (
            "ar",
            ["--synthetic-acceptance", "geometric:0.7"],
            "would have no effect, because ar judges 0 drafts",
        ),
        (
            "isd",
            ["--synthetic-acceptance", "0.7"],
            "gives 1 rate, but isd judges 3 drafts a round; give 3 rates",
        ),
        ("isd", ["--synthetic-acceptance", "all:0.7"], 'unknown form "all"; write 0.8,0.7,0.6'),
        (
            "isd",
            ["--synthetic-unmasking", "geometric:1"],
            "because isd fills no masks by confidence; leave it out",
        ),
        ("sdar", ["--synthetic-unmasking", "0.5"], "gives 1 rate, but up to"),
        ("isd", ["--set", "n=3", "--synthetic-acceptance", "2"], "lies outside 0 to 1"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_model_loads(spec: str, options: list[str], said: str) -> None:
    """One sentence names the option, both numbers and what to write."""
    found = CliRunner().invoke(application(), ["generate", spec, "--prompt", "a", *options])
    assert isinstance(found.exception, UserError | SystemExit)
    assert said in (found.output + str(found.exception)).replace("\n", " ")
