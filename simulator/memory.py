"""KV pages from accelerator memory: what is left after weights, adapter, draft model and activations."""

from __future__ import annotations

from dataclasses import dataclass

from fsm_spec.errors import UserError
from fsm_spec.simulator.drafter import Drafter
from fsm_spec.simulator.hardware import Hardware
from fsm_spec.simulator.model import KV_BYTES, WEIGHT_BYTES, ModelShape, dtype_name

DEFAULT_PAGE_SIZE = 64  # tokens
DEFAULT_UTILISATION = 0.9  # vLLM's gpu_memory_utilization default
# Activations, context and fragments: what vLLM 0.19 kept beside weights and KV of Llama-3.1-8B on a 24 GB RTX
# 4090 at utilisation 0.9, where 2,588 blocks x 16 tokens were left. AIConfigurator assumes 3.5 GiB.
DEFAULT_RESERVE_GIB = 1.6
NCCL_BYTES = 367_000_000  # AIConfigurator: 342 to 392 MB for 2 to 8 accelerators
GIB = 2**30


@dataclass(frozen=True)
class Memory:
    """Hold the KV capacity of one replica; bytes are those of each of its `tensor_parallel` accelerators."""

    pages: int
    page_size: int
    page_bytes: int
    weight_bytes: int
    budget_bytes: int
    given: bool

    @property
    def tokens(self) -> int:
        """Return the tokens that all pages hold."""
        return self.pages * self.page_size


@dataclass(frozen=True)
class MemoryOptions:
    """Say how memory is divided; `pages` is the exact number when the user knows it."""

    page_size: int = DEFAULT_PAGE_SIZE
    utilisation: float = DEFAULT_UTILISATION
    reserve_gib: float = DEFAULT_RESERVE_GIB
    pages: int | None = None
    adapter_rank: int = 0
    drafter: Drafter | None = None

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
        if not self.reserve_gib >= 0 or self.adapter_rank < 0:
            raise UserError("the memory reserve and the adapter rank cannot be negative; give 0 or more")


def plan_memory(
    model: ModelShape,
    hardware: Hardware,
    dtype: str = "bf16",
    *,
    kv_dtype: str = "bf16",
    tensor_parallel: int = 1,
    options: MemoryOptions | None = None,
) -> Memory:
    """Return the KV pages that fit: (memory x utilisation - weights - reserve) / page bytes.

    Raises UserError with both numbers if the weights, or the pages that were asked for, do not fit.
    """
    options = options or MemoryOptions()
    dtype = dtype_name(dtype, WEIGHT_BYTES)
    kv_dtype = dtype_name(kv_dtype, KV_BYTES, "--kv-dtype")
    slot_bytes = model.num_hidden_layers * model.layer_kv_bytes(kv_dtype, tensor_parallel) // tensor_parallel
    beside = model.adapter_parameters(options.adapter_rank) * 2
    if options.drafter is not None:
        beside += options.drafter.weight_bytes(model)
        # Its layers keep keys and values of the same tokens.
        slot_bytes += (
            options.drafter.layers * model.layer_kv_bytes("bf16", tensor_parallel) // tensor_parallel
        )
    page_bytes = options.page_size * slot_bytes
    weights = -(-(model.weight_bytes(dtype) + beside) // tensor_parallel)
    nccl = NCCL_BYTES if tensor_parallel > 1 else 0
    budget = int(hardware.hbm_bytes * options.utilisation) - int(options.reserve_gib * GIB) - nccl
    what = f"{model.name} in {dtype}"
    where = f"{hardware.name}{f' x {tensor_parallel}' if tensor_parallel > 1 else ''}"
    if options.pages is not None:
        needed = weights + options.pages * page_bytes
        if needed > hardware.hbm_bytes:
            raise UserError(
                f"{what} with {options.pages} pages of {options.page_size} tokens needs"
                f" {_gib(needed)} on each accelerator,"
                f" but {where} has {_gib(hardware.hbm_bytes)}; give fewer --pages or other hardware"
            )
        return Memory(options.pages, options.page_size, page_bytes, weights, budget, given=True)
    pages = (budget - weights) // page_bytes
    if pages < 1:
        raise UserError(
            f"{what} needs {_gib(weights + page_bytes)} for weights and one KV page on each"
            f" accelerator, but {where} leaves"
            f" {_gib(max(0, budget))}; take --dtype fp8, --tp {2 * tensor_parallel} or"
            f" larger hardware"
        )
    return Memory(pages, options.page_size, page_bytes, weights, budget, given=False)


def _gib(size: int) -> str:
    """Write bytes for a person."""
    return f"{size / GIB:.1f} GiB"
