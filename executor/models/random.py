"""Small models of random weights, for tests and conformance: fast, and their greedy text is not a loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypedDict, Unpack

import torch

from fsm_spec.executor.models import architectures as names
from fsm_spec.executor.models.config import ModelConfig
from fsm_spec.executor.models.transformer import Transformer


class TinyShape(TypedDict, total=False):
    """Name what may be chosen of a small model, with the defaults of `tiny_config`."""

    vocab: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    qk_norm: bool
    tied: bool
    context: int


def tiny_config(**shape: Unpack[TinyShape]) -> ModelConfig:
    """Describe a small model; it has no end token, so that a run ends by length."""
    hidden, heads, vocab = shape.get("hidden", 64), shape.get("heads", 4), shape.get("vocab", 64)
    return ModelConfig(
        hidden=hidden,
        layers=shape.get("layers", 2),
        heads=heads,
        kv_heads=shape.get("kv_heads", 2),
        head_dim=hidden // heads,
        ffn=2 * hidden,
        vocab=vocab,
        context=shape.get("context", 4096),
        qk_norm=shape.get("qk_norm", False),
        tied=shape.get("tied", False),
        mask_token_id=vocab - 1,
        bos_token_id=0,
    )


class Draw:
    """Draw weights from one seed, on torch's default device: matrices by 1 / sqrt(inputs).

    Drawn in float64, the same seed gives the same weights in every dtype; large models on a GPU are drawn narrower.
    """

    def __init__(self, seed: int, dtype: torch.dtype = torch.float64) -> None:
        self.dtype = dtype
        self.generator = torch.Generator(torch.get_default_device()).manual_seed(seed)

    def matrix(self, outputs: int, inputs: int, gain: float = 1.0) -> torch.Tensor:
        """Draw a weight [outputs, inputs]."""
        drawn = torch.randn(outputs, inputs, generator=self.generator, dtype=self.dtype)
        return drawn.mul_(gain / math.sqrt(inputs))

    def norm(self, size: int) -> torch.Tensor:
        """Draw the weight of a norm, near 1."""
        return 1 + 0.1 * torch.randn(size, generator=self.generator, dtype=self.dtype)


def random_weights(
    config: ModelConfig, seed: int, dtype: torch.dtype = torch.float64
) -> dict[str, torch.Tensor]:
    """Draw weights under published names, as `Draw` does.

    Queries are drawn 4 times as large, so that attention picks few rows and the next token depends on the text.
    """
    draw = Draw(seed, dtype)
    matrix, norm = draw.matrix, draw.norm
    query, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    weights = {
        names.EMBEDDING: matrix(config.vocab, config.hidden, math.sqrt(config.hidden)),
        names.FINAL_NORM: norm(config.hidden),
    }
    if not config.tied:
        weights[names.HEAD] = matrix(config.vocab, config.hidden, 4.0)
    for index in range(config.layers):
        layer = {
            names.ATTENTION_NORM: norm(config.hidden),
            names.FFN_NORM: norm(config.hidden),
            f"{names.QUERY}.weight": matrix(query, config.hidden, 4.0),
            f"{names.KEY}.weight": matrix(keys, config.hidden),
            f"{names.VALUE}.weight": matrix(keys, config.hidden, 2.0),
            f"{names.OUTPUT}.weight": matrix(config.hidden, query, 2.0),
        }
        layer |= _feed_forward(config, index, matrix)
        if config.qk_norm:
            layer[names.QUERY_NORM] = 3 * norm(config.head_dim)
            layer[names.KEY_NORM] = norm(config.head_dim)
        for name, size in ((names.QUERY, query), (names.KEY, keys), (names.VALUE, keys)):
            if config.qkv_bias:
                layer[f"{name}.bias"] = matrix(size, 1, 0.1)[:, 0]
        if config.output_bias:
            layer[f"{names.OUTPUT}.bias"] = matrix(config.hidden, 1, 0.1)[:, 0]
        weights |= {f"model.layers.{index}.{name}": tensor for name, tensor in layer.items()}
    return weights


def _feed_forward(
    config: ModelConfig, index: int, matrix: Callable[[int, int, float], torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Draw one network, or a router and a network an expert."""

    def network(width: int, called: Callable[[str], str]) -> dict[str, torch.Tensor]:
        shapes = {names.GATE: (width, config.hidden), names.UP: (width, config.hidden)}
        shapes[names.DOWN] = (config.hidden, width)
        return {f"{called(module)}.weight": matrix(*shape, 2.0) for module, shape in shapes.items()}

    experts = config.experts
    if experts is None or index not in experts.layers:
        return network(config.ffn, str)
    drawn = {names.ROUTER: matrix(experts.count, config.hidden, 2.0)}
    for number in range(experts.count):
        drawn |= network(experts.ffn, partial(names.expert, number))
    return drawn


def tiny_model(
    *, dtype: torch.dtype = torch.float64, seed: int = 0, **shape: Unpack[TinyShape]
) -> Transformer:
    """Make a random model in memory; the same seed gives the same weights in every dtype, up to rounding."""
    config = tiny_config(**shape)
    return Transformer(config, random_weights(config, seed), dtype)
