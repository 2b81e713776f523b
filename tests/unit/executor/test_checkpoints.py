"""Checkpoints laid out as I-DLM, SDAR, Nemotron-Labs-Diffusion and Uno publish theirs, through `generate`.

The keys of each config.json and the names of each file's tensors are those of the public sources that
docs/guides/models.md lists; the numbers are small and the weights random.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers.pre_tokenizers import ByteLevel
from typer.testing import CliRunner

from fsm_spec.cli import application
from fsm_spec.errors import UserError
from fsm_spec.executor.adapter import Adapter, fused_places
from fsm_spec.executor.models.config import Experts, ModelConfig, read_config
from fsm_spec.executor.models.fp8 import STORED
from fsm_spec.executor.models.gguf_tokenizer import build_tokenizer
from fsm_spec.executor.models.load import load_model
from fsm_spec.executor.models.random import random_weights, tiny_config
from fsm_spec.executor.server.command import Serving, open_engine
from fsm_spec.load import load

TOKENS = [*sorted(ByteLevel.alphabet()), "<|end|>", "<|MASK|>"]
END, MASK, VOCAB = len(TOKENS) - 2, len(TOKENS) - 1, len(TOKENS)
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [1] * (VOCAB - 2) + [3, 3],
    "tokenizer.ggml.merges": [],
}
QWEN: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "max_window_layers": 2,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": False,
    "use_sliding_window": False,
    "vocab_size": VOCAB,
    "eos_token_id": END,
}
SDAR = QWEN | {
    "architectures": ["SDARForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_sdar.SDARForCausalLM"},
    "model_type": "sdar",
    "fuse_cross_entropy": True,
    "block_size": 4,
}
IDLM = SDAR | {"block_size": 3, "mask_token_id": 7, "attn_implementation": "flex_attention"}
SDAR_MOE = SDAR | {
    "architectures": ["SDARMoeForCausalLM"],
    "model_type": "sdar_moe",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
NEMOTRON = {key: value for key, value in QWEN.items() if key not in ("rope_scaling", "rope_theta")} | {
    "architectures": ["NemotronLabsDiffusionModel"],
    "model_type": "nemotron_labs_diffusion",
    "mlp_bias": False,
    "rms_norm_eps": 1e-05,
    "mask_token_id": 100,
    "block_size": 8,
    "dlm_paradigm": "bidirectional",
    "ar_loss_weight": 1.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}
SHAPE = tiny_config(vocab=VOCAB)
SHAPES: dict[str, tuple[dict[str, Any], ModelConfig]] = {
    "idlm": (IDLM, replace(SHAPE, qk_norm=True)),
    "sdar": (SDAR, replace(SHAPE, qk_norm=True)),
    "sdar_moe": (
        SDAR_MOE,
        replace(SHAPE, qk_norm=True, experts=Experts(4, 2, 24, normalised=True, layers=frozenset({0, 1}))),
    ),
    "nemotron": (NEMOTRON, SHAPE),
}


def renamed(name: str) -> str:
    """Give Nemotron-Labs-Diffusion's name of a weight."""
    return name.replace("model.", "encoder.", 1).replace("lm_head.", "diffusion_head.")


def write_adapter(folder: Path, layers: str, modules: tuple[str, ...], *, alpha: int) -> None:
    """Write a PEFT adapter; `layers` is where the model's layers are below PEFT's own wrappers."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(9)
    tensors = {}
    for parts in fused_places(SHAPE).values():
        for module, outputs, inputs in parts:
            for index in range(SHAPE.layers) if module.split(".")[1] in modules else ():
                name = f"base_model.model.{layers}.{index}.{module}"
                tensors[f"{name}.lora_A.weight"] = torch.randn(2, inputs, generator=generator)
                tensors[f"{name}.lora_B.weight"] = torch.randn(outputs, 2, generator=generator)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {
        "base_model_name_or_path": "somebody/base",
        "bias": "none",
        "lora_alpha": alpha,
        "peft_type": "LORA",
        "r": 2,
        "target_modules": list(modules),
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))


ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one checkpoint a layout: idlm, sdar, sdar_moe, nemotron and uno."""
    made = tmp_path_factory.mktemp("checkpoints")
    for name, (published, config) in (*SHAPES.items(), ("uno", SHAPES["sdar"])):
        folder = made / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(published))
        settings = {"mask_token": "<|MASK|>"} if name in ("sdar", "sdar_moe", "uno") else {}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        build_tokenizer(METADATA, "tiny.gguf").save(str(folder / "tokenizer.json"))
        weights = {
            renamed(key) if name == "nemotron" else key: value.float()
            for key, value in random_weights(config, 4).items()
        }
        save_file(weights, folder / "model.safetensors")
    write_adapter(made / "nemotron" / "linear_spec_lora", "encoder.layers", ("o_proj",), alpha=4)
    write_adapter(made / "uno" / "adapter", "model.layers", ALL, alpha=2)
    return made


Generate = Callable[..., dict[str, Any]]


@pytest.fixture
def generate(checkpoints: Path) -> Generate:
    """Return a function that runs `generate` on a checkpoint -> its JSON value."""

    def run(name: str, spec: str, *options: str) -> dict[str, Any]:
        given = ["generate", spec, "--model", str(checkpoints / name), "--dtype", "float32", "--json"]
        done = CliRunner().invoke(
            application(), [*given, "--prompt", "count", "--max-tokens", "24", "--ignore-eos", *options]
        )
        assert done.exit_code == 0, done.stderr
        value: dict[str, Any] = json.loads(done.stdout)
        return value

    return run


@pytest.mark.parametrize(
    ("name", "spec", "block", "mask", "adapter"),
    [
        ("idlm", "isd", {"n": 4}, 7, None),
        ("sdar", "isd", {"n": 5}, MASK, None),
        ("sdar_moe", "isd", {"n": 5}, MASK, None),
        ("nemotron", "isd", {"n": 9}, 100, None),
        ("uno", "isd", {"n": 5}, MASK, None),
        ("uno", "isd_gated", {"n": 5}, MASK, "adapter"),
        ("uno", "uno_linear", {"b": 4}, MASK, "adapter"),
        ("nemotron", "linear_spec", {"b": 8}, 100, "linear_spec_lora"),
    ],
)
def test_published_layouts_run_as_they_are(
    generate: Generate, name: str, spec: str, block: dict[str, int], mask: int, adapter: str | None
) -> None:
    """Block, mask token and adapter come out of the folder, and the text is that of plain decoding."""
    value = generate(name, spec)
    assert block.items() <= value["params"].items()
    assert mask == value["mask_id"]
    assert adapter == (value["adapter"] and Path(value["adapter"]).name)
    assert generate(name, "ar")["token_ids"] == value["token_ids"]


@pytest.mark.parametrize(
    ("name", "spec"), [("sdar", "sdar"), ("sdar_moe", "sdar_static"), ("nemotron", "block_diffusion")]
)
def test_block_diffusion_runs_on_its_models(generate: Generate, name: str, spec: str) -> None:
    """Specs without a claim write text on models of other kinds too, in blocks of the trained size."""
    value = generate(name, spec)
    assert {"nemotron": 8}.get(name, 4) == value["params"]["b"]
    assert MASK not in value["token_ids"]
    assert 24 == len(value["token_ids"])


def test_what_the_user_names_wins(generate: Generate, checkpoints: Path) -> None:
    """Parameters, mask token and adapter of the command line stand."""
    value = generate("idlm", "isd", "--set", "n=3", "--mask-id", "9")
    assert (3, 9) == (value["params"]["n"], value["mask_id"])
    given = checkpoints / "uno" / "adapter"
    assert str(given) == generate("idlm", "isd_gated", "--adapter", str(given))["adapter"]


def test_a_server_takes_the_same(checkpoints: Path) -> None:
    """`serve` reads block, mask token and adapter where `generate` does."""
    run = Serving(
        spec="isd_gated",
        model=str(checkpoints / "uno"),
        host="127.0.0.1",
        port=0,
        adapter=None,
        mask_id=None,
        dtype="float32",
        params={},
        policy="holdback",
        pages=200,
        page_size=4,
        max_model_len=None,
        max_running=None,
        threads=1,
        unproved=False,
        log_json=True,
    )
    served, engine = open_engine(run, {}, load("isd_gated"))
    assert (5, MASK) == (served.table.params["n"], engine.session.mask_id)
    adapter = getattr(engine.session.model, "adapter", None)
    assert isinstance(adapter, Adapter)
    assert ("adapter", 2) == (adapter.name, adapter.rank)


def test_the_adapter_of_a_bundle_is_loaded_for_gated_rows_only(checkpoints: Path) -> None:
    """It is the one that lies there, on the modules that it names; specs without gated rows load none."""
    assert load_model(checkpoints / "nemotron", torch.float32).transformer.adapter is None
    found = load_model(checkpoints / "nemotron", torch.float32, gated=True).transformer.adapter
    assert found is not None
    assert ("linear_spec_lora", 2, {"output"}) == (found.name, found.rank, set(found.layers[0]))
    stored = load_file(checkpoints / "nemotron" / "linear_spec_lora" / "adapter_model.safetensors")
    name = "base_model.model.encoder.layers.0.self_attn.o_proj"
    assert torch.equal(stored[f"{name}.lora_A.weight"], found.layers[0]["output"].down)
    # alpha / r = 4 / 2 is in the second matrix.
    assert torch.equal(2 * stored[f"{name}.lora_B.weight"], found.layers[0]["output"].up)


def test_names_of_the_files_give_the_same_model(checkpoints: Path) -> None:
    """A body and a head under other names are the same weights."""
    loaded = load_model(checkpoints / "nemotron", torch.float32)
    weights = load_file(checkpoints / "nemotron" / "model.safetensors")
    assert torch.equal(weights["encoder.embed_tokens.weight"], loaded.transformer.embedding)
    assert torch.equal(weights["diffusion_head.weight"], loaded.transformer.head)
    assert torch.equal(weights["encoder.layers.1.mlp.down_proj.weight"], loaded.transformer.layers[1].down)
    scaling = read_config(checkpoints / "nemotron").rope_scaling
    assert scaling is not None
    assert ("yarn", 16, 0.1) == (scaling.kind, scaling.original_context, scaling.query_beta)


def copied(folder: Path, target: Path, **changes: object) -> Path:
    """Copy the files of a checkpoint, with changes to its config.json."""
    target.mkdir()
    for path in folder.iterdir():
        if path.is_file():
            (target / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | changes))
    return target


def test_eight_bit_floats_are_dequantised_at_load(checkpoints: Path, tmp_path: Path) -> None:
    """A checkpoint of 8-bit floats in blocks is the model that its numbers stand for."""
    quantisation = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    folder = copied(checkpoints / "idlm", tmp_path / "small", quantization_config=quantisation)
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if "_proj.weight" in name]:
        scale = weights[name].abs().max() / 448
        weights[f"{name}_scale_inv"] = scale.expand(
            *(-(-size // 128) for size in weights[name].shape)
        ).contiguous()
        weights[name] = (weights[name] / scale).to(STORED)
    save_file(weights, folder / "model.safetensors")
    whole, small = (load_model(each, torch.float32).transformer for each in (checkpoints / "idlm", folder))
    for mine, theirs in zip(whole.layers, small.layers, strict=True):
        # e4m3 keeps 3 bits behind the first.
        torch.testing.assert_close(theirs.gate_up, mine.gate_up, rtol=1 / 16, atol=0.01)
    assert torch.equal(whole.head, small.head)


def break_weights(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    """Leave a tensor out, or put another in its place."""
    weights = load_file(folder / "model.safetensors")
    del weights[name]
    save_file(weights | ({} if tensor is None else {name: tensor}), folder / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("encoder.norm.weight", None, 'no weight "encoder.norm.weight" of shape [64]'),
        ("diffusion_head.weight", None, f'no weight "diffusion_head.weight" of shape [{VOCAB}, 64]'),
        (
            "encoder.layers.0.self_attn.k_proj.weight",
            torch.ones(64, 64),
            '"encoder.layers.0.self_attn.k_proj.weight" has shape [64, 64], config.json asks for [32, 64]',
        ),
        (
            "encoder.layers.0.self_attn.k_proj.weight",
            torch.ones(32, 64).to(STORED),
            "holds 8-bit floats without scales",
        ),
    ],
)
def test_weights_that_do_not_fit_end_with_a_sentence(
    checkpoints: Path, tmp_path: Path, name: str, tensor: torch.Tensor | None, message: str
) -> None:
    """Exit code 2, the name as the file has it, what was expected and what was found."""
    folder = copied(checkpoints / "nemotron", tmp_path / "broken")
    break_weights(folder, name, tensor)
    assert message in refused(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["K2HorizonForCausalLM"]},
            '["K2HorizonForCausalLM"] is unknown; known are LlamaForCausalLM, MistralForCausalLM, Qwen2',
        ),
        ({"quantization_config": {"quant_method": "awq"}}, 'quantisation "awq" is not supported; known are'),
        (
            {"use_sliding_window": True, "sliding_window": 1},
            "the prompt has 1 token and the model's context 1; give a shorter prompt",
        ),
        ({"block_size": "4"}, '"block_size" has to be a positive integer, not "4"'),
    ],
)
def test_configurations_that_are_not_read_end_with_a_sentence(
    checkpoints: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """Unknown architectures and quantisations say which are known; a prompt beyond the window is not cut."""
    assert message in refused(copied(checkpoints / "sdar", tmp_path / "broken", **changes))


def refused(folder: Path) -> str:
    """Run `generate` on a folder and give the one sentence that it ends with."""
    given = ["generate", "isd", "--model", str(folder), "--prompt", "x", "--max-tokens", "1"]
    done = CliRunner().invoke(application(), given)
    assert (2, "") == (done.exit_code, done.stdout)
    assert 1 == len(done.stderr.strip().splitlines()), done.stderr
    return done.stderr


def test_an_adapter_alone_names_its_base(checkpoints: Path) -> None:
    """The folder of an adapter is no model, and several adapters are no choice."""
    assert (
        "holds an adapter of 'somebody/base' and no model; give that model's folder with --model"
        in refused(checkpoints / "uno" / "adapter")
    )


def test_several_adapters_need_a_choice(checkpoints: Path, tmp_path: Path) -> None:
    """Taking any of them would be a guess; a spec that gates no rows needs none."""
    folder = copied(checkpoints / "sdar", tmp_path / "both")
    for name in ("one", "two"):
        write_adapter(folder / name, "model.layers", ALL, alpha=2)
    assert load_model(folder, torch.float32).adapter is None
    with pytest.raises(
        UserError, match=r"holds several adapters \(one, two\); give one of them with --adapter"
    ):
        load_model(folder, torch.float32, gated=True)
