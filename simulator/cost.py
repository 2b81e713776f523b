"""Roofline cost of one launch: parts bound by compute, by bandwidth or by their shortest kernel.

A launch is all requests that share one forward of one model; its `Work` is counted from row plans.
Time is integer nanoseconds, and no launch is faster than the bare peaks allow (`ceiling_ns`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fsm_spec.errors import UserError
from fsm_spec.simulator.hardware import Efficiency, Hardware
from fsm_spec.simulator.model import KV_BYTES, WEIGHT_BYTES, ModelShape, dtype_name

KERNEL_NS = 2_000  # the smallest kernel takes 1.7 to 2.5 us (aiconfigurator-core 0.12.0 kernel times)
SMALL_KERNELS_A_LAYER = (
    6  # two norms, rotary embedding, KV write, combining split attention, gated activation
)
SAMPLER_NS = 25_000  # sampler of one sequence, 128,256 words (LLMServingSim tables, RTX 4090)
SAMPLER_PASSES = (
    2.4  # passes over float32 logits: 311 us at 256 sequences against 130 us for one pass (same tables)
)
ALL_REDUCE_NS = 10_000  # AIConfigurator's point-to-point latency
KV_REFERENCE_BYTES = (
    4_096  # the attention curves count tokens of 8 KV heads x 128 x bf16, keys and values, in one layer
)
NS = 1e9


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

    def __add__(self, other: Work) -> Work:
        """Return the work of both in one launch."""
        return Work(
            self.requests + other.requests,
            self.rows + other.rows,
            self.logits_rows + other.logits_rows,
            self.adapter_rows + other.adapter_rows,
            self.context_tokens + other.context_tokens,
            self.attention_pairs + other.attention_pairs,
            self.sampled_rows + other.sampled_rows,
        )


@dataclass(frozen=True)
class Host:
    """Describe the CPU's share of a step; overlapped, it hides behind the device, serial, it adds to it.

    `step_ns`: overlapping saves about 12 % of an 8B model's 6.5 ms forward on H100 (DreamShift reports).
    `sequence_ns`: 4.4 us a request (BLIS's fitted step model). `replay_ns`: a CUDA graph replay that hits
    costs 10 to 50 us and is paid before every launch. An unoptimised engine takes 1.5 to 7 ms a step
    (inference-sim #482).
    """

    step_ns: int = 800_000
    sequence_ns: int = 4_400
    replay_ns: int = 20_000
    overlapped: bool = True


class Part(NamedTuple):
    """Report one part of a launch: its three bounds, and the operations and compulsory bytes behind them."""

    name: str
    compute_ns: float
    memory_ns: float
    floor_ns: float
    flops: float
    bytes: float

    @property
    def ns(self) -> float:
        """Return the time of the part: its largest bound."""
        return max(self.compute_ns, self.memory_ns, self.floor_ns)

    @property
    def bound(self) -> str:
        """Name the bound that binds: compute, memory or latency."""
        if self.ns == self.floor_ns and self.floor_ns > max(self.compute_ns, self.memory_ns):
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

    `dtype` is the format of the blocks' weights: bf16, fp8 (compute in fp8 too) or int4 (compute in bf16).
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
    _priced: dict[tuple[int, ...], tuple[float, float, float]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Check the number formats and the split, and fill in the curves."""
        formats = {name: size for name, size in WEIGHT_BYTES.items() if name != "float32"}
        set_ = object.__setattr__  # the dataclass is frozen for its users
        set_(self, "dtype", dtype_name(self.dtype, formats))
        set_(self, "kv_dtype", dtype_name(self.kv_dtype, KV_BYTES, "--kv-dtype"))
        if self.dtype == "fp8" and self.hardware.fp8_tflops is None:
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
        set_(self, "_curves", self.efficiency or self.hardware.efficiency())

    @property
    def curves(self) -> Efficiency:
        """Return the efficiency curves in use."""
        curves: Efficiency = self.__dict__["_curves"]
        return curves

    @property
    def _bandwidth(self) -> float:
        """Return bytes a second of all accelerators together."""
        return self.hardware.hbm_gb_s * 1e9 * self.tensor_parallel

    def _peak(self, units: str) -> float:
        """Return operations a second of all accelerators together; `units` is bf16 or fp8."""
        tflops = self.hardware.fp8_tflops if units == "fp8" else self.hardware.bf16_tflops
        return (tflops or self.hardware.bf16_tflops) * 1e12 * self.tensor_parallel

    def device_ns(self, work: Work) -> int:
        """Return the accelerator's time for one launch, without the host."""
        if work.rows <= 0:
            return 0
        # Only attention depends on the context, so all other parts are priced once for each number of rows.
        ns, seconds, size = self._without_attention(work)
        part = self._attention(work)
        bare = max(
            seconds + part.flops / self._peak(self._units(part.name)), (size + part.bytes) / self._bandwidth
        )
        return math.ceil(max(ns + part.ns + self.host.replay_ns, NS * bare))

    def _without_attention(self, work: Work) -> tuple[float, float, float]:
        """Sum the parts but attention: time, seconds at the peaks, compulsory bytes."""
        known = self._priced
        key = (work.rows, work.logits_rows, work.adapter_rows, work.sampled_rows)
        if key not in known:
            parts = [part for part in self.parts(work) if part.name != "attention"]
            seconds = sum(part.flops / self._peak(self._units(part.name)) for part in parts)
            known[key] = sum(part.ns for part in parts), seconds, sum(part.bytes for part in parts)
        return known[key]

    def host_ns(self, sequences: int) -> int:
        """Return the CPU's time for one step of that many sequences."""
        return self.host.step_ns + self.host.sequence_ns * sequences

    def step_ns(self, launches: Sequence[Work]) -> int:
        """Return the time of one engine step: its launches one after the other, and the host once."""
        device = sum(self.device_ns(work) for work in launches)
        if not device:
            return 0
        host = self.host_ns(max(work.requests for work in launches))
        return max(device, host) if self.host.overlapped else device + host

    def launch_ns(self, work: Work) -> int:
        """Return the time of a step with this one launch."""
        return self.step_ns((work,))

    def ceiling_ns(self, work: Work) -> int:
        """Return the bare roofline: all operations at the peak or all compulsory bytes at full bandwidth.

        Compulsory are weights, KV and logits; activations between kernels may stay in the cache.
        """
        return self._ceiling_ns(self.parts(work)) if work.rows > 0 else 0

    def _ceiling_ns(self, parts: Sequence[Part]) -> int:
        """Return the bare roofline of a launch with these parts."""
        units = self._units("blocks")
        seconds = sum(part.flops / self._peak(units if part.name == "blocks" else "bf16") for part in parts)
        return math.ceil(NS * max(seconds, sum(part.bytes for part in parts) / self._bandwidth))

    def _units(self, name: str) -> str:
        """Return the units that run the linear layers of a part: only fp8 blocks leave bf16."""
        return "fp8" if self.dtype == "fp8" and name == "blocks" else "bf16"

    def explain(self, work: Work) -> Breakdown:
        """Return the parts of one launch and what binds it."""
        device, host = self.device_ns(work), self.host_ns(work.requests)
        parts = tuple(self.parts(work)) if work.rows > 0 else ()
        return Breakdown(parts, device, host, self.launch_ns(work), self.ceiling_ns(work))

    def parts(self, work: Work) -> list[Part]:
        """Return the parts of one launch that has rows, in the order in which a forward runs them."""
        model = self.model
        parts = [
            self._gemm("blocks", model.gemm_parameters, work.rows, WEIGHT_BYTES[self.dtype]),
            self._attention(work),
            self._activations(work.rows),
        ]
        if self.adapter_rank and work.adapter_rows:
            parts.append(
                self._gemm("adapter", model.adapter_parameters(self.adapter_rank), work.adapter_rows, 2.0)
            )
        if work.logits_rows:
            parts.append(self._gemm("head", model.head_parameters, work.logits_rows, 2.0))
        if work.sampled_rows:
            parts.append(self._sampling(work.sampled_rows))
        if self.tensor_parallel > 1:
            parts.append(self._all_reduce(work.rows))
        return parts

    def _gemm(self, name: str, parameters: int, rows: int, weight_bytes: float) -> Part:
        """Price linear layers: weights are read once, every row multiplies them."""
        units = self._units(name)
        flops, size = 2.0 * parameters * rows, parameters * weight_bytes
        compute = NS * flops / (self._peak(units) * self.curves.gemm_mfu[units].share(rows))
        memory = NS * size / (self._bandwidth * self.curves.gemm_mbu.share(rows))
        return Part(name, compute, memory, 0.0, flops, size)

    def _attention(self, work: Work) -> Part:
        """Price attention: each request's KV is read once, each pair costs two products a head."""
        model, layers = self.model, self.model.num_hidden_layers
        width = model.num_attention_heads * model.head_dim
        flops = 4.0 * width * work.attention_pairs * layers
        moved = (work.context_tokens + work.rows) * model.layer_kv_bytes(self.kv_dtype)
        # Each accelerator holds its share of the heads, so a kernel sees a share of the bytes.
        amount = moved / KV_REFERENCE_BYTES / self.tensor_parallel
        share = self.curves.decode_attention_mbu.share(amount)
        causal_tokens = math.sqrt(
            2.0 * work.attention_pairs
        )  # a causal prefill of n tokens has n^2 / 2 pairs
        compute = NS * flops / (self._peak("bf16") * self.curves.prefill_attention_mfu.share(causal_tokens))
        size = float(moved * layers)
        return Part(
            "attention",
            compute,
            NS * size / (self._bandwidth * share),
            float(layers * KERNEL_NS),
            flops,
            size,
        )

    def _activations(self, rows: int) -> Part:
        """Price the kernels between the linear layers: norms, rotary embedding, activation."""
        model = self.model
        width = (model.num_attention_heads + model.num_key_value_heads) * model.head_dim
        size = (
            2.0
            * rows
            * (4 * model.hidden_size + 2 * width + 3 * model.intermediate_size)
            * model.num_hidden_layers
        )
        floor = float(SMALL_KERNELS_A_LAYER * KERNEL_NS * model.num_hidden_layers)
        return Part("activations", 0.0, NS * size / self._bandwidth, floor, 0.0, 0.0)

    def _sampling(self, rows: int) -> Part:
        """Price sampling: float32 logits are written once and passed over."""
        size = 4.0 * rows * self.model.vocab_size
        return Part(
            "sampling", 0.0, NS * size * SAMPLER_PASSES / self._bandwidth, float(SAMPLER_NS), 0.0, size
        )

    def _all_reduce(self, rows: int) -> Part:
        """Price two ring all-reduces a layer: 2 (n - 1) / n of the activations over the link."""
        count = 2 * self.model.num_hidden_layers
        size = 2.0 * rows * self.model.hidden_size * 2 * (self.tensor_parallel - 1) / self.tensor_parallel
        link = NS * count * size / (self.hardware.link_gb_s * 1e9)
        return Part("all-reduce", 0.0, link, float(count * ALL_REDUCE_NS), 0.0, 0.0)
