"""Weights stored as 8-bit floats (e4m3) beside their scales: which layouts are read, and what the numbers stand for.

Layouts, as public checkpoints have them: one scale a tensor, one a row, or one a block of `weight_block_size`; the
number is the stored float times its scale, whatever the scale's tensor is called. A forward on a CPU multiplies the
dequantised numbers; one that multiplies 8-bit floats reads `Fp8Weight` as it is stored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fsm_spec.errors import UserError

Tensor = torch.Tensor

STORED = torch.float8_e4m3fn
# After the name of a weight: DeepSeek's and Qwen's name, then that of vLLM's tools.
_SCALES = ("_scale_inv", "_scale")
# Where a configuration names no blocks and the scales have two dimensions.
_ROWS = 1


@dataclass(frozen=True)
class Fp8Weight:
    """Hold a weight [outputs, inputs] as it is stored, and the float32 scales of its blocks [rows, columns]."""

    stored: Tensor
    scales: Tensor
    block: tuple[int, int]

    def dequantise(self) -> Tensor:
        """Multiply out -> float32, which holds every product of an 8-bit float and a bfloat16 scale exactly."""
        spread = self.scales
        for dimension, (size, length) in enumerate(zip(self.block, self.stored.shape, strict=True)):
            spread = spread.repeat_interleave(size, dimension).narrow(dimension, 0, length)
        return self.stored.float() * spread


def read_block(published: Mapping[str, Any], where: str) -> tuple[int, int] | None:
    """Read `quantization_config`: the blocks that share a scale, None for one scale a tensor or row, or no scales.

    Raises UserError for a method other than 8-bit floats; `where` names the file.
    """
    config = published.get("quantization_config")
    if config is None:
        return None
    if not isinstance(config, dict):
        raise UserError(f'{where}: "quantization_config" has to be an object; fetch the model again.')
    method = config.get("quant_method")
    block: object
    if method in ("fp8", "fbgemm_fp8"):
        block = config.get("weight_block_size")
    elif method == "modelopt" and config.get("quant_algo") == "FP8":
        block = None
    elif method == "compressed-tensors":
        block = _group_block(config, where)
    else:
        raise _unknown(where, method if config.get("quant_algo") is None else config["quant_algo"])
    if block is None:
        return None
    if (
        not isinstance(block, list)
        or len(block) != 2
        or not all(type(size) is int and size > 0 for size in block)
    ):
        raise UserError(
            f"{where}: a block of weights has to be two positive integers, not {json.dumps(block)}; "
            "fetch the model again."
        )
    return block[0], block[1]


def _group_block(config: Mapping[str, Any], where: str) -> object:
    """Read the one way in which all groups of a compressed-tensors checkpoint store weights."""
    groups = config.get("config_groups")
    found = [group.get("weights") for group in groups.values()] if isinstance(groups, dict) else []
    if not found or not all(isinstance(weights, dict) for weights in found):
        raise UserError(f'{where}: "config_groups" says nothing of weights; fetch the model again.')
    for weights in found:
        if (weights.get("type"), weights.get("num_bits")) != ("float", 8):
            raise _unknown(
                where, f"compressed-tensors of {weights.get('num_bits')}-bit {weights.get('type')}"
            )
    blocks = [weights.get("block_structure") for weights in found]
    if any(block != blocks[0] for block in blocks):
        raise UserError(f"{where}: groups of weights with blocks of several sizes are not supported.")
    return blocks[0]


def _unknown(where: str, method: object) -> UserError:
    return UserError(
        f"{where}: quantisation {json.dumps(method)} is not supported; known are 8-bit floats of fp8, fbgemm_fp8, "
        "modelopt and compressed-tensors; use one of these, an unquantised model, or a GGUF file."
    )


def read_scaled(
    name: str, stored: Tensor, files: Mapping[str, Tensor], block: tuple[int, int] | None
) -> Fp8Weight:
    """Find the scales of a stored weight among the tensors of its files.

    Raises UserError where the scales are missing, have another shape than the weight asks for, or are no numbers.
    """
    place = next((name + suffix for suffix in _SCALES if name + suffix in files), None)
    if place is None:
        raise UserError(
            f'weight "{name}" holds 8-bit floats without scales: there is neither '
            f"{' nor '.join(json.dumps(name + suffix) for suffix in _SCALES)}; fetch the model again."
        )
    scales = files[place].float()
    if stored.dim() != 2:
        raise UserError(
            f'weight "{name}" holds 8-bit floats of shape {list(stored.shape)}; only matrices can.'
        )
    rows, columns = stored.shape
    if scales.numel() == 1 and block is None:
        scales, block = scales.view(1, 1), (rows, columns)
    elif scales.shape in ((rows,), (rows, 1)) and block is None:
        scales, block = scales.view(rows, 1), (_ROWS, columns)
    expected = None if block is None else (math.ceil(rows / block[0]), math.ceil(columns / block[1]))
    if block is None or scales.shape != expected:
        ask = f"[1] or [{rows}, 1]" if expected is None else str(list(expected))
        raise UserError(
            f'scales "{place}" have shape {list(scales.shape)}, the weight of shape {[rows, columns]} asks for {ask}; '
            'fetch the model again, or fix "quantization_config".'
        )
    if not bool(torch.isfinite(scales).all()) or bool((scales < 0).any()):
        raise UserError(f'scales "{place}" are not all finite and positive; fetch the model again.')
    return Fp8Weight(stored, scales, block)
