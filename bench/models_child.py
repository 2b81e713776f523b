"""Make tiny random checkpoints with Hugging Face transformers, and its own logits for them.

A program for `models.py`, run by a Python that has transformers; needs nothing of ours. Reads
{"folder", "prompts"} on stdin, writes one folder a case and prints {"version", "cases"}.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VOCAB = 97
BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WIDE = {"head_dim": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 16.0, "original_max_position_embeddings": 8}
MINISTRAL = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
EXPERTS = WIDE | {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
# Name of the case, class in transformers without `Config` and `ForCausalLM`, settings.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "Llama", {}),
    ("llama, llama3 rotary, tied", "Llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    ("llama, biases", "Llama", {"attention_bias": True}),
    ("mistral", "Mistral", WIDE | {"sliding_window": None}),
    ("mistral, inside its window", "Mistral", {"sliding_window": 24}),
    ("qwen2", "Qwen2", {}),
    ("qwen3", "Qwen3", WIDE),
    ("qwen3, yarn", "Qwen3", WIDE | {"rope_parameters": YARN}),
    ("qwen3 moe", "Qwen3Moe", EXPERTS | {"norm_topk_prob": True}),
    ("qwen3 moe, every second layer", "Qwen3Moe", EXPERTS | {"decoder_sparse_step": 2}),
    ("qwen3 moe, one dense layer", "Qwen3Moe", EXPERTS | {"mlp_only_layers": [0], "norm_topk_prob": True}),
    ("ministral3", "Ministral3", WIDE | {"rope_parameters": MINISTRAL}),
]
# The same checkpoints under the names of published models whose layers they are.
RENAMED = {
    "qwen3": ("sdar", "SDARForCausalLM", {}),
    "qwen3 moe": ("sdar moe", "SDARMoeForCausalLM", {}),
    "ministral3": (
        "nemotron-labs-diffusion",
        "NemotronLabsDiffusionModel",
        {"model.": "encoder.", "lm_head.": "diffusion_head."},
    ),
}


def make(name: str, kind: str, settings: dict[str, Any], task: dict[str, Any], folder: Path) -> None:
    """Save one model in transformers' own layout, with its logits [rows, vocabulary] of each prompt beside it."""
    transformers = importlib.import_module("transformers")
    config = getattr(transformers, f"{kind}Config")(**BASE | settings)
    torch.manual_seed(sum(name.encode()))
    model = getattr(transformers, f"{kind}ForCausalLM")(config).float().eval()
    for key, value in model.named_parameters():
        # Fresh norms are 1 and fresh biases 0, which would hide a norm or a bias that is not read.
        if "norm" in key:
            value.data = 1 + 0.2 * torch.randn_like(value)
        elif "bias" in key:
            value.data = 0.3 * torch.randn_like(value)
    model.save_pretrained(folder)
    with torch.no_grad():
        logits = {
            str(index): model(torch.tensor([prompt])).logits[0].clone()
            for index, prompt in enumerate(task["prompts"])
        }
    save_file(logits, folder / "logits.safetensors")


def rename(source: Path, target: Path, architecture: str, places: dict[str, str]) -> None:
    """Write a saved model under another architecture's name, and its weights under that one's names."""
    load_file = importlib.import_module("safetensors.torch").load_file
    target.mkdir()
    config = json.loads((source / "config.json").read_text()) | {"architectures": [architecture]}
    (target / "config.json").write_text(json.dumps(config))
    weights = {}
    for key, value in load_file(source / "model.safetensors").items():
        old = next((place for place in places if key.startswith(place)), "")
        weights[places.get(old, "") + key.removeprefix(old)] = value
    save_file(weights, target / "model.safetensors")
    (target / "logits.safetensors").write_bytes((source / "logits.safetensors").read_bytes())


def main() -> None:
    """Make all cases."""
    task = json.load(sys.stdin)
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    made: list[str] = []
    for name, kind, settings in CASES:
        place = Path(task["folder"]) / str(len(made))
        make(name, kind, settings, task, place)
        made.append(name)
        if name in RENAMED:
            other, architecture, places = RENAMED[name]
            rename(place, Path(task["folder"]) / str(len(made)), architecture, places)
            made.append(other)
    print(json.dumps({"version": transformers.__version__, "cases": made}))


main()
