"""The numbers of a model, out of config.json and generation_config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsm_spec.errors import UserError
from fsm_spec.executor.models.architectures import BY_MODEL_TYPE, BY_NAME, Architecture


@dataclass(frozen=True)
class RopeScaling:
    """Say how rotary frequencies are stretched for longer contexts."""

    kind: str
    """`linear`, `llama3` (by wavelength) or `factors` (one divisor a frequency)"""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_context: int = 0
    factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class ModelConfig:
    """Hold the structure and the special tokens of a decoder-only transformer."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    rms_eps: float = 1e-5
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    tied: bool = False
    mask_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = field(default=())


def read_config(folder: Path) -> ModelConfig:
    """Read config.json, and generation_config.json where there is one, of a Hugging Face model folder.

    Raises UserError where a file is missing or broken, or the architecture is not in `architectures.py`.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(
            f'model folder "{folder}" has no config.json; give a Hugging Face model folder or a GGUF file.'
        )
    published = read_json(path)
    generation_path = folder / "generation_config.json"
    generation = read_json(generation_path) if generation_path.is_file() else {}
    return parse_config(published, generation, str(path))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises UserError where the file holds anything else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f'cannot read "{path}": {error}; fetch the model again.') from None
    if not isinstance(value, dict):
        raise UserError(f'"{path}" holds no JSON object; fetch the model again.')
    return value


def parse_config(published: dict[str, Any], generation: dict[str, Any], where: str) -> ModelConfig:
    """Translate the keys of a published config.json; `where` names it in errors."""
    reader = _Reader(published, where)
    architecture = _architecture(published, where)
    if published.get("hidden_act", "silu") != "silu" or published.get("mlp_bias"):
        raise UserError(
            f"{where}: only SwiGLU feed-forward layers without bias are supported; use another model."
        )
    bias = bool(published.get("attention_bias"))
    hidden, heads = reader.count("hidden_size"), reader.count("num_attention_heads")
    kv_heads = reader.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise UserError(
            f"{where}: {heads} attention heads cannot share {kv_heads} KV heads; fix num_key_value_heads."
        )
    head_dim = reader.count("head_dim", hidden // heads)
    if head_dim % 2:
        raise UserError(f"{where}: head_dim has to be even for a rotary embedding, not {head_dim}.")
    rope_theta, scaling = _rope(reader)
    return ModelConfig(
        hidden=hidden,
        layers=reader.count("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=reader.count("intermediate_size"),
        vocab=reader.count("vocab_size"),
        context=_context(reader),
        rope_theta=rope_theta,
        rope_scaling=scaling,
        rms_eps=reader.number("rms_norm_eps", 1e-6),
        qk_norm=architecture.qk_norm,
        qkv_bias=architecture.qkv_bias or bias,
        output_bias=bias,
        tied=bool(published.get("tie_word_embeddings", False)),
        mask_token_id=_token(published.get("mask_token_id")),
        bos_token_id=_token(published.get("bos_token_id")),
        eos_token_ids=_tokens(generation.get("eos_token_id", published.get("eos_token_id"))),
    )


class _Reader:
    """Read numbers of a JSON object with errors that name file and key."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def count(self, key: str, default: int | None = None) -> int:
        """Read a positive integer; null means the default."""
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f'{self.where}: "{key}" has to be a positive integer, not {json.dumps(value)}.')
        return value

    def number(self, key: str, default: float) -> float:
        """Read a positive number; null means the default."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise UserError(f'{self.where}: "{key}" has to be a positive number, not {json.dumps(value)}.')
        return float(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Read a list of positive numbers."""
        value = self.values.get(key)
        items = value if isinstance(value, list) else []
        if not items or not all(isinstance(item, int | float) and item > 0 for item in items):
            raise UserError(
                f'{self.where}: "{key}" has to be a list of positive numbers, not {json.dumps(value)}.'
            )
        return tuple(float(item) for item in items)


def _architecture(published: dict[str, Any], where: str) -> Architecture:
    """Look up the architecture by class name, else by model type."""
    names = published.get("architectures") or []
    model_type = published.get("model_type")
    for name in names if isinstance(names, list) else []:
        if name in BY_NAME:
            return BY_NAME[name]
    if not names and model_type in BY_MODEL_TYPE:
        return BY_MODEL_TYPE[model_type]
    known = ", ".join(BY_NAME)
    raise UserError(f"{where}: architecture {json.dumps(names or model_type)} is unknown; known are {known}.")


def _context(reader: _Reader) -> int:
    """Read the context length, cut to the window of models with sliding attention, inside which both are equal."""
    context = reader.count("max_position_embeddings")
    window = reader.values.get("sliding_window")
    if isinstance(window, int) and reader.values.get("use_sliding_window", True):
        return min(context, window)
    return context


def _rope(reader: _Reader) -> tuple[float, RopeScaling | None]:
    """Read base and scaling of the rotary embedding, in the old keys or under `rope_parameters`."""
    nested = reader.values.get("rope_parameters")
    if isinstance(nested, dict):
        reader = _Reader({"rope_scaling": nested, **nested}, reader.where)
    theta = reader.number("rope_theta", 10000.0)
    if reader.number("partial_rotary_factor", 1.0) != 1.0:
        raise UserError(f"{reader.where}: a partial rotary embedding is not supported; use another model.")
    scaling = reader.values.get("rope_scaling")
    if not isinstance(scaling, dict):
        return theta, None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    values = _Reader(scaling, reader.where)
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling(kind, factor=values.number("factor", 1.0))
    if kind == "factors":
        return theta, RopeScaling(kind, factors=values.numbers("factors"))
    if kind == "llama3":
        return theta, RopeScaling(
            kind,
            factor=values.number("factor", 1.0),
            low_freq_factor=values.number("low_freq_factor", 1.0),
            high_freq_factor=values.number("high_freq_factor", 4.0),
            original_context=values.count("original_max_position_embeddings"),
        )
    raise UserError(
        f"{reader.where}: rope scaling {json.dumps(kind)} is unknown; known are linear and llama3."
    )


def _token(value: object) -> int | None:
    """Read one token id; configs write null, or a negative number, for none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _tokens(value: object) -> tuple[int, ...]:
    """Read one token id or a list of them."""
    ids = [_token(item) for item in (value if isinstance(value, list) else [value])]
    return tuple(item for item in ids if item is not None)
