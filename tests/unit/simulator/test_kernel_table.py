"""Measured kernel tables replace fitted curves: exact at their points, linear between, never below the ceilings."""

from pathlib import Path

import pytest
from kernel_tables import us_of, write

from fsm_spec.errors import UserError
from fsm_spec.simulator.cost import CostModel, Host, Work
from fsm_spec.simulator.hardware import load_hardware
from fsm_spec.simulator.kernel_table import FORWARD_KERNELS, LAYER_KERNELS, load_kernel_table
from fsm_spec.simulator.model import load_model

MODEL = load_model("smollm2-135m")


def test_measured_times_are_used_as_they_are(tmp_path: Path) -> None:
    """Points are exact, between them times are linear, and parts add up to the launch."""
    layers = MODEL.num_hidden_layers
    table = load_kernel_table(write(tmp_path), layers)
    cost = CostModel(MODEL, load_hardware("a100"), host=Host(replay_ns=0), table=table)
    rounds = Work(2, 2, 2, 0, 2 * 384, 2 * 385, 2)
    dense = (layers * sum(LAYER_KERNELS.values()) + len(FORWARD_KERNELS)) * 1002
    assert cost.device_ns(rounds) == pytest.approx(
        1e3 * (dense + 2 * 502 + layers * us_of(0, 0, 2, 384)), rel=1e-6
    )
    chunk = Work(1, 96, 1, 0, 64, 96 * 64 + 96 * 48, 1, 96, 64, 96 * 64 + 96 * 48)
    parts = {part.name: part.ns for part in cost.parts(chunk)}
    assert parts["attention"] == pytest.approx(1e3 * layers * us_of(96, 64, 0, 0), rel=1e-6)
    assert sum(parts.values()) == pytest.approx(cost.device_ns(chunk), abs=1)
    several = Work(2, 128, 2, 0, 0, 64 * 64, 2, 128, 0, 64 * 64)
    parts = {part.name: part.ns for part in cost.parts(several)}
    assert parts["prefill attention"] == pytest.approx(2e3 * layers * us_of(64, 0, 0, 0), rel=1e-6)
    assert cost.device_ns(rounds) >= cost.ceiling_ns(rounds)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("dense", "layer,tokens\n", ":1: the first line is not layer,tokens,time_us"),
        ("dense", "layer,tokens,time_us\nqkv_proj,1\n", ":2: is no line of"),
        ("dense", "layer,tokens,time_us\nqkv_proj,1,nan\n", ":2: is no line of"),
        ("dense", "layer,tokens,time_us\nqkv_proj,1,5\n", "lack the kernels layernorm"),
    ],
)
def test_broken_tables_get_a_sentence(tmp_path: Path, kind: str, text: str, words: str) -> None:
    """The file and the line are named."""
    prefix = write(tmp_path)
    Path(f"{prefix}_{kind}.csv").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        load_kernel_table(prefix, 2)
    with pytest.raises(UserError, match="cannot be read"):
        load_kernel_table(str(tmp_path / "none"), 2)
