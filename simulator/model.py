"""Shapes of decoder-only transformers: parameter counts and bytes, computed from a published config.json."""

from __future__ import annotations

import json
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fsm_spec.errors import UserError
from fsm_spec.simulator import catalogue

# Bytes of one weight. int4: groups of 128 weights share one 16-bit scale, as GPTQ and AWQ checkpoints do.
# fp8 has static scales; fp8-block one for each 128 x 128 weights; fp8-dynamic finds those of activations at run time.
WEIGHT_BYTES = {
    "float32": 4.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8-block": 1.0,
    "fp8-dynamic": 1.0,
    "int4": 0.5 + 2 / 128,
}
# Bytes of one number in the KV cache.
KV_BYTES = {"float32": 4, "bf16": 2, "fp8": 1}
DTYPE_NAMES = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "fp16": "bf16",
    "fp32": "float32",
}  # fp16 costs what bf16 does

# Families whose queries and keys are normalised by head (a weight of the head's size each), by their
# `model_type`.
QUERY_KEY_NORM_TYPES = frozenset({"qwen3", "qwen3_moe"})
# Families whose query, key and value projections have a bias although config.json does not say so.
QKV_BIAS_TYPES = frozenset({"qwen2"})
EXPERT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts")
# Families of mixtures whose experts are gated MLPs in every layer, with grouped-query attention.
EXPERT_TYPES = frozenset({"mixtral", "qwen3_moe"})


def dtype_name(text: str, known: dict[str, Any], option: str = "--dtype") -> str:
    """Return the short name of a number format, or raise UserError with the names of `known`."""
    name = DTYPE_NAMES.get(text.lower(), text.lower())
    if name not in known:
        raise UserError(f"{option} {text} is unknown; choose one of {', '.join(known)}")
    return name


class ModelShape(BaseModel):
    """Describe a transformer with gated MLPs, or experts that are ones, and grouped KV heads, by its config.json."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    source: str = Field(default="", description="where the numbers come from")
    model_type: str = ""
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    max_position_embeddings: int = Field(default=0, ge=0, description="context length; 0 where unknown")
    experts: int = Field(default=0, ge=0, description="experts a layer; 0: a dense model")
    experts_a_row: int = Field(default=0, ge=0, description="experts that each token chooses")
    expert_width: int = Field(default=0, ge=0, description="inner size of one expert")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Fill the fields that a config.json may leave out, as the model library does."""
        done = {key: value for key, value in config.items() if value is not None}
        heads = done.get("num_attention_heads")
        done.setdefault("num_key_value_heads", heads)
        if isinstance(heads, int) and heads > 0 and isinstance(done.get("hidden_size"), int):
            done.setdefault("head_dim", done["hidden_size"] // heads)
        experts = next((done[field] for field in EXPERT_FIELDS if done.get(field) not in (None, 0, 1)), 0)
        if experts:
            done.setdefault("experts", experts)
            done.setdefault("experts_a_row", done.get("num_experts_per_tok", 0))
            done.setdefault(
                "expert_width", done.get("moe_intermediate_size") or done.get("intermediate_size", 0)
            )
        return done

    @property
    def query_key_norm(self) -> bool:
        """Say whether queries and keys are normalised by head."""
        return self.model_type in QUERY_KEY_NORM_TYPES

    @cached_property
    def projections(self) -> tuple[tuple[int, int], ...]:
        """Return (inputs, outputs) of one block's linear layers: q, k, v, o, then gate, up, down or the router."""
        hidden, inner = self.hidden_size, self.intermediate_size
        query, key = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        attention = (hidden, query), (hidden, key), (hidden, key), (query, hidden)
        if self.experts:
            return (*attention, (hidden, self.experts))
        return (*attention, (hidden, inner), (hidden, inner), (inner, hidden))

    @cached_property
    def layer_gemm_parameters(self) -> int:
        """Return the weights of one block's linear layers, which every row multiplies."""
        return sum(inputs * outputs for inputs, outputs in self.projections)

    @property
    def layer_small_parameters(self) -> int:
        """Return the norms and biases of one block."""
        bias = 0
        if self.attention_bias:
            bias += sum(outputs for _, outputs in self.projections[:4])
        elif self.model_type in QKV_BIAS_TYPES:
            bias += sum(outputs for _, outputs in self.projections[:3])
        if self.mlp_bias:
            bias += sum(outputs for _, outputs in self.projections[4:])
        return 2 * self.hidden_size + (2 * self.head_dim if self.query_key_norm else 0) + bias

    @cached_property
    def gemm_parameters(self) -> int:
        """Return the weights of all blocks' linear layers."""
        return self.num_hidden_layers * self.layer_gemm_parameters

    @property
    def block_parameters(self) -> int:
        """Return the weights of all blocks' linear layers and experts."""
        return self.gemm_parameters + self.experts * self.expert_parameters

    @property
    def linear_kernels(self) -> int:
        """Return the kernels of a forward's linear layers: query, key and value are fused, as are gate and up."""
        return self.num_hidden_layers * (2 if self.experts else 4)

    @property
    def expert_parameters(self) -> int:
        """Return the weights of one expert, summed over all layers."""
        return self.num_hidden_layers * 3 * self.hidden_size * self.expert_width if self.experts else 0

    @property
    def expert_layers(self) -> int:
        """Return the layers that have experts."""
        return self.num_hidden_layers if self.experts else 0

    @property
    def row_activation_bytes(self) -> float:
        """Return the bytes that one row's norms, rotary embedding and activations read and write, 16 bits each."""
        heads = (self.num_attention_heads + self.num_key_value_heads) * self.head_dim
        inner = self.experts_a_row * self.expert_width if self.experts else self.intermediate_size
        return 2.0 * (4 * self.hidden_size + 2 * heads + 3 * inner) * self.num_hidden_layers

    @property
    def row_linear_inputs(self) -> int:
        """Return the numbers of one row that all fused linear layers of dense blocks read."""
        query = self.num_attention_heads * self.head_dim
        return (2 * self.hidden_size + query + self.intermediate_size) * self.num_hidden_layers

    @cached_property
    def head_parameters(self) -> int:
        """Return the weights of the output head, which may be the embedding again."""
        return self.vocab_size * self.hidden_size

    @cached_property
    def parameters(self) -> int:
        """Return the parameter count as published: tied embeddings count once."""
        tables = self.head_parameters * (1 if self.tie_word_embeddings else 2)
        return (
            tables
            + self.block_parameters
            + self.num_hidden_layers * self.layer_small_parameters
            + self.hidden_size
        )

    def weight_bytes(self, dtype: str) -> int:
        """Return the bytes of all weights; below 16 bits only the blocks' linear layers shrink."""
        per_weight = WEIGHT_BYTES[dtype]
        rest = self.parameters - self.block_parameters
        return int(self.block_parameters * per_weight + rest * max(2.0, per_weight))

    def kv_bytes(self, dtype: str = "bf16") -> int:
        """Return the bytes of one token's keys and values in all layers."""
        return self.num_hidden_layers * self.layer_kv_bytes(dtype)

    def layer_kv_bytes(self, dtype: str = "bf16", tensor_parallel: int = 1) -> int:
        """Return the bytes of one token's keys and values in one layer, on all accelerators together.

        KV heads that do not divide are copied, so that every accelerator holds at least one.
        """
        heads = tensor_parallel * -(-self.num_key_value_heads // tensor_parallel)
        return 2 * heads * self.head_dim * KV_BYTES[dtype]

    def adapter_parameters(self, rank: int) -> int:
        """Return the weights of a low-rank adapter on all linear layers (LoRA, arXiv 2106.09685)."""
        return self.num_hidden_layers * rank * sum(inputs + outputs for inputs, outputs in self.projections)


@cache
def _configs() -> dict[str, dict[str, Any]]:
    """Read the shipped config files, by model name."""
    found = sorted(catalogue.folder().joinpath("models").iterdir(), key=lambda entry: entry.name)
    configs = [
        json.loads(entry.read_text(encoding="utf-8")) for entry in found if entry.name.endswith(".json")
    ]
    return {config["_name"]: config for config in configs}


def model_names() -> list[str]:
    """Return the names of the shipped models."""
    return list(_configs())


def published_parameters() -> dict[str, int]:
    """Return the published parameter counts of the shipped models that have one."""
    return {name: config["_parameters"] for name, config in _configs().items() if "_parameters" in config}


def load_model(name: str) -> ModelShape:
    """Return the shape of a shipped model, or of a config.json or a folder that holds one.

    Raises UserError for an unknown name (with the nearest ones) and for a config that does not describe a
    dense model.
    """
    path = Path(name)
    if path.is_dir():
        return _read(path / "config.json", path.resolve().name)
    if path.suffix == ".json" or path.is_file():
        return _read(path, path.resolve().parent.name if path.name == "config.json" else path.stem)
    aliases = {key: config.get("_aliases", ()) for key, config in _configs().items()}
    key = catalogue.find(name, aliases, "model", way_out="; a path to a config.json or its folder works too")
    return _shape(_configs()[key], key, key)


def _read(path: Path, name: str) -> ModelShape:
    """Read the shape from a file."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); give a config.json or a folder with one"
        ) from error
    except ValueError as error:
        raise UserError(
            f"{path}: is not JSON; give the config.json that was published with the model"
        ) from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: is no JSON object; give the config.json that was published with the model")
    return _shape(config, name, str(path))


def _shape(config: dict[str, Any], name: str, place: str) -> ModelShape:
    """Check a config and turn it into a shape."""
    experts = next((field for field in EXPERT_FIELDS if (config.get(field) or 0) not in {0, 1}), None)
    if experts and config.get("model_type") not in EXPERT_TYPES:
        raise UserError(
            f"{place}: {experts} makes it a mixture of experts, and only those of the types"
            f" {', '.join(sorted(EXPERT_TYPES))} can be priced; choose one of them or a dense model"
        )
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", True):
        raise UserError(
            f"{place}: sliding_window {window} is not modelled; set it to null to price full attention"
        )
    known = {"name": config.get("_name", name), "source": config.get("_source", place)}
    try:
        return ModelShape.model_validate({**config, **known})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise UserError(
            f"{place}: {field}: {message}; give the config.json of a dense decoder-only model"
        ) from error
