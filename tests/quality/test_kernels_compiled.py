"""The compile report of the kernels, read for each spec: what its forwards and operators launch compiles everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fsm_spec.compile import compile_table
from fsm_spec.kernels.triton.resources import digest_of_sources, forms
from fsm_spec.load import load, shipped
from fsm_spec.table import Table

RESULTS = Path(__file__).parents[2] / "bench" / "results" / "kernels.json"
TARGETS = {"sm_80", "sm_90", "sm_100", "gfx942"}
# Of every forward: input ids, norms, heads turned and kept, attention over pages, gates, pages and slots, emitted runs.
ALWAYS = {
    "read_ids",
    "norm_rows",
    "turn_lines",
    "attend_part",
    "merge_parts",
    "gate_columns",
    "resize_lines",
    "map_slots",
    "lay_piece",
}
# By operator, or operator and rule; what is not named is computed by torch on every device.
BY_OPERATOR = {
    "sample": {"sample_rows"},
    "accept": {"judge_rows", "end_requests"},
    "accept:always": {"sample_rows"},
    "unmask": {"propose_rows", "fill_blocks"},
    "grow": {"block_statistics", "best_of_blocks", "best_of_rows", "extend_pools"},
    "walk:match": {"sample_rows", "follow_picks"},
    "walk:residual": {"keep_laws", "try_children"},
    "capture": set(),
    "prune": set(),
    "lookup": set(),
    "budget": set(),
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Return the committed report."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def needed(table: Table) -> set[str]:
    """Name the kernels that a table's phases launch on a GPU."""
    names = set(ALWAYS)
    for plan in table.forwards.values():
        for op in plan.operators:
            names |= BY_OPERATOR[op.key if op.key in BY_OPERATOR else op.op]
    if table.gated:
        names |= {"shrink", "expand"}
    if any(row.keep_rows is not None or row.keep_stride is not None for row in table.rows):
        names.add("move_slots")
    return names


def test_report_is_of_these_kernels(found: dict[str, Any]) -> None:
    """A kernel that has changed since would be vouched for by an old report: run scripts/kernel_report."""
    assert digest_of_sources() == found["sources"]
    assert {line["form"] for line in found["forms"]} == {name for name, _ in forms()}


@pytest.mark.shows("kernels compiled")
@pytest.mark.parametrize("spec", sorted(shipped()))
def test_kernels_of_a_spec_compile(spec: str, found: dict[str, Any]) -> None:
    """A kernel that a target refuses, or that spills there, would be met on a GPU first."""
    for name in needed(compile_table(load(spec).spec)):
        lines = [line for line in found["forms"] if line["form"].partition(":")[0] == name]
        assert TARGETS == {line["target"] for line in lines}, name
        for line in lines:
            assert not line["error"], line
            assert 0 == line["took"]["stack"] == line["took"]["spills"], line
