"""Draft models: each against a dense reading, with its cache and without, and out of files in published layouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fsm_spec.errors import UserError
from fsm_spec.executor.cache import PagedCache
from fsm_spec.executor.models.config import ModelConfig
from fsm_spec.executor.models.context_head import (
    ContextHead,
    ContextHeadConfig,
    load_context_head,
    parse_context_head,
)
from fsm_spec.executor.models.drafter import ContextRows, Drafter
from fsm_spec.executor.models.feature_head import FeatureHead, FeatureHeadConfig, load_feature_head
from fsm_spec.executor.models.language_drafter import LanguageDrafter, first_layers
from fsm_spec.executor.models.random import random_weights, tiny_config, tiny_model
from fsm_spec.executor.models.random_drafters import (
    context_head_weights,
    feature_head_weights,
    random_context_head,
    random_feature_head,
    random_language_drafter,
    random_token_heads,
    token_head_weights,
)
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.executor.models.token_heads import MODULE, TokenHeads, load_token_heads
from fsm_spec.executor.models.transformer import Transformer, rotary_frequencies

Tensor = torch.Tensor
Weights = dict[str, Tensor]

CONTEXT, BLOCK = 5, [9, 63, 63]
TOKENS = [5, 9, 2, 40, 11, 7]


def target() -> Transformer:
    """Make a target of three layers with normed queries and keys."""
    return tiny_model(layers=3, qk_norm=True)


def block(tokens: list[int], start: int, *, causal: bool) -> RowBatch:
    """Lay out one request's rows at positions and slots start .. start + n - 1; all give logits."""
    count = len(tokens)
    full = torch.ones(count, count, dtype=torch.bool)
    return RowBatch(
        torch.tensor(tokens),
        torch.arange(start, start + count),
        torch.arange(start, start + count),
        [0, count],
        torch.arange(start)[None],
        [start],
        [full.tril() if causal else full],
        torch.arange(count),
    )


def new_cache(drafter: Drafter) -> PagedCache:
    """Make a cache of 32 slots."""
    return PagedCache(drafter.config, 8, 4, drafter.dtype)


def drawn(rows: int, width: int, seed: int = 3) -> Tensor:
    """Draw features [rows, width]."""
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# The dense reading ------------------------------------------------------------------------------------------------


def norm(lines: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Apply RMSNorm."""
    return lines / (lines.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def turned(line: Tensor, position: int, config: ModelConfig) -> Tensor:
    """Turn a query or key to its position."""
    half = config.head_dim // 2
    angles = position * rotary_frequencies(config)
    first, second = line[:half], line[half:]
    return torch.cat(
        (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin())
    )


def dense_layer(
    config: ModelConfig, w: Weights, stream: Tensor, read: Tensor, first: int, mask: Tensor, context: Tensor
) -> Tensor:
    """Run rows at positions first.. through one layer, one head at a time; K and V of `context` rows stand before.

    `mask` [rows, context + rows] says what is seen, and context row i stands at position i.
    """
    dim, share = config.head_dim, config.heads // config.kv_heads
    seen = [(context, 0), (read, first)]
    out = torch.zeros(len(read), config.heads * dim, dtype=torch.float64)
    for head in range(config.heads):
        own = slice(head * dim, (head + 1) * dim)
        shared = slice(head // share * dim, (head // share + 1) * dim)
        keys, values = [], []
        for lines, start in seen:
            for offset, line in enumerate(lines):
                key = w["self_attn.k_proj.weight"][shared] @ line
                if config.qk_norm:
                    key = norm(key, w["self_attn.k_norm.weight"], config.rms_eps)
                keys.append(turned(key, start + offset, config))
                values.append(w["self_attn.v_proj.weight"][shared] @ line)
        for row, line in enumerate(read):
            query = w["self_attn.q_proj.weight"][own] @ line
            if config.qk_norm:
                query = norm(query, w["self_attn.q_norm.weight"], config.rms_eps)
            query = turned(query, first + row, config)
            scores = torch.stack([query @ key / dim**0.5 for key in keys])
            shares = scores.masked_fill(~mask[row], -torch.inf).softmax(0)
            out[row, own] = sum((s * v for s, v in zip(shares, values, strict=True)), torch.zeros(dim))
    stream = stream + out @ w["self_attn.o_proj.weight"].T
    inner = norm(stream, w["post_attention_layernorm.weight"], config.rms_eps)
    gate = torch.nn.functional.silu(inner @ w["mlp.gate_proj.weight"].T)
    return stream + (gate * (inner @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T


def under(weights: Weights, prefix: str) -> Weights:
    """Take the weights under a prefix, without it."""
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}


# Heads with the target's hidden states as context ----------------------------------------------------------------


def test_context_head_equals_dense_reading() -> None:
    """Block rows see one another both ways and the whole context, whose K and V come from fused features."""
    model = target()
    config = ContextHeadConfig(replace(model.config, layers=2), (0, 2), 4, 63)
    weights = context_head_weights(config, model.config, 1)
    head = ContextHead(config, weights, model, torch.float64)
    features = drawn(CONTEXT, 2 * model.config.hidden)
    cache = new_cache(head)
    head.write_context(ContextRows(features, torch.arange(CONTEXT), torch.arange(CONTEXT)), cache)
    found = head.forward(block(BLOCK, CONTEXT, causal=False), cache)

    context = norm(features @ weights["fc.weight"].T, weights["hidden_norm.weight"], config.model.rms_eps)
    stream = model.embedding[BLOCK]
    for index in range(2):
        w = under(weights, f"layers.{index}.")
        read = norm(stream, w["input_layernorm.weight"], config.model.rms_eps)
        everything = torch.ones(len(BLOCK), CONTEXT + len(BLOCK), dtype=torch.bool)
        stream = dense_layer(config.model, w, stream, read, CONTEXT, everything, context)
    hidden = norm(stream, weights["norm.weight"], config.model.rms_eps)
    torch.testing.assert_close(found.hidden, hidden, atol=1e-9, rtol=0)
    torch.testing.assert_close(found.logits, (hidden @ model.head.T).float(), atol=1e-4, rtol=0)


def test_context_in_pieces_equals_context_at_once() -> None:
    """Context grows by the accepted run of each round, and blocks of earlier rounds leave no trace."""
    model = target()
    head = random_context_head(model)
    features = drawn(CONTEXT, 2 * model.config.hidden)
    places = torch.arange(CONTEXT)
    whole = new_cache(head)
    head.write_context(ContextRows(features, places, places), whole)
    pieces = new_cache(head)
    for start, stop in ((0, 2), (2, 3), (3, 5)):
        head.write_context(ContextRows(features[start:stop], places[start:stop], places[start:stop]), pieces)
        head.forward(block([1, 63, 63, 63], stop, causal=False), pieces)
    expected = head.forward(block(BLOCK, CONTEXT, causal=False), whole)
    found = head.forward(block(BLOCK, CONTEXT, causal=False), pieces)
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=0)


# Heads with a feature beside each token ---------------------------------------------------------------------------


@pytest.mark.parametrize("norm_before", [False, True])
def test_feature_head_equals_dense_reading(*, norm_before: bool) -> None:
    """The layer's attention reads [normed token, normed feature]; draft ids are laid out over the target's."""
    model = target()
    config = FeatureHeadConfig(
        replace(model.config, layers=1, qk_norm=False), (0, 1, 2), model.config.hidden, 32, norm_before
    )
    weights = feature_head_weights(config, 1)
    head = FeatureHead(config, weights, model, torch.float64)
    features = drawn(len(TOKENS), 3 * model.config.hidden)
    found = head.forward(block(TOKENS, 0, causal=True), new_cache(head), features)

    w, eps = under(weights, "midlayer."), config.model.rms_eps
    stream = features @ weights["fc.weight"].T
    seen = norm(stream, w["hidden_norm.weight"], eps)
    token = norm(model.embedding[TOKENS], w["input_layernorm.weight"], eps)
    mask = torch.ones(len(TOKENS), len(TOKENS)).tril().bool()
    nothing = torch.zeros(0, 2 * model.config.hidden, dtype=torch.float64)
    start = seen if norm_before else stream
    stream = dense_layer(config.model, w, start, torch.cat((token, seen), 1), 0, mask, nothing)
    torch.testing.assert_close(found.hidden, stream, atol=1e-9, rtol=0)
    small = norm(stream, weights["norm.weight"], eps) @ weights["lm_head.weight"].T
    torch.testing.assert_close(found.logits[:, ::2], small.float(), atol=1e-4, rtol=0)
    assert bool((found.logits[:, 1::2] == -torch.inf).all())


def test_token_heads_equal_dense_reading() -> None:
    """The module's stream starts from a projection of [normed hidden state, normed token]."""
    model = target()
    weights = token_head_weights(model.config, 1)
    heads = TokenHeads(weights, model, torch.float64)
    features = drawn(len(TOKENS), model.config.hidden)
    found = heads.forward(block(TOKENS, 0, causal=True), new_cache(heads), features)

    w, eps = under(weights, MODULE), model.config.rms_eps
    token = norm(model.embedding[TOKENS], w["token_layernorm.weight"], eps)
    read = torch.cat((norm(features, w["hidden_layernorm.weight"], eps), token), 1)
    stream = read @ w["input_proj.weight"].T
    mask = torch.ones(len(TOKENS), len(TOKENS)).tril().bool()
    attention = norm(stream, w["input_layernorm.weight"], eps)
    stream = dense_layer(heads.config, w, stream, attention, 0, mask, attention[:0])
    hidden = norm(stream, w["final_layernorm.weight"], eps)
    torch.testing.assert_close(found.hidden, hidden, atol=1e-9, rtol=0)
    torch.testing.assert_close(found.logits, (hidden @ model.head.T).float(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("make", [random_feature_head, random_token_heads])
def test_row_by_row_equals_one_pass(make: Callable[[Transformer], Drafter]) -> None:
    """The head's own cache gives what a pass over the whole text gives."""
    model = target()
    head = make(model)
    features = drawn(len(TOKENS), len(head.capture) * model.config.hidden)
    whole = head.forward(block(TOKENS, 0, causal=True), new_cache(head), features)
    cache = new_cache(head)
    for place, token in enumerate(TOKENS):
        one = head.forward(block([token], place, causal=True), cache, features[place : place + 1])
        torch.testing.assert_close(one.logits[0], whole.logits[place], atol=1e-5, rtol=0)
        torch.testing.assert_close(one.hidden[0], whole.hidden[place], atol=1e-9, rtol=0)


@pytest.mark.parametrize("make", [random_feature_head, random_token_heads])
def test_chains_feed_hidden_states_back(make: Callable[[Transformer], Drafter]) -> None:
    """A later draft reads the head's own state; the features of the first rows are not written over."""
    model = target()
    head = make(model)
    cache, features = new_cache(head), drawn(2, len(head.capture) * model.config.hidden)
    before = features.clone()
    first = head.forward(block(TOKENS[:2], 0, causal=True), cache, features)
    state = first.hidden[1:].clone()
    head.forward(block([int(first.logits[1].argmax())], 2, causal=True), cache, first.hidden[1:])
    assert torch.equal(before, features)
    assert torch.equal(state, first.hidden[1:])


# Language models ---------------------------------------------------------------------------------------------------


def test_first_layers_draft_like_a_model_of_these_layers() -> None:
    """The target's first layers under its own head need no weights of their own."""
    config = tiny_config(layers=3)
    weights = random_weights(config, 0)
    model = Transformer(config, weights, torch.float64)
    shorter = LanguageDrafter(first_layers(model, 2), config)
    alone = LanguageDrafter(Transformer(replace(config, layers=2), weights, torch.float64), config)
    rows = block(TOKENS, 0, causal=True)
    expected = alone.forward(rows, new_cache(alone)).logits
    torch.testing.assert_close(shorter.forward(rows, new_cache(shorter)).logits, expected, atol=1e-6, rtol=0)
    with pytest.raises(UserError, match="has 3 layers, so 4 cannot be its first"):
        first_layers(model, 4)


def test_a_draft_model_speaks_the_targets_vocabulary() -> None:
    """Ids of another vocabulary would be judged as other words."""
    other = tiny_model(vocab=32)
    with pytest.raises(UserError, match="has 32 tokens and the target 64"):
        LanguageDrafter(other, target().config)
    assert random_language_drafter(target(), layers=2).config.layers == 2


# Files ---------------------------------------------------------------------------------------------------------------

QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "layer_types": ["full_attention", "full_attention"],
}
DFLASH = QWEN3 | {
    "architectures": ["DFlashDraftModel"],
    "block_size": 4,
    "dflash_config": {"mask_token_id": 63, "target_layer_ids": [0, 2]},
}
DSPARK = QWEN3 | {
    "architectures": ["Qwen3DSparkModel"],
    "block_size": 4,
    "mask_token_id": 63,
    "target_layer_ids": [-1, 1],
    "markov_rank": 4,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
EAGLE = QWEN3 | {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": 32,
}


def write(folder: Path, published: dict[str, Any], weights: Weights) -> None:
    """Write a checkpoint."""
    (folder / "config.json").write_text(json.dumps(published))
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")


def test_dflash_checkpoint_loads(tmp_path: Path) -> None:
    """Layers of z-lab/dflash; its last layer id means the target's normed hidden state."""
    model = target()
    config = parse_context_head(DFLASH, model.config, "config.json")
    assert (config.capture, config.block, config.mask_token_id) == ((0, 3), 4, 63)
    weights = context_head_weights(config, model.config, 1)
    write(tmp_path, DFLASH, weights)
    loaded = load_context_head(tmp_path, model, torch.float64)
    assert (loaded.markov, loaded.confidence) == (None, None)
    assert loaded.body.head is model.head
    given = ContextHead(config, weights, model, torch.float64)
    rows = block(BLOCK, 0, causal=False)
    assert torch.equal(
        loaded.forward(rows, new_cache(loaded)).logits, given.forward(rows, new_cache(given)).logits
    )


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_dspark_checkpoint_loads(tmp_path: Path, kind: str) -> None:
    """Layers and heads of DeepSpec, which repeats the target's frozen embedding and head."""
    model = target()
    published = DSPARK | {"markov_head_type": kind}
    config = parse_context_head(published, model.config, "config.json")
    assert (config.capture, config.markov, config.confidence) == ((-1, 1), kind, True)
    weights = context_head_weights(config, model.config, 1)
    frozen = {"embed_tokens.weight": model.embedding, "lm_head.weight": model.head}
    write(tmp_path, published, weights | frozen)
    (tmp_path / "confidence_calibration.json").write_text('{"temperatures": [1, 2, 3, 4]}')
    loaded = load_context_head(tmp_path, model, torch.float64)
    assert loaded.markov is not None
    assert loaded.confidence is not None
    assert torch.equal(loaded.markov.embedding, weights["markov_head.markov_w1.weight"])
    assert loaded.confidence.temperatures is not None
    assert loaded.confidence.temperatures.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("layout", ["eagle", "pickle", "speculators"])
def test_eagle3_checkpoint_loads(tmp_path: Path, layout: str) -> None:
    """Layers of SafeAILab/EAGLE, as safetensors and as a pickle, and of speculators."""
    model = target()
    config = FeatureHeadConfig(
        replace(model.config, layers=1, qk_norm=False), (1, 0, -1), model.config.hidden, 32
    )
    weights = feature_head_weights(config, 1)
    published: dict[str, Any] = EAGLE
    if layout == "speculators":
        published = {
            "speculators_model_type": "eagle3",
            "draft_vocab_size": 32,
            "eagle_aux_hidden_state_layer_ids": [2, 1, 0],
            "transformer_layer_config": {k: v for k, v in EAGLE.items() if k != "draft_vocab_size"},
        }
    renamed = {
        name.replace("midlayer.", "layers.0.") if layout == "speculators" else name: tensor
        for name, tensor in weights.items()
    }
    write(tmp_path, published, renamed)
    if layout == "pickle":
        torch.save(renamed, tmp_path / "pytorch_model.bin")
        (tmp_path / "model.safetensors").unlink()
    loaded = load_feature_head(tmp_path, model, torch.float64)
    assert loaded.capture == config.capture
    given = FeatureHead(config, weights, model, torch.float64)
    rows, features = block(TOKENS, 0, causal=True), drawn(len(TOKENS), 3 * model.config.hidden)
    expected = given.forward(rows, new_cache(given), features)
    assert torch.equal(loaded.forward(rows, new_cache(loaded), features).logits, expected.logits)


def test_mimo_module_loads_beside_its_target(tmp_path: Path) -> None:
    """The module lies in the target's own files, whose other weights it leaves alone."""
    config = replace(tiny_config(layers=3), qkv_bias=True)
    own = random_weights(config, 0)
    write(tmp_path, {}, own | token_head_weights(config, 1))
    model = Transformer(config, own, torch.float64)
    heads = load_token_heads(tmp_path, model, torch.float64)
    assert (heads.capture, heads.config.layers) == ((3,), 1)
    assert heads.forward(block([5], 0, causal=True), new_cache(heads), drawn(1, 64)).logits.shape == (1, 64)


@pytest.mark.parametrize(
    ("published", "message"),
    [
        (DFLASH | {"layer_types": ["sliding_attention"] * 2}, "sliding attention are not supported"),
        (DFLASH | {"is_causal": True}, '"is_causal" = True is not supported'),
        (DFLASH | {"dflash_config": {"mask_token_id": 63}}, '"target_layer_ids" has to be a list'),
        (DFLASH | {"dflash_config": {"mask_token_id": 63, "target_layer_ids": [9]}}, "and the target has 3"),
        (DFLASH | {"vocab_size": 65}, "has 65 tokens and the target 64"),
        (DFLASH | {"hidden_size": 32}, "hidden_size is 32 and the target's 64"),
        (DFLASH | {"dflash_config": {"target_layer_ids": [0]}}, '"mask_token_id" has to be an integer'),
        (DSPARK | {"markov_rank": 0}, '"markov_rank" is 0'),
        (DSPARK | {"markov_head_type": "mlp"}, "known are vanilla, gated, rnn"),
        (DSPARK | {"enable_confidence_head": None}, "a head that is not named is not guessed"),
        (DFLASH | {"architectures": ["Qwen3DSparkModel"]}, '"markov_rank" has to be an integer'),
    ],
)
def test_context_heads_that_cannot_run_say_why(published: dict[str, Any], message: str) -> None:
    """A key that changes the computation is refused, not ignored."""
    with pytest.raises(UserError, match=message):
        parse_context_head(published, target().config, "config.json")


def test_missing_confidence_weights_fail_closed(tmp_path: Path) -> None:
    """A head that the configuration names and the file lacks must not turn into full confidence."""
    model = target()
    weights = context_head_weights(parse_context_head(DSPARK, model.config, ""), model.config, 1)
    lacking = {name: tensor for name, tensor in weights.items() if "confidence" not in name}
    write(tmp_path, DSPARK, lacking)
    with pytest.raises(UserError, match=r'no weight "confidence_head.proj.weight" of shape \[1, 68\]'):
        load_context_head(tmp_path, model, torch.float64)
    misshapen = torch.zeros(1, 64, dtype=torch.float64)
    write(tmp_path, DSPARK, weights | {"confidence_head.proj.weight": misshapen})
    with pytest.raises(UserError, match=r"has shape \[1, 64\], config.json asks for \[1, 68\]"):
        load_context_head(tmp_path, model, torch.float64)


def test_feature_heads_that_cannot_run_say_why(tmp_path: Path) -> None:
    """Layers, vocabulary, table of ids and files are held to the target before anything runs."""
    model = target()
    config = FeatureHeadConfig(
        replace(model.config, layers=1, qk_norm=False), (1, 0, -1), model.config.hidden, 32
    )
    weights = feature_head_weights(config, 1)

    def refused(message: str, published: dict[str, Any], weights: Weights = weights) -> None:
        write(tmp_path, published, weights)
        with pytest.raises(UserError, match=message):
            load_feature_head(tmp_path, model, torch.float64)

    refused('"num_hidden_layers" = 2 is not supported', EAGLE | {"num_hidden_layers": 2})
    refused("reads hidden states of 32 numbers", EAGLE | {"target_hidden_size": 32})
    refused('"draft_vocab_size" has to be from 1 to 64', EAGLE | {"draft_vocab_size": 65})
    refused("has to read several", EAGLE | {"eagle_aux_hidden_state_layer_ids": [1]})
    refused('weight "d2t" does not map 32', EAGLE, weights | {"d2t": torch.zeros(32, dtype=torch.int64) - 1})
    refused(r'no weight "midlayer.mlp', EAGLE, {k: v for k, v in weights.items() if "mlp" not in k})
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"no pickle")
    with pytest.raises(UserError, match="is no sound file of tensors"):
        load_feature_head(tmp_path, model, torch.float64)
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match=r"has no config.json; give the folder of a draft model"):
        load_feature_head(tmp_path, model, torch.float64)
