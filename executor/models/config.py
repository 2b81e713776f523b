"""The numbers of a model, out of config.json and generation_config.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsm_spec.errors import UserError
from fsm_spec.executor.models.architectures import BY_MODEL_TYPE, BY_NAME, Architecture
from fsm_spec.executor.models.json_numbers import NumberReader
from fsm_spec.executor.models.rope import RopeScaling, read_rope


@dataclass(frozen=True)
class Experts:
    """Say how a feed-forward layer mixes experts."""

    count: int
    per_token: int
    ffn: int
    """inner width of one expert"""
    normalised: bool
    """the weights of the chosen experts sum to 1"""
    layers: frozenset[int]
    """the layers that mix experts; the others are dense"""


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
    experts: Experts | None = None
    mask_token_id: int | None = None
    block_size: int | None = None
    """tokens a block of the diffusion objective that the model was trained on"""
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


def read_names(folder: Path) -> Callable[[str], str]:
    """Give what maps the names of `architectures.py` to those in the files of a model folder."""
    path = folder / "config.json"
    return find_architecture(read_json(path), str(path)).called


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises UserError where the file holds anything else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f'cannot read "{path}": {error}; fetch the model again.') from None
    if not isinstance(value, dict):
        raise UserError(f'"{path}" holds no JSON object; fetch the model again.')
    return value


def parse_config(published: dict[str, Any], generation: dict[str, Any], where: str) -> ModelConfig:
    """Translate the keys of a published config.json; `where` names it in errors."""
    reader = NumberReader(published, where)
    architecture = find_architecture(published, where)
    if published.get("hidden_act", "silu") != "silu" or reader.flag("mlp_bias"):
        raise UserError(
            f"{where}: only SwiGLU feed-forward layers without bias are supported; use another model."
        )
    bias = reader.flag("attention_bias")
    hidden, heads = reader.count("hidden_size"), reader.count("num_attention_heads")
    kv_heads = reader.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise UserError(
            f"{where}: {heads} attention heads cannot share {kv_heads} KV heads; fix num_key_value_heads."
        )
    head_dim = reader.count("head_dim", hidden // heads)
    if head_dim % 2:
        raise UserError(f"{where}: head_dim has to be even for a rotary embedding, not {head_dim}.")
    rope_theta, scaling = read_rope(reader)
    layers = reader.count("num_hidden_layers")
    experts = _experts(reader, layers) if architecture.experts else None
    return ModelConfig(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        # Models whose layers are all mixtures may leave the width of dense layers out.
        ffn=reader.count("intermediate_size", None if experts is None else experts.ffn),
        vocab=reader.count("vocab_size"),
        context=_context(reader),
        rope_theta=rope_theta,
        rope_scaling=scaling,
        rms_eps=reader.number("rms_norm_eps", 1e-6),
        qk_norm=architecture.qk_norm,
        qkv_bias=architecture.qkv_bias or bias,
        output_bias=bias,
        tied=reader.flag("tie_word_embeddings"),
        experts=experts,
        block_size=reader.optional_count("block_size"),
        mask_token_id=reader.token("mask_token_id"),
        bos_token_id=reader.token("bos_token_id"),
        eos_token_ids=_end_tokens(reader, generation),
    )


def find_architecture(published: dict[str, Any], where: str) -> Architecture:
    """Look up the architecture by class name, else by model type; raises UserError for one that is not known."""
    names = published.get("architectures") or []
    model_type = published.get("model_type")
    for name in names if isinstance(names, list) else []:
        if isinstance(name, str) and name in BY_NAME:
            return BY_NAME[name]
    if not names and isinstance(model_type, str) and model_type in BY_MODEL_TYPE:
        return BY_MODEL_TYPE[model_type]
    known = ", ".join(BY_NAME)
    raise UserError(f"{where}: architecture {json.dumps(names or model_type)} is unknown; known are {known}.")


def _experts(reader: NumberReader, layers: int) -> Experts:
    """Read how a mixture of experts is laid out (Qwen3-MoE's keys)."""
    # transformers 5 writes the second name.
    written = "num_local_experts" if "num_local_experts" in reader.values else "num_experts"
    count, per_token = reader.count(written), reader.count("num_experts_per_tok", 8)
    if per_token > count:
        raise UserError(
            f"{reader.where}: a token cannot choose {per_token} of {count} experts; fix num_experts_per_tok."
        )
    dense = reader.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(index) is int for index in dense):
        raise reader.refuse("mlp_only_layers", "a list of layer numbers")
    step = reader.count("decoder_sparse_step", 1)
    return Experts(
        count,
        per_token,
        ffn=reader.count("moe_intermediate_size"),
        normalised=reader.flag("norm_topk_prob"),
        layers=frozenset(range(step - 1, layers, step)) - frozenset(dense),
    )


def _context(reader: NumberReader) -> int:
    """Read the context length, cut to the window of models with sliding attention, inside which both are equal."""
    context = reader.count("max_position_embeddings")
    window, used = reader.optional_count("sliding_window"), reader.flag("use_sliding_window", default=True)
    return context if window is None or not used else min(context, window)


def _end_tokens(reader: NumberReader, generation: dict[str, Any]) -> tuple[int, ...]:
    """Read the tokens that end a text; generation_config.json, where it names them, wins."""
    named = NumberReader(generation, reader.where.replace("config.json", "generation_config.json"))
    return (named if "eos_token_id" in generation else reader).tokens("eos_token_id")
