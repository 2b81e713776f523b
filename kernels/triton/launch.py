"""What all kernels share: how one is described to the compile report, and what a launch asks of the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch


@dataclass(frozen=True)
class Specialisation:
    """Name one form of a kernel that is compiled for the report, as a launch would compile it."""

    name: str
    """What tells it from other forms of the same kernel"""
    kernel: Any
    """The function under `triton.jit`."""
    types: str
    """The types of the arguments that are no constants, in order: "*bf16:16 *i32 i32"; `:16` says divisible by 16."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    warps: int = 4
    stages: int = 3


def upcasts(tensor: torch.Tensor) -> bool:
    """Say whether a kernel has to widen 16-bit floats before arithmetic.

    On a CPU kernels run in Triton's interpreter, which computes with the bit patterns of bfloat16 as integers.
    """
    return tensor.device.type == "cpu"


def precision(tensor: torch.Tensor) -> str:
    """Name how products of float32 are taken: in three passes on NVIDIA's tensor cores, in full elsewhere."""
    return "tf32x3" if tensor.device.type == "cuda" and torch.version.hip is None else "ieee"


def processors(device: torch.device) -> int:
    """Count the multiprocessors of a device; 1 in the interpreter."""
    return 1 if device.type == "cpu" else _processors(device)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
