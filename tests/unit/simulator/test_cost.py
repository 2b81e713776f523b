"""The roofline: sanity against measurements, and ceilings that always bind."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.errors import UserError
from fsm_spec.simulator.cost import CostModel, Host, Work
from fsm_spec.simulator.hardware import Efficiency, hardware_names, load_hardware
from fsm_spec.simulator.model import load_model

LLAMA = load_model("llama-3.1-8b")
FIELDS = (
    "requests",
    "rows",
    "logits_rows",
    "adapter_rows",
    "context_tokens",
    "attention_pairs",
    "sampled_rows",
)
WORKS = st.builds(
    Work,
    requests=st.integers(0, 512),
    rows=st.integers(1, 20_000),
    logits_rows=st.integers(0, 5_000),
    adapter_rows=st.integers(0, 5_000),
    context_tokens=st.integers(0, 5_000_000),
    attention_pairs=st.integers(0, 2_000_000_000),
    sampled_rows=st.integers(0, 5_000),
)
MODELS = st.sampled_from(
    [
        CostModel(LLAMA, load_hardware(name), dtype, tensor_parallel=tp, adapter_rank=128)
        for name in hardware_names()
        for dtype in ("bf16", "fp8", "int4")
        for tp in (1, 4)
        if dtype != "fp8" or load_hardware(name).fp8_tflops
    ]
)


def decode(rows: int, context: int, requests: int = 1) -> Work:
    """Return the work of a decode or verify step of equal requests."""
    total = rows * requests
    return Work(requests, total, total, 0, requests * context, total * context, total)


def test_one_row_on_h100_takes_what_was_measured() -> None:
    """Decode of an 8B model stays near the measured 6.5 ms, and rows of a block are almost free."""
    cost = CostModel(LLAMA, load_hardware("h100"))
    one, three = (cost.launch_ns(decode(rows, 2048)) / 1e6 for rows in (1, 3))
    assert 6.4 <= one <= 7.0
    assert one <= three <= 1.07 * one


def test_kernel_sum_on_rtx4090_is_near_its_tables() -> None:
    """One row at 1,024 tokens: LLMServingSim's kernel tables add to 16.8 ms."""
    cost = CostModel(LLAMA, load_hardware("rtx4090"))
    assert cost.device_ns(decode(1, 1024)) / 1e6 == pytest.approx(16.8, rel=0.06)


def test_prefill_is_bound_by_compute() -> None:
    """2,048 prompt tokens on H100: two operations a weight and row at 84 % of the peak, and little else."""
    cost = CostModel(LLAMA, load_hardware("h100"))
    report = cost.explain(Work(1, 2048, 1, 0, 0, 2048 * 2049 // 2, 1))
    assert report.binding == "compute"
    assert report.parts[0].ns / 1e6 == pytest.approx(34.4, rel=0.01)
    assert sum(part.ns for part in report.parts) == pytest.approx(
        report.device_ns - cost.host.replay_ns, abs=1
    )


@settings(max_examples=150, deadline=None)
@given(MODELS, WORKS)
def test_no_launch_beats_the_ceilings(cost: CostModel, work: Work) -> None:
    """A launch needs at least its operations at the peak and its bytes at full bandwidth."""
    peak = cost.hardware.bf16_tflops * 1e12 * cost.tensor_parallel
    fast = (cost.hardware.fp8_tflops or 0.0) * 1e12 * cost.tensor_parallel if cost.dtype == "fp8" else peak
    shape = cost.model
    width = shape.num_attention_heads * shape.head_dim
    attention = 4 * width * shape.num_hidden_layers * work.attention_pairs / peak
    seconds = 2 * shape.gemm_parameters * work.rows / fast + attention
    seconds += 2 * shape.head_parameters * work.logits_rows / peak
    moved = shape.gemm_parameters * {"bf16": 2, "fp8": 1, "int4": 0.5}[cost.dtype]
    moved += work.context_tokens * shape.kv_bytes()
    bandwidth = cost.hardware.hbm_gb_s * 1e9 * cost.tensor_parallel
    device = cost.device_ns(work)
    assert device >= 1e9 * max(seconds, moved / bandwidth) * (1 - 1e-9)
    assert device >= cost.ceiling_ns(work)
    ideal = replace(cost, efficiency=Efficiency.ideal(), host=Host(0, 0, 0))
    assert device >= ideal.device_ns(work)


@settings(max_examples=150, deadline=None)
@given(MODELS, WORKS, st.sampled_from(FIELDS), st.integers(1, 100_000))
def test_more_work_is_never_faster(cost: CostModel, work: Work, field: str, more: int) -> None:
    """The cost is monotone in each count, for overlapped and serial hosts."""
    larger = replace(work, **{field: getattr(work, field) + more})
    assert cost.launch_ns(larger) >= cost.launch_ns(work)
    serial = replace(cost, host=replace(cost.host, overlapped=False))
    assert serial.launch_ns(larger) >= serial.launch_ns(work)
    assert serial.launch_ns(work) == cost.device_ns(work) + cost.host_ns(work.requests)


def test_host_hides_behind_the_device_or_adds() -> None:
    """A small model on a fast accelerator is bound by the overlapped host; a step pays the host once."""
    small = CostModel(load_model("smollm2-135m"), load_hardware("b200"))
    work = decode(1, 64)
    slow_host = replace(small, host=Host(step_ns=5_000_000))
    assert slow_host.launch_ns(work) == 5_000_000 + 4_400
    assert slow_host.explain(work).binding == "host"
    serial = replace(small, host=Host(overlapped=False))
    assert serial.step_ns([work, work]) == 2 * small.device_ns(work) + small.host_ns(1)
    assert small.step_ns([]) == 0
    assert small.launch_ns(Work()) == 0
    assert small.ceiling_ns(Work()) == 0


def test_adapter_split_and_formats_change_the_price() -> None:
    """Gated rows, tensor parallel, fp8 and int4 each change the time in the right direction."""
    base = CostModel(LLAMA, load_hardware("h100"))
    work = replace(decode(4, 1024), adapter_rows=3)
    assert replace(base, adapter_rank=128).launch_ns(work) > base.launch_ns(work)
    assert replace(base, tensor_parallel=4).device_ns(work) < base.device_ns(work)
    assert replace(base, dtype="fp8").device_ns(work) < base.device_ns(work)
    assert replace(base, dtype="int4").device_ns(work) < replace(base, dtype="fp8").device_ns(work)
    assert replace(base, kv_dtype="fp8").device_ns(decode(1, 60_000)) < base.device_ns(decode(1, 60_000))
    assert (Work(1, 2) + Work(3, 4, sampled_rows=5)) == Work(4, 6, sampled_rows=5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "fp8"}, "a100 has no fp8 units"),
        ({"dtype": "fp7"}, "--dtype fp7 is unknown; choose one of bf16, fp8, int4"),
        ({"tensor_parallel": 3}, "--tp 3 does not divide the 32 attention heads"),
        ({"adapter_rank": -1}, "adapter rank -1 is negative"),
    ],
)
def test_bad_options_get_a_sentence(options: dict[str, object], words: str) -> None:
    """What the accelerator or the model cannot do is refused before any work."""
    with pytest.raises(UserError, match=words):
        CostModel(LLAMA, load_hardware("a100"), **options)  # type: ignore[arg-type]
