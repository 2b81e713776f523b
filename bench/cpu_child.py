"""Serve Hugging Face transformers' generate to `cpu.py`: a task a line as JSON on stdin, an answer a line on stdout.

The first line names folder, dtype and threads; each further one holds `prompts` of equal length, `tokens`, `stop`
(null: all tokens are made) and `drafts` of prompt lookup (0: plain). An answer has the seconds and the tokens made.
Run by a Python that has transformers; needs nothing of ours.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

import torch


def answer(model: Any, task: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 -- a model of transformers
    """Run one generation of a batch."""
    ids = torch.tensor(task["prompts"])
    options: dict[str, Any] = {"prompt_lookup_num_tokens": task["drafts"]} if task["drafts"] else {}
    model.generation_config.eos_token_id = task["stop"]
    started = time.perf_counter()
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=task["tokens"],
        do_sample=False,
        pad_token_id=0,
        **options,
    )
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "tokens": int(out.shape[0] * (out.shape[1] - ids.shape[1]))}


def main() -> None:
    """Load the model that the first line names, then answer until stdin ends."""
    settings = json.loads(sys.stdin.readline())
    torch.set_num_threads(settings["threads"])
    transformers = importlib.import_module("transformers")
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[settings["dtype"]]
    model = transformers.AutoModelForCausalLM.from_pretrained(settings["folder"], dtype=dtype).eval()
    print(json.dumps({"transformers": transformers.__version__, "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(model, json.loads(line))), flush=True)


main()
