"""What rounds launch on a GPU, seen without one: tensors as kernels read them, grids that fit, code that compiles."""

from __future__ import annotations

import random
from importlib.util import find_spec

import pytest
import torch
from recorded_launches import compile_launch, recorded_launches
from shipped_specs import sizes

from fsm_spec.compile import compile_table
from fsm_spec.executor.adapter import random_adapter
from fsm_spec.executor.device.place import CpuPlace
from fsm_spec.executor.device.resident import Resident
from fsm_spec.executor.generate import Options, Session
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool

# Gated rows, trees that are grown and walked by draws and by laws, blocks that are unmasked.
SPECS = ("ar", "isd_gated", "eagle3", "uno_tree", "sdar", "draft_lm")
# Arguments that come with their strides.
STRIDES_GIVEN = {
    ("append_rows", "key"),
    ("append_rows", "value"),
    ("attend_part", "query"),
    ("block_statistics", "logits"),
    ("sample_rows", "logits"),
}
# Of axes y and z; x takes 2^31 - 1.
MOST_OF_AN_AXIS = 65_535


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton has no package for this system")
@pytest.mark.parametrize("spec", SPECS)
def test_kernels_are_given_what_they_read(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that walks a column of a larger tensor as if it lay alone reads its neighbours: only a GPU showed it."""
    model = tiny_model(vocab=96, hidden=64, heads=4, kv_heads=2, dtype=torch.float32)
    model.adapter = random_adapter(model.config, torch.float32, seed=1)
    table = compile_table(load(spec).spec, sizes(spec))
    session = Session(
        table,
        model,
        pool=Pool(60, 16),
        policy=Policy(max_running=4),
        drafters=random_drafters(table, model),
        resident=Resident(CpuPlace(), fuse=False),
    )
    source = random.Random(0)
    for index in range(3):
        text = [source.randrange(1, 94) for _ in range(5 + 20 * index)]
        session.add(text, Options(4, SamplingParams(0.9, 20) if index == 1 else SamplingParams(), seed=index))
    with recorded_launches(monkeypatch) as found:
        session.run()
    assert {"resize_lines", "table_step", "read_ids", "attend_part"} <= {
        launch.kernel.fn.__name__ for launch in found.launches.values()
    }
    assert set() == found.strided - STRIDES_GIVEN
    assert max(max(grid[1:], default=1) for grid in found.grids) <= MOST_OF_AN_AXIS
    if spec == "ar":
        # All launches of all specs were compiled so once; of a kernel's forms, those in the report are each time.
        small = [
            each for each in found.launches.values() if each.kernel.fn.__name__ in ("table_step", "read_ids")
        ]
        assert {0} == {compile_launch(each, 90) for each in small}
