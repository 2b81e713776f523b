"""Hold the forward to Hugging Face transformers' own, model by model, on tiny random checkpoints that it saves.

Run: `python bench/models.py --hf-python PYTHON`, where PYTHON has transformers (5.24 was used) and torch.
Rows of several prompts run in one batch here and alone there, in float32. Writes bench/results/models.json; exit
code 1 where logits differ by more than 1e-4, 0 where there is no transformers to compare with.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from record import write_result
from safetensors.torch import load_file

from fsm_spec.executor.cache import PageAllocator, PagedCache
from fsm_spec.executor.models.config import read_config, read_names
from fsm_spec.executor.models.load import SafetensorsFolder
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.executor.models.transformer import Transformer

CHILD = Path(__file__).with_name("models_child.py")
PAGE, PAGES = 8, 16
# Lengths within, at and behind a page, and behind the short original contexts of the scaled models.
LENGTHS = (20, 8, 1)
MOST = 1e-4


def main() -> int:
    """Compare all cases and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hf-python", help="a Python that has transformers")
    given = parser.parse_args()
    python = given.hf_python or (sys.executable if importlib.util.find_spec("transformers") else None)
    if python is None:
        print(
            "nothing is compared: transformers is not importable here; name a Python that has it with --hf-python",
            file=sys.stderr,
        )
        return 0
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 97, (length,), generator=generator).tolist() for length in LENGTHS]
    with tempfile.TemporaryDirectory() as folder:
        task = json.dumps({"folder": folder, "prompts": prompts})
        done = subprocess.run([python, str(CHILD)], input=task, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"transformers failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return 2
        made: dict[str, Any] = json.loads(done.stdout)
        found = {
            name: compare(Path(folder) / str(number), prompts) for number, name in enumerate(made["cases"])
        }
    for name, case in found.items():
        print(f"{name:32} differs by {case['difference']:.1e}, logits up to {case['largest']:.1f}")
    write_result("models", {"transformers": made["version"], "torch": torch.__version__, "cases": found})
    return int(any(case["difference"] > MOST for case in found.values()))


def compare(folder: Path, prompts: list[list[int]]) -> dict[str, float]:
    """Run all prompts in one batch and compare each row's logits -> the largest difference and the largest logit."""
    expected = torch.cat([load_file(folder / "logits.safetensors")[str(n)] for n in range(len(prompts))])
    config = read_config(folder)
    with SafetensorsFolder(folder) as weights:
        model = Transformer(config, weights, torch.float32, read_names(folder))
    cache, allocator = PagedCache(config, PAGES, PAGE, model.dtype), PageAllocator(PAGES, PAGE)
    for number, prompt in enumerate(prompts):
        allocator.resize(number, math.ceil(len(prompt) / PAGE))
    tokens = [token for prompt in prompts for token in prompt]
    rows = RowBatch(
        torch.tensor(tokens),
        torch.cat([torch.arange(len(prompt)) for prompt in prompts]),
        torch.cat([allocator.slots(number, 0, len(prompt)) for number, prompt in enumerate(prompts)]),
        [0, *torch.tensor([len(prompt) for prompt in prompts]).cumsum(0).tolist()],
        torch.zeros(len(prompts), 0, dtype=torch.int64),
        [0] * len(prompts),
        [torch.ones(len(prompt), len(prompt)).tril().bool() for prompt in prompts],
        torch.arange(len(tokens)),
    )
    got = model.forward(rows, cache)
    return {"difference": float((got - expected).abs().max()), "largest": float(expected.abs().max())}


if __name__ == "__main__":
    sys.exit(main())
