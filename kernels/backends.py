"""The forms of `paged_attention` by name, and what each asks of a machine.

All take the same arguments and give the same rows: `kernels/fixed/attention.py` says which.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from torch import Tensor

from fsm_spec.kernels import flashinfer
from fsm_spec.kernels.fixed.attention import paged_attention, paged_attention_fixed

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int], Tensor]
AUTO, FLASHINFER, TRITON, TORCH = "auto", "flashinfer", "triton", "torch"
BACKENDS: dict[str, Attend] = {
    # The op: the Triton kernel on a GPU, torch on a CPU.
    AUTO: paged_attention,
    FLASHINFER: flashinfer.paged_attention,
    TRITON: paged_attention,
    TORCH: paged_attention_fixed,
}
_PACKAGES = {FLASHINFER: "flashinfer-python", TRITON: "triton"}


def missing(name: str, device: str, page_size: int) -> str | None:
    """Say what a backend lacks on a device of this type, cpu or cuda, as the end of a sentence; None if it runs.

    `auto` is torch on a CPU and Triton on a GPU. FlashInfer plans on the host and so holds no graph of a whole round.
    """
    if name == AUTO:
        name = TORCH if device == "cpu" else TRITON
    if name == TORCH:
        return None
    lacks = [] if device != "cpu" else ["a GPU, and this run is on the CPU"]
    if find_spec(name) is None:
        lacks.append(f"the package {_PACKAGES[name]}, which is not installed")
    if lacks:
        return f"needs {'; it needs '.join(lacks)}"
    return page_fault(page_size) if name == TRITON else None


def page_fault(page_size: int) -> str | None:
    """Say why the Triton kernel cannot take pages of this size; None if it can.

    It finds a slot's page and place by shifts, for every slot that it reads.
    """
    if page_size & (page_size - 1) == 0:
        return None
    below = 1 << page_size.bit_length() - 1
    return f"takes pages of a power of two of slots, not {page_size}; give --page-size {below} or {2 * below}"
