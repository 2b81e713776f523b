"""The step of a table as a custom op: what it gives on a CPU, and that its kernels compile where no GPU is.

`tests/kernels/test_table_step.py` holds the kernels to the step.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from shipped_specs import SPECS

from fsm_spec.compile import compile_table
from fsm_spec.executor.device.table_kernel import EventCode, TableStep
from fsm_spec.step import choose, step
from fsm_spec.table import NO_STOP, Table


@pytest.fixture(scope="module")
def table() -> Table:
    """Return the shipped table with the most columns."""
    return max((compile_table(spec) for spec in SPECS.values()), key=lambda one: len(one.column_names))


def test_op_on_a_cpu_is_the_step(table: Table) -> None:
    """Columns that an event leaves alone stay the tensors they were."""
    event = next(event for event, plan in table.events.items() if plan.emits)
    state = table.codes[table.events[event].states[0]]
    columns = {name: torch.full((3,), 2, dtype=torch.int32) for name in table.column_names}
    columns |= {"state": torch.full((3,), state, dtype=torch.int32), "limit": columns["limit"] * 9}
    args = {arg.name: torch.tensor([0, 1, 1], dtype=torch.int32) for arg in table.events[event].args}
    args["stop"] = torch.tensor([NO_STOP, 0, NO_STOP], dtype=torch.int32)
    code = TableStep(table, event)
    assert torch.equal(choose(table, columns, event, args, torch), code.choose(columns, args))
    expected, found = step(table, columns, event, args, torch), code.apply(columns, args)
    assert torch.equal(expected.transition, found.transition)
    assert torch.equal(expected.emitted, found.emitted)
    for name, values in expected.columns.items():
        assert torch.equal(values, found.columns[name])
        assert (values is columns[name]) == (found.columns[name] is columns[name])


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton has no package for this system")
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_kernels_compile(table: Table, target: str) -> None:
    """A generated kernel takes few registers, and no stack, on machines that no test runs on."""
    from fsm_spec.kernels.triton.launch import Specialisation  # noqa: PLC0415 -- where Triton is installed
    from fsm_spec.kernels.triton.resources import compile_for  # noqa: PLC0415

    event = max(table.events, key=lambda name: len(EventCode.applying(table, name).text))
    code = TableStep(table, event)
    for one in (code.rows, code.step):
        types = " ".join([*["*i32:16"] * len(one.reads), "*i32:16", "i32"])
        took = compile_for(Specialisation(event, one.kernel, types, {"BLOCK": 128}), target)
        assert (0, 0) == (took.stack, took.spills)
        assert took.registers <= 64
