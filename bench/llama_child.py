"""Serve llama.cpp to `cpu.py`: a task a line as JSON on stdin, an answer a line on stdout, as `cpu_child.py` does.

The first line names the GGUF file and threads; each further one holds `prompts` of equal length and `tokens`. All
sequences share each call of `llama_decode`; the most probable token is taken, and no token ends a text.
Run by a Python that has llama-cpp-python; needs nothing of ours.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

import numpy as np

CONTEXT, SEQUENCES = 256, 64


class Decoder:
    """Hold a model and a context with room for all sequences."""

    def __init__(self, path: str, threads: int) -> None:
        self.api: Any = importlib.import_module("llama_cpp")
        self.api.llama_backend_init()
        self.model = self.api.llama_model_load_from_file(path.encode(), self.api.llama_model_default_params())
        settings = self.api.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = CONTEXT * SEQUENCES, 2048, 512
        settings.n_seq_max = SEQUENCES
        settings.n_threads = settings.n_threads_batch = threads
        self.context = self.api.llama_init_from_model(self.model, settings)
        self.batch = self.api.llama_batch_init(2048, 0, 1)
        self.vocabulary = self.api.llama_vocab_n_tokens(self.api.llama_model_get_vocab(self.model))

    def decode(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Run rows (token, position, sequence, logits wanted) -> the most probable next token of each wanted row."""
        self.batch.n_tokens = len(rows)
        for index, (token, position, sequence, wanted) in enumerate(rows):
            self.batch.token[index], self.batch.pos[index] = token, position
            self.batch.n_seq_id[index], self.batch.seq_id[index][0] = 1, sequence
            self.batch.logits[index] = wanted
        if self.api.llama_decode(self.context, self.batch):
            sys.exit("llama_decode failed")
        found = []
        for index, row in enumerate(rows):
            if row[3]:
                logits = self.api.llama_get_logits_ith(self.context, index)
                found.append(int(np.ctypeslib.as_array(logits, shape=(self.vocabulary,)).argmax()))
        return found

    def answer(self, task: dict[str, Any]) -> dict[str, Any]:
        """Run one generation of a batch."""
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)  # noqa: FBT003 -- by position only
        prompts, count = task["prompts"], len(task["prompts"])
        last = len(prompts[0]) - 1
        started = time.perf_counter()
        rows = [
            (token, position, sequence, position == last)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        latest = self.decode(rows)
        for made in range(1, task["tokens"]):
            latest = self.decode(
                [(token, last + made, sequence, True) for sequence, token in enumerate(latest)]
            )
        return {"seconds": time.perf_counter() - started, "tokens": count * task["tokens"]}


def main() -> None:
    """Load the model that the first line names, then answer until stdin ends."""
    settings = json.loads(sys.stdin.readline())
    decoder = Decoder(settings["gguf"], settings["threads"])
    system = decoder.api.llama_print_system_info().decode()
    print(json.dumps({"llama-cpp-python": decoder.api.__version__, "built for": system}), flush=True)
    for line in sys.stdin:
        print(json.dumps(decoder.answer(json.loads(line))), flush=True)


main()
