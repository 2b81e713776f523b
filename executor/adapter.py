"""LoRA adapters in PEFT's layout: adapter_config.json beside adapter_model.safetensors.

An adapter is laid out like the model's fused weights: the q, k and v updates of a layer are one pair of matrices
whose second is block-diagonal, so that a gated row costs two small products per fused weight.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from fsm_spec.errors import UserError
from fsm_spec.executor.models import architectures as names
from fsm_spec.executor.models.config import ModelConfig, read_json
from fsm_spec.executor.models.json_numbers import NumberReader
from fsm_spec.executor.models.weights import require_finite

_SETTINGS = "adapter_config.json"
_KEY = re.compile(
    r"^base_model\.model\.(?:\w+\.)?layers\.(\d+)\.(\w+\.\w+)\.lora_([AB])(?:\.default)?\.weight$"
)


@dataclass(frozen=True)
class LowRank:
    """Hold the update of one fused weight: `up @ down`, the adapter's scale in `up`."""

    down: torch.Tensor
    """[sum of ranks, inputs]"""
    up: torch.Tensor
    """[outputs, sum of ranks]"""


@dataclass(frozen=True)
class Adapter:
    """Hold the updates of all layers, by the name of the fused weight: qkv, output, gate_up, down."""

    name: str
    rank: int
    layers: list[dict[str, LowRank]]


def fused_places(config: ModelConfig, index: int = 0) -> dict[str, list[tuple[str, int, int]]]:
    """List the (module, outputs, inputs) that make up each fused weight of a layer, in order; experts take none."""
    query, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    hidden, ffn = config.hidden, config.ffn
    attention = {
        "qkv": [(names.QUERY, query, hidden), (names.KEY, keys, hidden), (names.VALUE, keys, hidden)],
        "output": [(names.OUTPUT, hidden, query)],
    }
    if config.experts is not None and index in config.experts.layers:
        return attention
    return attention | {
        "gate_up": [(names.GATE, ffn, hidden), (names.UP, ffn, hidden)],
        "down": [(names.DOWN, hidden, ffn)],
    }


def bundled_adapter(folder: Path) -> Path | None:
    """Find the adapter that lies with a model, in its folder or in one folder below; raises UserError for several.

    Published bundles have it in `adapter` (ifm-ai/uno) or `linear_spec_lora` (Nemotron-Labs-Diffusion).
    """
    found = [path.parent for place in (_SETTINGS, f"*/{_SETTINGS}") for path in sorted(folder.glob(place))]
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise UserError(f'"{folder}" holds several adapters ({names}); give one of them with --adapter.')
    return found[0] if found else None


def refuse_adapter_alone(folder: Path) -> None:
    """Raise UserError for a folder that holds an adapter and no model."""
    path = folder / _SETTINGS
    if path.is_file() and not (folder / "config.json").is_file():
        base = read_json(path).get("base_model_name_or_path")
        raise UserError(
            f'"{folder}" holds an adapter of {base!r} and no model; give that model\'s folder with --model, '
            "and this one with --adapter."
        )


def load_adapter(folder: Path, config: ModelConfig, dtype: torch.dtype) -> Adapter:
    """Read an adapter folder for a model; raises UserError for missing files, wrong shapes and unknown targets."""
    settings = adapter_settings(folder)
    numbers = NumberReader(settings, f'"{folder / _SETTINGS}"')
    rank = numbers.count("r")
    alpha = numbers.number("lora_alpha", rank)
    scale = alpha / math.sqrt(rank) if numbers.flag("use_rslora") else alpha / rank
    return build_adapter(_pairs(folder, config), config, scale, dtype, name=folder.name, rank=rank)


def adapter_settings(folder: Path) -> dict[str, Any]:
    """Read adapter_config.json; raises UserError where there is none, and for what plain LoRA cannot express."""
    path = folder / _SETTINGS
    if not path.is_file():
        raise UserError(
            f'adapter folder "{folder}" has no adapter_config.json; give a folder that PEFT saved.'
        )
    settings = read_json(path)
    if settings.get("peft_type", "LORA") != "LORA":
        raise UserError(
            f'"{path}": peft_type {settings["peft_type"]!r} is not supported; train a LoRA adapter.'
        )
    for key in (
        "use_dora",
        "modules_to_save",
        "rank_pattern",
        "alpha_pattern",
        "lora_bias",
        "fan_in_fan_out",
    ):
        if settings.get(key):
            raise UserError(f'"{path}": "{key}" is not supported; train a plain LoRA adapter without it.')
    # These take their first values out of the base weights, which are then other ones.
    if str(settings.get("init_lora_weights")).startswith(("pissa", "olora", "corda", "loftq")):
        raise UserError(
            f'"{path}": init_lora_weights {settings["init_lora_weights"]!r} changes the base weights; '
            "convert the adapter to plain LoRA."
        )
    return settings


def _pairs(folder: Path, config: ModelConfig) -> dict[tuple[int, str], dict[str, torch.Tensor]]:
    """Read the A and B matrices by (layer, module)."""
    path = folder / "adapter_model.safetensors"
    if not path.is_file():
        raise UserError(
            f'adapter folder "{folder}" has no adapter_model.safetensors; save it with safe_serialization.'
        )
    pairs: dict[tuple[int, str], dict[str, torch.Tensor]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 (the file is no mapping)
                layer, module, half = _target(key, config, path)
                pairs.setdefault((layer, module), {})[half] = tensor = file.get_tensor(key)
                require_finite(key, tensor)
    except (OSError, SafetensorError) as error:
        raise UserError(f'cannot read "{path}": {error}; save the adapter again.') from None
    if not pairs:
        raise UserError(f'"{path}" holds no weights; save the adapter again.')
    return pairs


def _target(key: str, config: ModelConfig, path: Path) -> tuple[int, str, str]:
    """Read layer, module, and A or B out of a weight's name."""
    match = _KEY.match(key)
    layer = int(match[1]) if match else 0
    places = fused_places(config, layer)
    modules = {module for parts in places.values() for module, _, _ in parts}
    if match is None or match[2] not in modules:
        known = ", ".join(sorted(module.split(".")[1] for module in modules))
        raise UserError(f'"{path}": target of "{key}" is unknown; known are {known}.')
    if layer >= config.layers:
        raise UserError(f'"{path}": "{key}" is beyond the model\'s {config.layers} layers.')
    return layer, match[2], match[3]


def build_adapter(
    pairs: Mapping[tuple[int, str], Mapping[str, torch.Tensor]],
    config: ModelConfig,
    scale: float,
    dtype: torch.dtype,
    *,
    name: str,
    rank: int,
) -> Adapter:
    """Fuse A and B matrices by (layer, module) to the layout of the model's weights."""
    layers = []
    for index in range(config.layers):
        updates = {
            place: _fuse(
                [(module, outputs, inputs, pairs.get((index, module))) for module, outputs, inputs in parts],
                index,
                scale,
                dtype,
            )
            for place, parts in fused_places(config, index).items()
        }
        layers.append({place: update for place, update in updates.items() if update is not None})
    return Adapter(name, rank, layers)


def _fuse(
    parts: list[tuple[str, int, int, Mapping[str, torch.Tensor] | None]],
    index: int,
    scale: float,
    dtype: torch.dtype,
) -> LowRank | None:
    """Stack the A matrices and set the B matrices on a diagonal; None where no part has an update."""
    downs, ups = [], []
    for module, outputs, inputs, pair in parts:
        if pair is None:
            ups.append(torch.zeros(outputs, 0))
            continue
        where = f"adapter weight of layer {index}, {module}"
        if set(pair) != {"A", "B"}:
            raise UserError(f"{where}: only lora_{min(pair)} is there; save the adapter again.")
        down, up = pair["A"], pair["B"]
        if (
            down.dim() != 2
            or up.dim() != 2
            or down.shape[1] != inputs
            or up.shape != (outputs, down.shape[0])
        ):
            raise UserError(
                f"{where} has shapes {list(down.shape)} and {list(up.shape)}, the model asks for "
                f"[rank, {inputs}] and [{outputs}, rank]; use an adapter of this model."
            )
        downs.append(down)
        ups.append(up.double() * scale)
    if not downs:
        return None
    diagonal = torch.block_diag(*(up.double() for up in ups))
    return LowRank(torch.cat(downs).to(dtype), diagonal.to(dtype))


def random_adapter(config: ModelConfig, dtype: torch.dtype, *, rank: int = 4, seed: int = 0) -> Adapter:
    """Make an adapter of random weights on all projections, for tests and conformance runs."""
    generator = torch.Generator().manual_seed(seed)
    pairs: dict[tuple[int, str], dict[str, torch.Tensor]] = {}
    for index in range(config.layers):
        for parts in fused_places(config, index).values():
            for module, outputs, inputs in parts:
                down = torch.randn(rank, inputs, generator=generator, dtype=torch.float64) / math.sqrt(inputs)
                up = torch.randn(outputs, rank, generator=generator, dtype=torch.float64) / math.sqrt(rank)
                pairs[index, module] = {"A": down, "B": up}
    return build_adapter(pairs, config, 1.0, dtype, name=f"random-{seed}", rank=rank)
