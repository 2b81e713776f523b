"""The step over arrays and the scalar oracle agree, event after event, on specs nobody wrote.

Broken behaviour: a request in a batch would move otherwise than the table says, on numpy or on torch.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.compile import compile_table
from fsm_spec.language.expression import evaluate, parse
from fsm_spec.language.spec import Spec
from fsm_spec.load import load
from fsm_spec.oracle import holding, oracle
from fsm_spec.simulator.places import AT, EMITTED, EMITTED_NOW, KV, PROMPT, TRANSITION
from fsm_spec.simulator.table_code import TableCode
from fsm_spec.step import choose, constants, step
from fsm_spec.table import NO_STOP, Table

sys.path.insert(0, str(Path(__file__).parent))
from random_specs import abstract_specs, decode_specs

SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))


def namespaces() -> list[tuple[Any, Any]]:
    """Give each array namespace with its way to make an int32 column."""
    torch = pytest.importorskip("torch")
    return [
        (np, lambda values: np.array(values, np.int32)),
        (torch, lambda values: torch.tensor(values, dtype=torch.int32)),
    ]


def random_args(
    table: Table, columns: dict[str, int], event: str, rng: random.Random
) -> dict[str, int] | None:
    """Draw arguments within the ranges of an event; None where no value is allowed."""
    args: dict[str, int] = {}
    for arg in table.events[event].args:
        low, high = evaluate(arg.low, columns), evaluate(arg.high, columns)
        if low > high:
            return None
        args[arg.name] = rng.randint(low, high)
    if table.events[event].emits:
        args["stop"] = rng.choice([0, 1, 2, NO_STOP, NO_STOP, NO_STOP])
    return args


def new_request(table: Table, rng: random.Random) -> dict[str, int]:
    """Give the columns of a fresh request of any table."""
    if table.contract is None:
        return {**dict.fromkeys(table.column_names, 0), "state": table.codes[table.start.name]}
    return table.new_request(rng.randint(1, 6), rng.randint(0, 12))


def walk_batch(table: Table, seed: int, requests: int = 4, events: int = 12) -> int:
    """Drive a batch by random events, comparing after each; give the number of comparisons."""
    rng = random.Random(seed)
    batch = [new_request(table, rng) for _ in range(requests)]
    compared = 0
    for _ in range(events):
        event = rng.choice(list(table.events))
        plan = table.events[event]
        if event in ("abort", "preempt", "halt") and rng.random() < 0.8:
            continue
        handled = plan.states + plan.ignored
        members = [i for i, columns in enumerate(batch) if table.states[columns["state"]].name in handled]
        drawn = {i: random_args(table, batch[i], event, rng) for i in members}
        members = [i for i in members if drawn[i] is not None]
        expected = [oracle(table, batch[i], event, drawn[i] or {}) for i in members]
        for xp, column in namespaces():
            columns = {name: column([batch[i][name] for i in members]) for name in table.column_names}
            names = list(drawn[members[0]] or {}) if members else [a.name for a in plan.args] + ["stop"]
            args = {name: column([(drawn[i] or {})[name] for i in members]) for name in names}
            done = step(table, columns, event, args, xp)
            rows = choose(table, columns, event, args, xp)
            for name in table.column_names:
                assert done.columns[name].dtype == xp.int32
                assert [outcome.columns[name] for outcome in expected] == done.columns[name].tolist()
            assert [outcome.transition for outcome in expected] == done.transition.tolist()
            assert [outcome.transition // 2 for outcome in expected] == rows.tolist()
            assert [outcome.emitted for outcome in expected] == done.emitted.tolist()
            before = [holding(table, batch[i]) for i in members]
            after = [holding(table, outcome.columns) for outcome in expected]
            for kind, change in done.slot_changes().items():
                assert [
                    new[kind] - old[kind] for old, new in zip(before, after, strict=True)
                ] == change.tolist()
        for i, outcome in zip(members, expected, strict=True):
            batch[i] = outcome.columns
        compared += len(members)
    return compared


@settings(max_examples=25, deadline=None, derandomize=True)
@given(decode_specs(), st.integers(0, 2**16))
def test_random_decode_specs_step_as_the_oracle_says(spec: Spec, seed: int) -> None:
    """Life cycle, rounds, cuts at stop and limit, and all columns agree on drawn decode specs."""
    walk_batch(compile_table(spec), seed)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(abstract_specs(), st.integers(0, 2**16))
def test_random_abstract_specs_step_as_the_oracle_says(spec: Spec, seed: int) -> None:
    """Declared events with arguments over columns, and ignored pairs, agree on drawn abstract models."""
    walk_batch(compile_table(spec), seed)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
@pytest.mark.parametrize("check", [False, True], ids=["default", "check"])
def test_shipped_specs_step_as_the_oracle_says(path: Path, *, check: bool) -> None:
    """Every shipped spec agrees over long random walks, for its default and its small parameters."""
    table = compile_table(load(path).spec, check=check)
    assert sum(walk_batch(table, seed, requests=20, events=80) for seed in range(2)) > 100


@settings(max_examples=15, deadline=None, derandomize=True)
@given(decode_specs(), st.integers(0, 2**16))
def test_code_for_compiled_runs_steps_as_the_table_does(spec: Spec, seed: int) -> None:
    """The one function of a table that runs call, uncompiled here, moves cells as `step` moves columns."""
    table, rng = compile_table(spec), random.Random(seed)
    code = TableCode(table, {"more": [parse("prompt + emitted * 2"), parse("max(kv, 3)")]})
    scope: dict[str, Any] = {name: np.int64(value) for name, value in constants(code.text).items()}
    scope |= {"where": lambda condition, yes, no: yes if condition else no, "minimum": min, "maximum": max}
    exec(code.text, scope)  # noqa: S102 - it is what a compiled run compiles
    for event in code.events:
        batch = [new_request(table, rng) for _ in range(6)]
        for columns in batch:
            columns |= {name: rng.randint(0, 5) for name in table.column_names if name != "state"}
            columns |= {"state": table.codes[rng.choice(table.events[event].states)], "limit": 9}
        args = {arg.name: rng.randint(0, 2) for arg in table.events[event].args}
        cells = np.zeros((code.rows, len(batch)), np.int64)
        cells[AT] = np.arange(len(batch))
        for name in table.column_names:
            cells[code.column(name)] = [columns[name] for columns in batch]
        for name, value in args.items():
            cells[code.argument(event, name)] = value
        columns = {name: cells[code.column(name)].astype(np.int32) for name in table.column_names}
        arrays = {name: np.full(len(batch), value, np.int32) for name, value in args.items()}
        arrays["stop"] = np.full(len(batch), NO_STOP, np.int32)
        done = step(table, columns, event, arrays, np)
        scope["run"](code.what[event], 0, len(batch), cells)
        for name in table.column_names:
            assert done.columns[name].tolist() == cells[code.column(name)].tolist()
        assert done.transition.tolist() == cells[TRANSITION].tolist()
        assert done.emitted.tolist() == cells[EMITTED_NOW].tolist()
        scope["run"](code.what["more"], 0, len(batch), cells)
        assert (cells[PROMPT] + 2 * cells[EMITTED]).tolist() == cells[code.results].tolist()
        assert np.maximum(cells[KV], 3).tolist() == cells[code.results + 1].tolist()


def test_an_empty_batch_steps_to_an_empty_batch() -> None:
    """A round without requests must not fail on shapes."""
    table = compile_table(load(SPECS[0]).spec)
    for xp, column in namespaces():
        columns = {name: column([]) for name in table.column_names}
        done = step(table, columns, table.start.name, {"stop": column([])}, xp)
        assert done.transition.tolist() == []
