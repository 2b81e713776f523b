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
CHUNKS = st.tuples(st.integers(1, 16_384), st.integers(0, 200_000))


def with_chunk(work: Work, chunk: tuple[int, int]) -> Work:
    """Return a work with a prefill chunk of so many rows behind so much context."""
    rows, start = chunk
    pairs = rows * start + rows * (rows + 1) // 2
    return work + Work(1, rows, 1, 0, start, pairs, 1, rows, start, pairs)


PLAIN_WORKS = st.builds(
    Work,
    requests=st.integers(0, 512),
    rows=st.integers(1, 20_000),
    logits_rows=st.integers(0, 5_000),
    adapter_rows=st.integers(0, 5_000),
    context_tokens=st.integers(0, 5_000_000),
    attention_pairs=st.integers(0, 2_000_000_000),
    sampled_rows=st.integers(0, 5_000),
)
WORKS = st.one_of(PLAIN_WORKS, st.builds(with_chunk, PLAIN_WORKS, CHUNKS))
MODELS = st.sampled_from(
    [
        CostModel(shape, load_hardware(name), dtype, tensor_parallel=tp, adapter_rank=128)
        for shape in (LLAMA, load_model("qwen3-30b-a3b"))
        for name in hardware_names()
        for dtype in ("bf16", "fp8", "fp8-block", "fp8-dynamic", "int4")
        for tp in (1, 8)
        if not dtype.startswith("fp8") or load_hardware(name).fp8_tflops
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
    assert 6.4 <= one <= 7.1
    assert one <= three <= 1.07 * one


def test_kernel_sum_on_rtx4090_is_near_its_tables() -> None:
    """One row at 1,024 tokens: LLMServingSim's kernel tables add to 16.8 ms, sampling's gaps left out."""
    cost = CostModel(LLAMA, load_hardware("rtx4090"))
    kernels = sum(part.ns for part in cost.parts(decode(1, 1024)) if part.name != "sampling")
    assert kernels / 1e6 == pytest.approx(16.775, rel=0.06)


def test_prefill_is_bound_by_compute() -> None:
    """2,048 prompt tokens on H100: two operations a weight and row at 83 % of the peak, and little else."""
    cost = CostModel(LLAMA, load_hardware("h100"))
    pairs = 2048 * 2049 // 2
    report = cost.explain(Work(1, 2048, 1, 0, 0, pairs, 1, 2048, 0, pairs))
    assert report.binding == "compute"
    assert report.parts[0].ns / 1e6 == pytest.approx(35.6, rel=0.01)
    assert [part.name for part in report.parts] == [
        "blocks",
        "prefill attention",
        "activations",
        "head",
        "sampling",
    ]
    assert sum(part.ns for part in report.parts) == pytest.approx(
        report.device_ns - cost.host.replay_ns, abs=1
    )


@settings(max_examples=150, deadline=None)
@given(MODELS, WORKS)
def test_no_launch_beats_the_ceilings(cost: CostModel, work: Work) -> None:
    """A launch needs at least its operations at the peak and its bytes at full bandwidth."""
    peak = cost.hardware.bf16_tflops * 1e12 * cost.tensor_parallel
    fast = (cost.hardware.fp8_tflops or 0.0) * 1e12 * cost.tensor_parallel if cost.fast else peak
    shape = cost.model
    width = shape.num_attention_heads * shape.head_dim
    attention = 4 * width * shape.num_hidden_layers * work.attention_pairs / peak
    active = shape.gemm_parameters + shape.experts_a_row * shape.expert_parameters
    seconds = 2 * active * work.rows / fast + attention
    seconds += 2 * shape.head_parameters * work.logits_rows / peak
    moved = shape.gemm_parameters * {"bf16": 2, "int4": 0.5}.get(cost.dtype, 1)
    moved += shape.experts_a_row * shape.expert_parameters * {"bf16": 2, "int4": 0.5}.get(cost.dtype, 1)
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


def test_a_mixture_reads_the_experts_that_rows_choose() -> None:
    """One row reads 8 of 128 experts, a crowd nearly all; more rows never read less."""
    model = load_model("qwen3-30b-a3b")
    cost = CostModel(model, load_hardware("h200"))
    sizes = []
    for rows in (1, 4, 16, 64, 512):
        (experts,) = (part for part in cost.parts(decode(1, 1024, rows)) if part.name == "experts")
        sizes.append(experts.bytes / (2 * model.expert_parameters))
    assert sizes[0] == pytest.approx(8)
    assert sizes == sorted(sizes)
    assert sizes[-1] == pytest.approx(128, rel=1e-3)
    assert sizes[2] == pytest.approx(128 * (1 - (1 - 8 / 128) ** 16))


def test_all_reduce_takes_what_was_measured() -> None:
    """Eight H100 and one row of Llama-3.1-70B: 160 messages of 16 KiB at the 4.3 us between two measured sizes."""
    cost = CostModel(load_model("llama-3.1-70b"), load_hardware("h100"), tensor_parallel=8)
    (part,) = (part for part in cost.parts(decode(1, 1024)) if part.name == "all-reduce")
    assert part.ns / 160 == pytest.approx(4_270, rel=0.02)
    unmeasured = CostModel(LLAMA, load_hardware("mi300x"), tensor_parallel=8)
    (part,) = (part for part in unmeasured.parts(decode(1, 1024)) if part.name == "all-reduce")
    assert part.bound == "latency"
    assert 64 * 10_000 == part.ns


def test_adapter_split_and_formats_change_the_price() -> None:
    """Gated rows, tensor parallel, fp8 and int4 each change the time in the right direction."""
    base = CostModel(LLAMA, load_hardware("h100"))
    work = replace(decode(4, 1024), adapter_rows=3)
    assert replace(base, adapter_rank=128).launch_ns(work) > base.launch_ns(work)
    assert replace(base, tensor_parallel=4).device_ns(work) < base.device_ns(work)
    assert replace(base, dtype="fp8").device_ns(work) < base.device_ns(work)
    assert replace(base, dtype="int4").device_ns(work) < replace(base, dtype="fp8").device_ns(work)
    static, block, dynamic = (
        replace(base, dtype=dtype).device_ns(work) for dtype in ("fp8", "fp8-block", "fp8-dynamic")
    )
    assert static < block < dynamic
    assert replace(base, kv_dtype="fp8").device_ns(decode(1, 60_000)) < base.device_ns(decode(1, 60_000))
    assert (Work(1, 2) + Work(3, 4, sampled_rows=5)) == Work(4, 6, sampled_rows=5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "fp8"}, "a100 has no fp8 units"),
        ({"dtype": "fp7"}, "--dtype fp7 is unknown; choose one of bf16, fp8, fp8-block, fp8-dynamic, int4"),
        ({"tensor_parallel": 3}, "--tp 3 does not divide the 32 attention heads"),
        ({"adapter_rank": -1}, "adapter rank -1 is negative"),
    ],
)
def test_bad_options_get_a_sentence(options: dict[str, object], words: str) -> None:
    """What the accelerator or the model cannot do is refused before any work."""
    with pytest.raises(UserError, match=words):
        CostModel(LLAMA, load_hardware("a100"), **options)  # type: ignore[arg-type]
