"""Draft models of random weights, under the names of published checkpoints: for tests, conformance and toys.

They draft badly, as untrained heads do; what they show is that an algorithm runs and that its output is the target's.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from fsm_spec.executor.models.config import ModelConfig
from fsm_spec.executor.models.context_head import ContextHead, ContextHeadConfig
from fsm_spec.executor.models.drafter import Drafter
from fsm_spec.executor.models.feature_head import FeatureHead, FeatureHeadConfig
from fsm_spec.executor.models.language_drafter import LanguageDrafter
from fsm_spec.executor.models.random import Draw, random_weights
from fsm_spec.executor.models.token_heads import MODULE, TokenHeads
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.table import Table

Weights = dict[str, torch.Tensor]
_EXACT = torch.float64


def random_language_drafter(
    target: Transformer, *, layers: int = 1, seed: int = 1, dtype: torch.dtype = _EXACT
) -> LanguageDrafter:
    """Make a language model of the target's width and vocabulary, with few layers."""
    config = replace(target.config, layers=layers)
    return LanguageDrafter(
        Transformer(config, random_weights(config, seed, dtype), target.dtype), target.config
    )


def context_head_weights(
    config: ContextHeadConfig, target: ModelConfig, seed: int, dtype: torch.dtype = _EXACT
) -> Weights:
    """Draw the weights of a DFlash or DSpark checkpoint; without embedding and head, which are the target's."""
    draw, model = Draw(seed + 1, dtype), config.model
    weights = {
        name.removeprefix("model."): tensor
        for name, tensor in random_weights(model, seed, dtype).items()
        if "embed_tokens" not in name and "lm_head" not in name
    }
    weights["fc.weight"] = draw.matrix(model.hidden, len(config.capture) * target.hidden)
    weights["hidden_norm.weight"] = draw.norm(model.hidden)
    rank = config.markov_rank
    if config.markov is not None:
        weights["markov_head.markov_w1.weight"] = draw.matrix(model.vocab, rank, math.sqrt(rank))
        weights["markov_head.markov_w2.weight"] = draw.matrix(model.vocab, rank)
    if config.markov == "gated":
        weights["markov_head.gate_proj.weight"] = draw.matrix(rank, model.hidden + rank)
        weights["markov_head.gate_proj.bias"] = draw.matrix(rank, 1, 0.1)[:, 0]
    if config.markov == "rnn":
        weights["markov_head.joint_proj.weight"] = draw.matrix(3 * rank, 2 * rank + model.hidden)
        weights["markov_head.joint_proj.bias"] = draw.matrix(3 * rank, 1, 0.1)[:, 0]
    if config.confidence:
        inputs = model.hidden + (rank if config.confidence_with_markov else 0)
        weights["confidence_head.proj.weight"] = draw.matrix(1, inputs)
        weights["confidence_head.proj.bias"] = draw.matrix(1, 1)[0]
    return weights


def random_context_head(
    target: Transformer,
    *,
    layers: int = 1,
    block: int = 8,
    markov: str | None = None,
    seed: int = 1,
    dtype: torch.dtype = _EXACT,
) -> ContextHead:
    """Make a head on two of the target's layers; with `markov` also a confidence head over its embeddings."""
    config = ContextHeadConfig(
        replace(target.config, layers=layers, tied=False),
        (0, target.config.layers - 1),
        block,
        target.config.mask_token_id,
        markov,
        markov_rank=0 if markov is None else 4,
        confidence=markov is not None,
        confidence_with_markov=markov is not None,
    )
    return ContextHead(config, context_head_weights(config, target.config, seed, dtype), target, target.dtype)


def feature_head_weights(config: FeatureHeadConfig, seed: int, dtype: torch.dtype = _EXACT) -> Weights:
    """Draw the weights of an EAGLE-3 checkpoint, without an embedding, which is the target's.

    Draft ids stand for target ids in even steps, so that `d2t` is not trivial.
    """
    draw, model = Draw(seed + 1, dtype), config.model
    drawn = random_weights(model, seed, dtype)
    weights = {
        name.replace("model.layers.0.", "midlayer."): tensor
        for name, tensor in drawn.items()
        if name.startswith("model.layers.0.")
    }
    for place in "qkv":
        name = f"midlayer.self_attn.{place}_proj.weight"
        weights[name] = torch.cat((weights[name], draw.matrix(*weights[name].shape)), 1)
    weights |= {
        "midlayer.hidden_norm.weight": draw.norm(model.hidden),
        "norm.weight": draw.norm(model.hidden),
        "fc.weight": draw.matrix(model.hidden, len(config.capture) * config.target_hidden),
        "lm_head.weight": draw.matrix(config.draft_vocab, model.hidden, 4.0),
    }
    if config.draft_vocab < model.vocab:
        ids = torch.arange(config.draft_vocab) * (model.vocab // config.draft_vocab)
        weights["d2t"] = ids - torch.arange(config.draft_vocab)
        weights["t2d"] = torch.zeros(model.vocab, dtype=torch.bool).index_fill_(0, ids, value=True)
    return weights


def random_feature_head(
    target: Transformer, *, draft_vocab: int | None = None, seed: int = 1, dtype: torch.dtype = _EXACT
) -> FeatureHead:
    """Make a head on the target's embedding, a middle and the last stream."""
    layers = target.config.layers
    config = FeatureHeadConfig(
        replace(target.config, layers=1, tied=False),
        (-1, layers // 2 - 1, layers - 1),
        target.config.hidden,
        target.config.vocab if draft_vocab is None else draft_vocab,
    )
    return FeatureHead(config, feature_head_weights(config, seed, dtype), target, target.dtype)


def token_head_weights(target: ModelConfig, seed: int, dtype: torch.dtype = _EXACT) -> Weights:
    """Draw the module's share of a MiMo checkpoint."""
    draw, model = Draw(seed + 1, dtype), replace(target, layers=1)
    weights = {
        name.replace("model.layers.0.", MODULE): tensor
        for name, tensor in random_weights(model, seed, dtype).items()
        if name.startswith("model.layers.0.")
    }
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        weights[f"{MODULE}{name}.weight"] = draw.norm(model.hidden)
    weights[f"{MODULE}input_proj.weight"] = draw.matrix(model.hidden, 2 * model.hidden)
    return weights


def random_token_heads(target: Transformer, *, seed: int = 1, dtype: torch.dtype = _EXACT) -> TokenHeads:
    """Make a module for a target."""
    return TokenHeads(token_head_weights(target.config, seed, dtype), target, target.dtype)


def random_drafters(
    table: Table, target: Transformer, *, seed: int = 1, dtype: torch.dtype = _EXACT
) -> dict[str, Drafter]:
    """Make a random draft model for each that a table declares, with a head over the token before where it is read.

    Weights are drawn in `dtype`, on torch's default device.
    """
    heads = {
        plan.model
        for plan in table.forwards.values()
        for operator in plan.operators
        if operator.key == "sample:markov"
    }
    return {
        name: _random(plan.kind, target, "vanilla" if name in heads else None, seed, dtype)
        for name, plan in table.models.items()
    }


def _random(kind: str, target: Transformer, markov: str | None, seed: int, dtype: torch.dtype) -> Drafter:
    if kind == "language_model":
        return random_language_drafter(target, seed=seed, dtype=dtype)
    if kind == "context_head":
        return random_context_head(target, markov=markov, seed=seed, dtype=dtype)
    if kind == "feature_head":
        return random_feature_head(target, seed=seed, dtype=dtype)
    return random_token_heads(target, seed=seed, dtype=dtype)
