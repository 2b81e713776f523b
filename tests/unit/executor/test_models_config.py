"""config.json as it is published: which keys mean what, and what is said about broken ones."""

from __future__ import annotations

from typing import Any

import pytest

from fsm_spec.errors import UserError
from fsm_spec.executor.models.config import Experts, ModelConfig, parse_config
from fsm_spec.executor.models.rope import RopeScaling

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}


def parse(generation: dict[str, Any] | None = None, **changes: object) -> ModelConfig:
    """Parse the base configuration with changes."""
    return parse_config(BASE | changes, generation or {}, "config.json")


def test_defaults() -> None:
    """Keys that older configurations leave out have their published defaults."""
    config = parse()
    assert (4, 16, 10000.0, 1e-6) == (config.kv_heads, config.head_dim, config.rope_theta, config.rms_eps)
    assert (False, False, False, None) == (config.tied, config.qk_norm, config.qkv_bias, config.mask_token_id)


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("MistralForCausalLM", (False, False)),
        ("Qwen2ForCausalLM", (False, True)),
        ("Qwen3ForCausalLM", (True, False)),
    ],
)
def test_architectures_differ_in_structure(architecture: str, expected: tuple[bool, bool]) -> None:
    """Query-key norms and biases follow the architecture, not a key."""
    config = parse(architectures=[architecture])
    assert expected == (config.qk_norm, config.qkv_bias)


MIXED: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 4,
    "moe_intermediate_size": 24,
}


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"decoder_sparse_step": 2}, {1, 3}),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, {1}),
        ({"mlp_only_layers": [0, 9]}, {1, 2, 3, 4}),
    ],
)
def test_which_layers_mix_experts(keys: dict[str, Any], layers: set[int]) -> None:
    """Every step-th layer does, unless it is named as dense."""
    config = parse(**MIXED, num_experts_per_tok=2, norm_topk_prob=True, num_hidden_layers=5, **keys)
    assert Experts(4, 2, 24, normalised=True, layers=frozenset(layers)) == config.experts


def test_experts_under_the_name_of_transformers_5() -> None:
    """The same number has two names; the width of dense layers may be missing."""
    keys = {key: value for key, value in MIXED.items() if key != "num_experts"}
    config = parse(**keys, num_local_experts=8, intermediate_size=None)
    assert config.experts is not None
    assert (8, 8, False, 24) == (
        config.experts.count,
        config.experts.per_token,
        config.experts.normalised,
        config.ffn,
    )
    assert parse(num_experts=4).experts is None


def test_model_type_stands_in_for_architectures() -> None:
    """Configurations without `architectures` are still known."""
    assert parse(architectures=None, model_type="qwen3").qk_norm


def test_end_tokens_come_from_generation_config_first() -> None:
    """Instruct models list more end tokens there than in config.json."""
    assert parse(eos_token_id=2).eos_token_ids == (2,)
    assert parse({"eos_token_id": [7, 8]}, eos_token_id=2).eos_token_ids == (7, 8)
    assert parse(eos_token_id=None).eos_token_ids == ()
    assert parse(mask_token_id=9, bos_token_id=-1).bos_token_id is None


def test_faults_of_generation_config() -> None:
    """The file that a value stands in is the one that is named, and long values are cut."""
    with pytest.raises(UserError, match=r"^generation_config.json: .* not \"<end>\"\.$"):
        parse({"eos_token_id": "<end>"}, eos_token_id=2)
    with pytest.raises(UserError, match=r"not \"x{59}\.\.\.\.$"):
        parse(hidden_size="x" * 500)


def test_window_cuts_the_context() -> None:
    """Inside a sliding window both kinds of attention are equal; outside only one is implemented."""
    assert parse(sliding_window=256).context == 256
    assert parse(sliding_window=256, use_sliding_window=False).context == 512


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"rope_theta": 5e5}, (5e5, None)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, (1e6, None)),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, (1e4, RopeScaling("linear", factor=2.0))),
        (
            {"rope_scaling": {"rope_type": "factors", "factors": [1, 2]}},
            (1e4, RopeScaling("factors", factors=(1.0, 2.0))),
        ),
        (
            {
                "rope_theta": 5e5,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192,
                },
            },
            (5e5, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)),
        ),
    ],
)
def test_rotary_keys(keys: dict[str, Any], expected: tuple[float, RopeScaling | None]) -> None:
    """Old and new places of the rotary settings are read alike."""
    config = parse(**keys)
    assert expected == (config.rope_theta, config.rope_scaling)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, '"hidden_size" has to be a positive integer, not null'),
        ({"hidden_size": True}, "not true"),
        ({"rms_norm_eps": "small"}, '"rms_norm_eps" has to be a positive number, not "small"'),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 KV heads"),
        (
            {"architectures": ["GptForCausalLM"]},
            'architecture ["GptForCausalLM"] is unknown; known are Llama',
        ),
        ({"rope_scaling": {"rope_type": "dynamic"}}, 'rope scaling "dynamic" is unknown'),
        ({"rope_scaling": {"rope_type": "factors"}}, '"factors" has to be a list of positive numbers'),
        ({"partial_rotary_factor": 0.5}, "partial rotary embedding is not supported"),
        ({"head_dim": 15}, "head_dim has to be even"),
        ({"hidden_act": "gelu"}, "only SwiGLU feed-forward layers"),
        (MIXED | {"num_experts_per_tok": 5}, "a token cannot choose 5 of 4 experts"),
        (MIXED | {"num_experts": 0}, '"num_experts" has to be a positive integer, not 0'),
        (
            MIXED | {"num_experts_per_tok": 2, "mlp_only_layers": 3},
            "has to be a list of layer numbers, not 3",
        ),
        ({"block_size": 0}, '"block_size" has to be a positive integer, not 0'),
        ({"hidden_size": "64"}, '"hidden_size" has to be a positive integer, not "64"'),
        ({"vocab_size": 10**12}, '"vocab_size" has to be a positive integer, not 1000000000000'),
        ({"hidden_size": 2}, '"head_dim" would be 0; fix the numbers that it follows from'),
        ({"rope_theta": float("inf")}, '"rope_theta" has to be a positive number, not Infinity'),
        ({"rms_norm_eps": float("nan")}, '"rms_norm_eps" has to be a positive number, not NaN'),
        ({"sliding_window": "4096"}, '"sliding_window" has to be a positive integer, not "4096"'),
        ({"use_sliding_window": 0}, '"use_sliding_window" has to be true or false, not 0'),
        ({"tie_word_embeddings": "false"}, '"tie_word_embeddings" has to be true or false, not "false"'),
        ({"attention_bias": 1}, '"attention_bias" has to be true or false, not 1'),
        ({"mask_token_id": "<mask>"}, '"mask_token_id" has to be a token id, not "<mask>"'),
        ({"bos_token_id": True}, '"bos_token_id" has to be a token id, not true'),
        (
            {"eos_token_id": [2, "</s>"]},
            '"eos_token_id" has to be a token id or a list of them, not [2, "</s>"]',
        ),
        ({"eos_token_id": 10**12}, '"eos_token_id" has to be a token id or a list of them'),
        ({"rope_scaling": "linear"}, '"rope_scaling" has to be an object or null, not "linear"'),
        ({"rope_parameters": [1]}, '"rope_parameters" has to be an object or null, not [1]'),
        ({"rope_parameters": {"full_attention": {}}}, "that differ by kind of layer are not supported"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": "4"}},
            '"factor" has to be a positive number, not "4"',
        ),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, 'rope scaling ["yarn"] is unknown'),
        (
            {"rope_scaling": {"rope_type": "yarn", "truncate": "no"}},
            '"truncate" has to be true or false, not "no"',
        ),
        ({"architectures": [["LlamaForCausalLM"]]}, 'architecture [["LlamaForCausalLM"]] is unknown'),
        ({"architectures": None, "model_type": {}}, "architecture {} is unknown"),
        (
            MIXED | {"num_experts_per_tok": 2, "norm_topk_prob": "yes"},
            '"norm_topk_prob" has to be true or false, not "yes"',
        ),
    ],
)
def test_faults_name_file_and_key(changes: dict[str, Any], message: str) -> None:
    """One sentence that says where and what."""
    with pytest.raises(UserError) as caught:
        parse(**changes)
    assert str(caught.value).startswith("config.json: ")
    assert message in str(caught.value)
