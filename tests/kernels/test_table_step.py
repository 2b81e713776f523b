"""The kernels of a table's step against the step itself, over events nobody planned."""

from __future__ import annotations

import random

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_specs import decode_specs
from shipped_specs import SPECS

from fsm_spec.compile import compile_table
from fsm_spec.executor.device.table_kernel import TableStep
from fsm_spec.kernels.triton.integers import floor_divide, floor_modulo
from fsm_spec.language.spec import Spec
from fsm_spec.step import choose, step
from fsm_spec.table import NO_STOP, Table


def hold(table: Table, seed: int, events: list[str], n: int = 9) -> int:
    """Compare kernels with the step in random columns, of states that handle the event; give the comparisons."""
    source = random.Random(seed)
    for event in events:
        plan = table.events[event]
        handled = [table.codes[name] for name in (*plan.states, *plan.ignored)]
        columns = {
            name: torch.tensor([source.randrange(-3, 12) for _ in range(n)], dtype=torch.int32)
            for name in table.column_names
        }
        columns["state"] = torch.tensor([source.choice(handled) for _ in range(n)], dtype=torch.int32)
        args = {
            arg.name: torch.tensor([source.randrange(0, 6) for _ in range(n)], dtype=torch.int32)
            for arg in plan.args
        }
        stops = [source.choice([0, 1, 2, NO_STOP]) for _ in range(n)]
        args["stop"] = torch.tensor(stops, dtype=torch.int32)
        code = TableStep(table, event)
        taken = choose(table, columns, event, args, torch)
        rows = code.rows.run_kernel([{**columns, **args}[name] for name in code.rows.reads])
        assert [taken.tolist()] == rows.tolist(), code.rows.text
        done = step(table, columns, event, args, torch)
        found = code.step.run_kernel([{**columns, **args}[name] for name in code.step.reads])
        results = dict(zip(code.step.results, found.tolist(), strict=True))
        assert done.transition.tolist() == results.pop("=transition"), code.step.text
        assert done.emitted.tolist() == results.pop("=emitted")
        for name, values in done.columns.items():
            assert values.tolist() == results.get(name, columns[name].tolist()), code.step.text
    return len(events)


@pytest.mark.parametrize("name", SPECS)
def test_shipped_tables(name: str) -> None:
    """A kernel that means something else than the step would let the device drift from what was checked."""
    table = compile_table(SPECS[name])
    plain = () if name == "ar" else compile_table(SPECS["ar"]).events
    events = [event for event in table.events if event not in plain]
    assert hold(table, 1, events) == len(events)


@settings(derandomize=True, max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(decode_specs(), st.integers(0, 2**20))
def test_drawn_tables(spec: Spec, seed: int) -> None:
    """The emitter may write what no shipped spec needs."""
    table = compile_table(spec)
    hold(table, seed, list(table.events))


@triton.jit  # type: ignore[untyped-decorator]
def _divide(values, by, quotients, rests, N: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202, N803 -- a kernel
    each = tl.arange(0, N)
    value, divisor = tl.load(values + each), tl.load(by + each)
    tl.store(
        quotients + each, floor_divide(value, divisor) + floor_divide(value, -3) + floor_divide(7, divisor)
    )
    tl.store(rests + each, floor_modulo(value, divisor) + floor_modulo(value, 4))


def test_division_rounds_down() -> None:
    """C rounds towards zero; a spec's `//`, `%` and `ceil` of negative numbers round down."""
    pairs = [(value, by) for value in range(-8, 8) for by in (-3, -1, 2, 5)]
    values, by = torch.tensor(pairs, dtype=torch.int32).T.contiguous()
    quotients, rests = torch.empty_like(values), torch.empty_like(values)
    _divide[(1,)](values, by, quotients, rests, N=64)
    assert [value // by + value // -3 + 7 // by for value, by in pairs] == quotients.tolist()
    assert [value % by + value % 4 for value, by in pairs] == rests.tolist()
