"""Adapters: gated rows run merged weights, others run base weights; broken folders get a sentence."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fsm_spec.errors import UserError
from fsm_spec.executor.adapter import load_adapter, random_adapter
from fsm_spec.executor.cache import PagedCache
from fsm_spec.executor.models.config import Experts
from fsm_spec.executor.models.random import random_weights, tiny_config
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.executor.models.transformer import Transformer

CONFIG = tiny_config()
MODULES = {"q_proj": (64, 64), "v_proj": (32, 64), "down_proj": (64, 128), "up_proj": (128, 64)}


def write_adapter(
    folder: Path, *, weights: dict[str, torch.Tensor] | None = None, **settings: object
) -> dict[str, torch.Tensor]:
    """Write a PEFT adapter of rank 3 on four modules; returns its tensors."""
    generator = torch.Generator().manual_seed(5)
    tensors = {}
    for index in range(CONFIG.layers):
        for module, (outputs, inputs) in MODULES.items():
            group = "mlp" if module in ("down_proj", "up_proj") else "self_attn"
            prefix = f"base_model.model.model.layers.{index}.{group}.{module}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(3, inputs, generator=generator) / 8
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(outputs, 3, generator=generator) / 2
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": list(MODULES), **settings}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(weights if weights is not None else tensors, folder / "adapter_model.safetensors")
    return tensors


def run(model: Transformer, gated: list[bool] | None) -> torch.Tensor:
    """Run one block of six causal rows and return all logits."""
    cache = PagedCache(model.config, 2, 8, model.dtype)
    rows = RowBatch(
        torch.tensor([3, 1, 4, 1, 5, 9]), torch.arange(6), torch.arange(6), [0, 6], torch.arange(0)[None], [0],
        [torch.ones(6, 6).tril().bool()], torch.arange(6), None if gated is None else torch.tensor(gated),
    )  # fmt: skip
    return model.forward(rows, cache)


@pytest.mark.parametrize("rslora", [False, True])
def test_gated_rows_equal_merged_weights(tmp_path: Path, *, rslora: bool) -> None:
    """With all rows gated the model is the merged model, scale and fused layout included."""
    tensors = write_adapter(tmp_path, use_rslora=rslora)
    weights = random_weights(CONFIG, 1)
    model = Transformer(CONFIG, weights, torch.float64)
    model.adapter = load_adapter(tmp_path, CONFIG, torch.float64)
    assert model.adapter.rank == 3
    scale = 6 / math.sqrt(3) if rslora else 2.0
    merged = dict(weights)
    for key, down in tensors.items():
        if key.endswith("lora_A.weight"):
            up = tensors[key.replace("lora_A", "lora_B")]
            name = key.removeprefix("base_model.model.").replace("lora_A.", "")
            merged[name] = weights[name] + scale * (up.double() @ down.double())
    expected = run(Transformer(CONFIG, merged, torch.float64), None)
    torch.testing.assert_close(run(model, [True] * 6), expected, atol=1e-5, rtol=0)


def test_rows_without_the_gate_run_base_weights() -> None:
    """Causal rows before the first gated one are the base model's bit for bit; the gated one is not."""
    model = Transformer(CONFIG, random_weights(CONFIG, 1), torch.float64)
    base = run(model, None)
    model.adapter = random_adapter(CONFIG, torch.float64, rank=2, seed=3)
    assert torch.equal(base, run(model, None))
    assert torch.equal(base, run(model, [False] * 6))
    mixed = run(model, [False, False, False, True, False, True])
    assert torch.equal(base[:3], mixed[:3])
    assert not torch.allclose(base[3], mixed[3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapter_runs_in_the_models_dtype(dtype: torch.dtype) -> None:
    """One gated row alone and many take different products, in half precision too."""
    model = Transformer(CONFIG, random_weights(CONFIG, 1), dtype)
    model.adapter = random_adapter(CONFIG, dtype)
    assert bool(run(model, [True] * 5 + [False]).isfinite().all())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"r": 0}, '"r" has to be a positive integer, not 0'),
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported"),
        ({"use_dora": True}, '"use_dora" is not supported'),
        ({"fan_in_fan_out": True}, '"fan_in_fan_out" is not supported'),
        ({"lora_alpha": "high"}, '"lora_alpha" has to be a positive number, not "high"'),
        ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4' changes the base weights"),
    ],
)
def test_unsupported_settings_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    """What plain LoRA cannot express must not be ignored."""
    write_adapter(tmp_path, **settings)
    with pytest.raises(UserError, match=message):
        load_adapter(tmp_path, CONFIG, torch.float32)


Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "holds no weights"),
        ({"base_model.model.lm_head.lora_A.weight": torch.zeros(1, 64)}, 'lm_head.lora_A.weight" is unknown'),
        ({Q.replace(".0.", ".7.") + ".lora_A.weight": torch.zeros(1, 64)}, "beyond the model's 2 layers"),
        ({Q + ".lora_A.weight": torch.zeros(1, 64)}, "only lora_A is there"),
        (
            {Q + ".lora_A.weight": torch.zeros(1, 9), Q + ".lora_B.weight": torch.zeros(64, 1)},
            r"shapes \[1, 9\]",
        ),
        (
            {
                Q + ".lora_A.weight": torch.zeros(1, 64),
                Q + ".lora_B.weight": torch.full((64, 1), float("nan")),
            },
            'q_proj.lora_B.weight" holds numbers that are not finite',
        ),
    ],
)
def test_wrong_weights_are_refused(tmp_path: Path, weights: dict[str, torch.Tensor], message: str) -> None:
    """An adapter of another model names what does not fit."""
    write_adapter(tmp_path, weights=weights)
    with pytest.raises(UserError, match=message):
        load_adapter(tmp_path, CONFIG, torch.float32)


def test_adapters_of_experts_are_refused(tmp_path: Path) -> None:
    """Attention of a layer that mixes experts takes an adapter, its networks do not."""
    write_adapter(tmp_path)
    mixed = replace(CONFIG, experts=Experts(4, 2, 8, normalised=True, layers=frozenset({1})))
    with pytest.raises(
        UserError, match=r"layers\.1\.mlp.* is unknown; known are k_proj, o_proj, q_proj, v_proj"
    ):
        load_adapter(tmp_path, mixed, torch.float32)
    drawn = random_adapter(mixed, torch.float32)
    assert [4, 2] == [len(layer) for layer in drawn.layers]


def test_missing_and_broken_files_get_a_sentence(tmp_path: Path) -> None:
    """No traceback for a wrong folder."""
    with pytest.raises(UserError, match=r"has no adapter_config\.json"):
        load_adapter(tmp_path, CONFIG, torch.float32)
    write_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"broken")
    with pytest.raises(UserError, match="cannot read"):
        load_adapter(tmp_path, CONFIG, torch.float32)
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no adapter_model\.safetensors"):
        load_adapter(tmp_path, CONFIG, torch.float32)
