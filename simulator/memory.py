"""KV pages from accelerator memory: what is left after weights, draft model, activations, logits and a reserve."""

from __future__ import annotations

from dataclasses import dataclass, field

from fsm_spec.errors import UserError
from fsm_spec.simulator.drafter import Drafter
from fsm_spec.simulator.hardware import Hardware
from fsm_spec.simulator.model import KV_BYTES, WEIGHT_BYTES, ModelShape, dtype_name

DEFAULT_PAGE_SIZE = 64  # tokens
DEFAULT_UTILISATION = 0.9  # vLLM's gpu_memory_utilization default
# Context, graphs and fragments: what vLLM 0.19 kept beside weights, KV and the peaks below, of Llama-3.1-8B on a 24 GB
# RTX 4090 at utilisation 0.9 with chunks of 2,048 rows and 256 sequences, where 2,588 blocks x 16 tokens were left.
# AIConfigurator assumes 3.5 GiB for this and the peaks together.
DEFAULT_RESERVE_GIB = 1.175
# What the reserve was found with: rows of a forward, and rows whose logits a sampler holds.
DEFAULT_ROWS, DEFAULT_LOGITS_ROWS = 2048, 256
# A sampler holds float32 logits and, beside them, probabilities of the same size.
LOGITS_COPIES = 2
NCCL_BYTES = 367_000_000  # AIConfigurator: 342 to 392 MB for 2 to 8 accelerators
GIB = 2**30


@dataclass(frozen=True)
class Memory:
    """Hold the KV capacity of one replica; bytes are those of each of its `tensor_parallel` accelerators.

    `parts` says what the memory is taken by, in bytes by name, KV pool and what is left over included.
    """

    pages: int
    page_size: int
    page_bytes: int
    weight_bytes: int
    given: bool
    parts: dict[str, int] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Return the tokens that all pages hold."""
        return self.pages * self.page_size


@dataclass(frozen=True)
class MemoryOptions:
    """Say how memory is divided; `pages` is the exact number when the user knows it.

    `rows` are those of a forward at most, `logits_rows` those of them whose logits are needed; a `fused_adapter` is a
    second copy of the blocks' weights.
    """

    page_size: int = DEFAULT_PAGE_SIZE
    utilisation: float = DEFAULT_UTILISATION
    reserve_gib: float = DEFAULT_RESERVE_GIB
    pages: int | None = None
    adapter_rank: int = 0
    drafter: Drafter | None = None
    fused_adapter: bool = False
    rows: int = DEFAULT_ROWS
    logits_rows: int = DEFAULT_LOGITS_ROWS

    def __post_init__(self) -> None:
        """Refuse values outside their ranges."""
        if self.page_size < 1:
            raise UserError(
                f"page size {self.page_size} is no positive number of tokens; give --page-size 64,"
                f" for example"
            )
        if not 0 < self.utilisation <= 1:
            raise UserError(
                f"memory utilisation {self.utilisation:g} lies outside 0 to 1; give 0.9, for example"
            )
        if self.pages is not None and self.pages < 1:
            raise UserError(f"a pool of {self.pages} pages holds nothing; give at least 1 with --pages")
        if not self.reserve_gib >= 0 or min(self.adapter_rank, self.rows, self.logits_rows) < 0:
            raise UserError(
                "the memory reserve, rows and the adapter rank cannot be negative; give 0 or more"
            )


def activation_bytes(model: ModelShape, rows: int, tensor_parallel: int = 1) -> int:
    """Return the peak of a forward's activations, 16 bits each: the residual, a norm of it, and the widest layer."""
    widest = model.experts_a_row * model.expert_width if model.experts else model.intermediate_size
    heads = (2 * model.num_attention_heads + 2 * model.num_key_value_heads) * model.head_dim
    # Gate, up and their product live at once; or queries, keys, values and what attention gives.
    return 2 * rows * (2 * model.hidden_size + max(3 * widest, heads) // tensor_parallel)


def logits_bytes(model: ModelShape, rows: int) -> int:
    """Return the peak of a sampler's float32 logits and probabilities, whole on every accelerator."""
    return LOGITS_COPIES * 4 * rows * model.vocab_size


def plan_memory(
    model: ModelShape,
    hardware: Hardware,
    dtype: str = "bf16",
    *,
    kv_dtype: str = "bf16",
    tensor_parallel: int = 1,
    options: MemoryOptions | None = None,
) -> Memory:
    """Return the KV pages that fit: (memory x utilisation - weights - peaks - reserve) / page bytes.

    Raises UserError with both numbers if the weights, or the pages that were asked for, do not fit.
    """
    options = options or MemoryOptions()
    dtype = dtype_name(dtype, WEIGHT_BYTES)
    kv_dtype = dtype_name(kv_dtype, KV_BYTES, "--kv-dtype")
    slot_bytes = model.num_hidden_layers * model.layer_kv_bytes(kv_dtype, tensor_parallel) // tensor_parallel
    parts = {"weights": -(-model.weight_bytes(dtype) // tensor_parallel)}
    if options.fused_adapter:
        copy = int(model.gemm_parameters * WEIGHT_BYTES[dtype])
        parts["weights with the adapter fused in"] = -(-copy // tensor_parallel)
    elif options.adapter_rank:
        parts["adapter"] = -(-model.adapter_parameters(options.adapter_rank) * 2 // tensor_parallel)
    if options.drafter is not None:
        parts["draft model"] = -(-options.drafter.weight_bytes(model) // tensor_parallel)
        # Its layers keep keys and values of the same tokens.
        slot_bytes += (
            options.drafter.layers * model.layer_kv_bytes("bf16", tensor_parallel) // tensor_parallel
        )
    weights = sum(parts.values())
    parts["activations"] = activation_bytes(model, options.rows, tensor_parallel)
    parts["logits"] = logits_bytes(model, options.logits_rows)
    if tensor_parallel > 1:
        parts["communication"] = NCCL_BYTES
    parts["context, graphs, fragments"] = int(options.reserve_gib * GIB)
    page_bytes = options.page_size * slot_bytes
    beside = sum(parts.values())
    budget = int(hardware.hbm_bytes * options.utilisation) - (beside - weights)
    what = f"{model.name} in {dtype}"
    where = f"{hardware.name}{f' x {tensor_parallel}' if tensor_parallel > 1 else ''}"
    pages = options.pages if options.pages is not None else (budget - weights) // page_bytes
    if options.pages is not None and weights + pages * page_bytes > hardware.hbm_bytes:
        raise UserError(
            f"{what} with {options.pages} pages of {options.page_size} tokens needs"
            f" {gib(weights + pages * page_bytes)} on each accelerator,"
            f" but {where} has {gib(hardware.hbm_bytes)}; give fewer --pages or other hardware"
        )
    if pages < 1:
        peaks = parts["activations"] + parts["logits"]
        fewer = (
            f", fewer --max-running (activations and logits of {options.rows} rows take {gib(peaks)})"
            if peaks > GIB
            else ""
        )
        raise UserError(
            f"{what} needs {gib(weights + page_bytes)} for weights and one KV page on each"
            f" accelerator, but {where} leaves"
            f" {gib(max(0, budget))}; take --dtype fp8, --tp {2 * tensor_parallel}{fewer} or"
            f" larger hardware"
        )
    parts["KV pool"] = pages * page_bytes
    parts["not used"] = max(0, hardware.hbm_bytes - beside - parts["KV pool"])
    given = options.pages is not None
    return Memory(pages, options.page_size, page_bytes, weights, given=given, parts=parts)


def gib(size: int) -> str:
    """Write bytes for a person."""
    return f"{size / GIB:.1f} GiB"
