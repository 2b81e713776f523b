"""Time Hugging Face transformers' generate: a task as JSON on stdin, speeds as JSON on stdout.

A program for `generate.py`, run by a Python that has transformers; needs nothing of ours.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from statistics import median
from typing import Any

import torch


def measure(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Alternate plain generation and prompt lookup on each prompt -> tokens a second and the tokens."""
    torch.set_num_threads(task["threads"])
    transformers = importlib.import_module("transformers")
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[task["dtype"]]
    model = transformers.AutoModelForCausalLM.from_pretrained(task["folder"], dtype=dtype).eval()
    kinds: dict[str, dict[str, int]] = {"plain": {}, "lookup": {"prompt_lookup_num_tokens": task["drafts"]}}
    found = []
    for prompt in task["prompts"]:
        ids = torch.tensor([prompt])
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        tokens: dict[str, list[int]] = {}
        for turn in range(task["repeats"] + 1):  # the first turn warms up
            for kind, options in kinds.items():
                started = time.perf_counter()
                out = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=task["tokens"],
                    do_sample=False,
                    eos_token_id=task["stop"],
                    pad_token_id=task["stop"][0],
                    **options,
                )
                if turn:
                    seconds[kind].append(time.perf_counter() - started)
                tokens[kind] = out[0, len(prompt) :].tolist()
        speeds = {kind: len(tokens[kind]) / median(seconds[kind]) for kind in kinds}
        found.append({**speeds, "token_ids": tokens["plain"], "seconds": seconds})
    return found


print(json.dumps(measure(json.load(sys.stdin))))
