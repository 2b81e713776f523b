"""Roofline cost of one launch: parts bound by compute, by bandwidth or by their shortest kernel.

A launch is all requests that share one forward of one model; its `Work` is counted from row plans.
Time is integer nanoseconds, and no launch is faster than the bare peaks allow (`ceiling_ns`).
The formula itself is in `roofline.py`; here stand what it reads: constants of model and machine, and counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsm_spec.errors import UserError
from fsm_spec.simulator import roofline
from fsm_spec.simulator.curve import Curve
from fsm_spec.simulator.drafter import Drafter
from fsm_spec.simulator.hardware import Efficiency, Hardware, Linear
from fsm_spec.simulator.kernel_table import KernelTable
from fsm_spec.simulator.model import KV_BYTES, WEIGHT_BYTES, ModelShape, dtype_name

KERNEL_NS = 2_000  # the smallest kernel takes 1.7 to 2.5 us (aiconfigurator-core 0.12.0 kernel times)
SMALL_KERNELS_A_LAYER = 5  # two norms (with quantising for fp8), rotary embedding, KV write, gated activation
ACTIVATION_MBU = 0.8  # of kernels that only move data (AIConfigurator's empirical mode)
# Quantising activations at run time, each linear layer's: SGLang's kernels in aiconfigurator-core 0.12.0 take 8 us at
# 8 rows and 64 us at 1,024 rows x 8,192 on H200.
DYNAMIC_QUANTISE_NS, DYNAMIC_QUANTISE_GB_S = 8_000, 390.0
ADAPTER_KERNELS_A_LAYER = 8  # down and up for each of four fused projections, as gathered LoRA kernels do
DRAFT_ATTENTION_NS = 12_000  # a decode attention kernel with little to do (same tables as the catalogue's)
DRAFT_PICK_NS = 20_000  # replay of a step's graph and the choice of its tokens
EXPERT_KERNELS_A_LAYER = 3  # routing, gate and up, down
SAMPLER_NS = 240_000  # fused sampling of a step, kernels and their gaps (DreamShift reports, 8B on H100)
SAMPLER_PASSES = (
    2.4  # passes over float32 logits: 311 us at 256 sequences against 130 us for one pass (same tables)
)
ALL_REDUCE_NS = 10_000  # AIConfigurator's point-to-point latency
KV_REFERENCE_BYTES = (
    4_096  # the attention curves count tokens of 8 KV heads x 128 x bf16, keys and values, in one layer
)
QUERY_REFERENCE = 4_096  # ... and prompts of 32 query heads x 128


@dataclass(frozen=True)
class Work:
    """Count what one launch does, over all its requests and live rows."""

    requests: int = 0
    rows: int = 0
    logits_rows: int = 0
    adapter_rows: int = 0
    context_tokens: int = 0
    """Committed prefix tokens read from the KV cache: each request reads its own once."""
    attention_pairs: int = 0
    """Keys seen, summed over rows: prefix, and the rows of the block that the mask shows."""
    sampled_rows: int = 0
    prefill_rows: int = 0
    """Rows of prefill chunks, which `rows` counts too; the two below likewise."""
    prefill_context: int = 0
    prefill_pairs: int = 0
    drafting_rows: int = 0
    """Rows of forwards that run on a draft model, which `rows` does not count, and the context that these read."""
    drafting_context: int = 0

    def __add__(self, other: Work) -> Work:
        """Return the work of both in one launch."""
        return Work(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Host:
    """Describe the CPU's share of a step; overlapped, it hides behind the device, serial, it adds to it.

    `step_ns`: overlapping saves about 12 % of an 8B model's 6.5 ms forward on H100 (DreamShift reports).
    `sequence_ns`: 4.4 us a request (BLIS's fitted step model). `replay_ns`: before every launch, a CUDA graph
    replay that hits (10 to 50 us) and the metadata of attention (74 us in decode mode, DreamShift reports).
    An unoptimised engine takes 1.5 to 7 ms a step (inference-sim #482).
    """

    step_ns: int = 800_000
    sequence_ns: int = 4_400
    replay_ns: int = 94_000
    overlapped: bool = True


class Part(NamedTuple):
    """Report one part of a launch: its bounds, its time, and the operations and compulsory bytes behind them."""

    name: str
    compute_ns: float
    memory_ns: float
    floor_ns: float
    start_ns: float
    ns: float
    flops: float
    bytes: float

    @property
    def bound(self) -> str:
        """Name the bound that binds: compute, memory or latency."""
        latency = self.start_ns + self.floor_ns
        if latency > max(self.compute_ns, self.memory_ns):
            return "latency"
        return "compute" if self.compute_ns > self.memory_ns else "memory"


@dataclass(frozen=True)
class Breakdown:
    """Explain the time of one launch."""

    parts: tuple[Part, ...]
    device_ns: int
    host_ns: int
    total_ns: int
    ceiling_ns: int

    @property
    def binding(self) -> str:
        """Name what binds the launch: host, or the bound of the longest part."""
        if self.host_ns > self.device_ns and self.total_ns == self.host_ns:
            return "host"
        return max(self.parts, key=lambda part: part.ns).bound if self.parts else "host"


@dataclass(frozen=True)
class CostModel:
    """Price launches of `model` on `tensor_parallel` accelerators of one node.

    `dtype` is the format of the blocks' weights: bf16, one of fp8 (compute in fp8 too) or int4 (compute in bf16).
    The output head and the adapter stay in 16 bits. `efficiency` defaults to the accelerator's measured
    curves.
    """

    model: ModelShape
    hardware: Hardware
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    tensor_parallel: int = 1
    adapter_rank: int = 0
    host: Host = field(default_factory=Host)
    efficiency: Efficiency | None = None
    table: KernelTable | None = None
    """Measured times that take the place of the curves."""
    drafter: Drafter | None = None
    """A draft model, as a cost."""
    fused_adapter: bool = False
    """Rows of the adapter multiply weights that it was fused into, a second set, and no low-rank products."""
    constants: NDArray[np.float64] = field(init=False, repr=False, compare=False)
    """What the formula reads of model, machine and host, in the order of `roofline.py`."""
    curves: NDArray[np.float64] = field(init=False, repr=False, compare=False)
    """The efficiency curves as `roofline.py` reads them, float64 [curves, 3, points]."""

    def __post_init__(self) -> None:
        """Check the number formats and the split, and fill in the curves."""
        formats = {name: size for name, size in WEIGHT_BYTES.items() if name != "float32"}
        set_ = object.__setattr__  # the dataclass is frozen for its users
        set_(self, "dtype", dtype_name(self.dtype, formats))
        set_(self, "kv_dtype", dtype_name(self.kv_dtype, KV_BYTES, "--kv-dtype"))
        if self.fast and self.hardware.fp8_tflops is None:
            raise UserError(
                f"{self.hardware.name} has no fp8 units; take --dtype bf16 or int4, or other hardware"
            )
        heads = self.model.num_attention_heads
        if self.tensor_parallel < 1 or heads % self.tensor_parallel:
            raise UserError(
                f"--tp {self.tensor_parallel} does not divide the {heads} attention"
                f" heads of {self.model.name};"
                " give a divisor"
            )
        if self.adapter_rank < 0:
            raise UserError(f"adapter rank {self.adapter_rank} is negative; give 0 for no adapter")
        efficiency = self.efficiency or self.hardware.efficiency()
        constants = self._constants(efficiency)
        if self.table is not None:
            constants = np.concatenate([constants, self.table.packed()])
        set_(self, "constants", constants)
        set_(self, "curves", self._packed_curves(efficiency))

    @property
    def fast(self) -> bool:
        """Say whether the blocks compute in fp8."""
        return self.dtype.startswith("fp8")

    @property
    def kernels(self) -> str:
        """Name the kind of kernels that run the blocks' linear layers."""
        return {"int4": "bf16", "fp8-dynamic": "fp8"}.get(self.dtype, self.dtype)

    def device_ns(self, work: Work) -> int:
        """Return the accelerator's time for one launch, without the host."""
        counts = np.array(astuple(work), np.int64)
        parts = np.zeros((len(roofline.PARTS), roofline.COLUMNS))
        return int(roofline.device_ns(counts, self.constants, self.curves, parts))

    def host_ns(self, sequences: int) -> int:
        """Return the CPU's time for one step of that many sequences."""
        return self.host.step_ns + self.host.sequence_ns * sequences

    def step_ns(self, launches: Sequence[Work]) -> int:
        """Return the time of one engine step: its launches one after the other, and the host once."""
        device = sum(self.device_ns(work) for work in launches)
        sequences = max((work.requests for work in launches), default=0)
        return int(roofline.step_ns(device, sequences, self.constants))

    def launch_ns(self, work: Work) -> int:
        """Return the time of a step with this one launch."""
        return self.step_ns((work,))

    def ceiling_ns(self, work: Work) -> int:
        """Return the bare roofline: all operations at the peak or all compulsory bytes at full bandwidth.

        Compulsory are weights, KV and logits; activations between kernels may stay in the cache.
        """
        if work.rows <= 0 and work.drafting_rows <= 0:
            return 0
        return math.ceil(float(roofline.ceiling_ns(self.constants, self.priced(work))))

    def explain(self, work: Work) -> Breakdown:
        """Return the parts of one launch and what binds it."""
        device, host = self.device_ns(work), self.host_ns(work.requests)
        parts = tuple(self.parts(work)) if work.rows > 0 or work.drafting_rows > 0 else ()
        return Breakdown(parts, device, host, self.launch_ns(work), self.ceiling_ns(work))

    def parts(self, work: Work) -> list[Part]:
        """Return the parts of one launch that has rows, in the order in which a forward runs them."""
        priced = self.priced(work)
        return [
            Part(name, *map(float, row))
            for name, row in zip(roofline.PARTS, priced, strict=True)
            if row.any()
        ]

    def priced(self, work: Work) -> NDArray[np.float64]:
        """Return all parts of one launch that has rows, as the formula gives them; absent ones are 0."""
        parts = np.zeros((len(roofline.PARTS), roofline.COLUMNS))
        roofline.device_ns(np.array(astuple(work), np.int64), self.constants, self.curves, parts)
        return parts

    def _constants(self, efficiency: Efficiency) -> NDArray[np.float64]:
        """Compute what the formula reads; times and bytes of all accelerators together."""
        model, hardware, tp = self.model, self.hardware, self.tensor_parallel
        layers = model.num_hidden_layers
        query = model.num_attention_heads * model.head_dim
        peak = hardware.bf16_tflops * 1e12 * tp
        blocks, linear = efficiency.linear[self.kernels], efficiency.linear["bf16"]
        dynamic = self.dtype == "fp8-dynamic"
        activation = model.row_activation_bytes / ACTIVATION_MBU
        if dynamic:  # read in 16 bits, written in 8
            activation += 3 * model.row_linear_inputs * hardware.hbm_gb_s * tp / DYNAMIC_QUANTISE_GB_S
        values = {
            roofline.FUSED: self.fused_adapter,
            roofline.BANDWIDTH: hardware.hbm_gb_s * 1e9 * tp,
            roofline.BLOCKS_PEAK: (hardware.fp8_tflops or 0.0) * 1e12 * tp if self.fast else peak,
            roofline.BF16_PEAK: peak,
            roofline.BLOCKS_PARAMETERS: model.gemm_parameters,
            roofline.BLOCKS_BYTES: model.gemm_parameters * WEIGHT_BYTES[self.dtype],
            roofline.BLOCKS_MBU: blocks.mbu,
            roofline.BLOCKS_OVERLAP: blocks.overlap,
            roofline.BLOCKS_START_NS: model.linear_kernels
            * (blocks.start_us * 1e3 + DYNAMIC_QUANTISE_NS * dynamic),
            roofline.EXPERT_COUNT: model.experts,
            roofline.EXPERTS_A_ROW: model.experts_a_row,
            roofline.EXPERT_PARAMETERS: model.expert_parameters,
            roofline.EXPERT_BYTES: model.expert_parameters * WEIGHT_BYTES[self.dtype],
            roofline.EXPERT_START_NS: EXPERT_KERNELS_A_LAYER * model.expert_layers * blocks.start_us * 1e3,
            roofline.GEMM_MBU: linear.mbu,
            roofline.GEMM_OVERLAP: linear.overlap,
            roofline.ADAPTER_PARAMETERS: model.adapter_parameters(
                0 if self.fused_adapter else self.adapter_rank
            ),
            roofline.ADAPTER_START_NS: ADAPTER_KERNELS_A_LAYER * layers * KERNEL_NS,
            roofline.HEAD_PARAMETERS: model.head_parameters,
            roofline.HEAD_START_NS: linear.start_us * 1e3,
            roofline.PAIR_FLOPS: 4.0 * query,
            roofline.LAYER_KV_BYTES: model.layer_kv_bytes(self.kv_dtype, tp),
            # Each accelerator holds its share of the heads, so a kernel sees a share of the bytes and pairs.
            roofline.KV_REFERENCE_BYTES: KV_REFERENCE_BYTES * tp,
            roofline.PAIR_REFERENCE: query / (QUERY_REFERENCE * tp),
            roofline.LAYERS: layers,
            roofline.ATTENTION_FLOOR_NS: layers * KERNEL_NS,
            roofline.ROW_ACTIVATION_BYTES: activation,
            roofline.ACTIVATION_FLOOR_NS: SMALL_KERNELS_A_LAYER * KERNEL_NS * layers,
            roofline.LOGITS_BYTES: 4.0 * model.vocab_size,
            roofline.SAMPLER_PASSES: SAMPLER_PASSES,
            roofline.SAMPLER_NS: SAMPLER_NS,
            **self._link(efficiency),
            **self._drafting(linear),
            roofline.REPLAY_NS: self.host.replay_ns,
            roofline.HOST_STEP_NS: self.host.step_ns,
            roofline.HOST_SEQUENCE_NS: self.host.sequence_ns,
            roofline.OVERLAPPED: self.host.overlapped,
        }
        return np.array([values[place] for place in range(roofline.CONSTANTS)], np.float64)

    def _link(self, efficiency: Efficiency) -> dict[int, float]:
        """Give what the formula reads of two all-reduces a layer: a ring moves 2 (n - 1) / n of each message."""
        tp, layers = self.tensor_parallel, self.model.num_hidden_layers
        message = 2.0 * self.model.hidden_size
        measured = efficiency.reduce_curve(tp) is not None
        return {
            roofline.ROW_REDUCE_BYTES: 2 * layers * message * 2 * (tp - 1) / tp,
            roofline.REDUCE_LINK_BYTES: message,
            roofline.LINK: self.hardware.link_gb_s * 1e9 if tp > 1 else 0.0,
            roofline.REDUCE_FLOOR_NS: 0.0 if measured else 2 * layers * ALL_REDUCE_NS,
        }

    def _drafting(self, linear: Linear) -> dict[int, float]:
        """Give what the formula reads of a draft model."""
        drafter, model = self.drafter, self.model
        steps = drafter.steps if drafter else 0
        layers, rows = (drafter.layers, drafter.rows) if drafter else (0, 0)
        # A layer's kernels, the projection of features, the head, attention and its smaller kernels, picking a token.
        kernels = (4 * layers + 2) * linear.start_us * 1e3
        kernels += layers * (DRAFT_ATTENTION_NS + SMALL_KERNELS_A_LAYER * KERNEL_NS) + DRAFT_PICK_NS
        return {
            roofline.DRAFT_STEPS: steps,
            roofline.DRAFT_PARAMETERS: drafter.parameters(model) if drafter else 0,
            roofline.DRAFT_ROWS: rows,
            roofline.DRAFT_START_NS: kernels if drafter else 0,
            roofline.DRAFT_KV_BYTES: layers * model.layer_kv_bytes("bf16", self.tensor_parallel),
        }

    def _packed_curves(self, efficiency: Efficiency) -> NDArray[np.float64]:
        """Lay the curves out as the formula reads them."""
        curves = {
            roofline.BLOCKS_MFU: Curve.of(efficiency.linear[self.kernels].mfu),
            roofline.GEMM_MFU: Curve.of(efficiency.linear["bf16"].mfu),
            roofline.DECODE_MBU: efficiency.decode_attention_mbu,
            roofline.PREFILL_MFU: efficiency.prefill_attention_mfu,
            roofline.REDUCE_SHARE: efficiency.reduce_curve(self.tensor_parallel) or Curve.constant(1.0),
        }
        points = max(len(curve.amounts) for curve in curves.values())
        return np.array([curves[place].packed(points) for place in range(len(curves))])
