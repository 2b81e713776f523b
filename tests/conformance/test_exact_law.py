"""The exact output law of every spec that claims sampling: all random outcomes of engine and runner on a toy model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from exact_run import Preempting, distance
from hypothesis import given, settings
from hypothesis import strategies as st
from shipped_specs import SAMPLING, operators

from fsm_spec.kernels.law import SamplingParams
from fsm_spec.kernels.operators import OPERATORS
from fsm_spec.language.piece import parse_piece
from fsm_spec.table import Table

EXACT = 1e-9
SAMPLED = [SamplingParams(1.0), SamplingParams(0.7, 3, 0.9), SamplingParams(1.5, 0, 0.8, 0.3)]
Tables = Callable[..., Table]
Pair = tuple[torch.Tensor, torch.Tensor]


def tokens(spec: str) -> int:
    """Say how many tokens are compared: where masks are filled in passes, every pass draws all of them anew."""
    return 3 if any(op.startswith("unmask:") for op in operators(spec)) else 4


@pytest.mark.shows("exact law")
@pytest.mark.parametrize("params", SAMPLED, ids=str)
@pytest.mark.parametrize("spec", SAMPLING)
def test_output_law_is_the_targets(spec: str, params: SamplingParams, table_of: Tables) -> None:
    """What a spec claims: whatever it drafts, its text is distributed as the target's own."""
    assert distance(table_of(spec, check=True), params, tokens(spec)) < EXACT


@pytest.mark.shows("exact law")
@pytest.mark.parametrize("spec", SAMPLING)
def test_output_law_survives_preemption(spec: str, table_of: Tables) -> None:
    """A request that lost its KV and drafts goes on by the same law."""
    planner = Preempting()
    assert distance(table_of(spec, check=True), SAMPLED[0], tokens(spec), planner=planner) < EXACT
    assert planner.preempted > 0


@pytest.mark.shows("exact law")
@pytest.mark.parametrize("spec", SAMPLING)
@settings(max_examples=2, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_output_law_over_drawn_laws(spec: str, table_of: Tables, seed: int) -> None:
    """Targets that nobody chose; three of four tokens are possible, so that drafts and target overlap in part."""
    found = distance(table_of(spec, check=True), SAMPLED[0], tokens(spec) - 1, support=3, seed=seed)
    assert found < EXACT


# Where a parameter chooses a tree, its small value does, and no chain is judged.
CHAINS = [spec for spec in SAMPLING if "walk:match" not in operators(spec)]
MATCHED = [spec for spec in CHAINS if "accept:match" in operators(spec)]
REJECTED = [spec for spec in CHAINS if "accept:rejection" in operators(spec)]


@pytest.mark.parametrize("spec", [*MATCHED, *REJECTED])
def test_accepting_always_is_refuted(spec: str, table_of: Tables) -> None:
    """An operator that accepts every draft gives the drafts' law, and the enumeration sees it."""

    def always(
        logits: torch.Tensor, _: torch.Tensor, count: torch.Tensor, *__: object, **___: object
    ) -> Pair:
        # Of the live rows, request after request, the one behind a request's last draft.
        return count, logits[(count + 1).cumsum(0) - 1].argmax(-1)

    readings = {key: always for key in OPERATORS if key.startswith("accept")}
    assert distance(table_of(spec, check=True), SAMPLED[0], tokens(spec), readings=readings) > 0.001


@pytest.mark.parametrize("spec", MATCHED)
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
    assert distance(replace(table, forwards=forwards, cache={}), SAMPLED[0], tokens(spec)) > 0.001


def accepting_row(table: Table) -> int:
    """Find the last row that emits drafts and the token after them."""
    return [row.index for row in table.rows if not row.built_in and len(row.emit) > 1][-1]


@pytest.mark.parametrize("spec", [*MATCHED, *REJECTED])
def test_emitting_the_wrong_tokens_is_refuted(spec: str, table_of: Tables) -> None:
    """One row that emits its drafts where the next token belongs: same lengths, another law."""
    table = table_of(spec, check=True)
    index = accepting_row(table)
    emit = table.rows[index].emit
    swapped = table.with_row(index, emit=(*emit[:-1], parse_piece("pending[0:1]")))
    assert distance(swapped, SAMPLED[0], tokens(spec)) > 0.001


@pytest.mark.parametrize("spec", [*MATCHED, *REJECTED])
def test_carrying_the_wrong_token_is_refuted(spec: str, table_of: Tables) -> None:
    """One row that carries a stale pending token: the text is right at first, the KV behind it is not."""
    table = table_of(spec, check=True)
    index = accepting_row(table)
    carries = tuple(
        (name, (parse_piece("pending[0:1]"),) if name == "pending" else pieces)
        for name, pieces in table.rows[index].carries
    )
    assert distance(table.with_row(index, carries=carries), SAMPLED[0], tokens(spec)) > 0.001
