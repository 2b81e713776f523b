"""Time decoding of SmolLM2-135M in bfloat16 on a CPU beside Hugging Face transformers' generate, in turn.

Plain decoding at batch 1, 8 and 32 (all tokens are made, no stop), prompt lookup on prompts whose answers repeat
them, and the cost of one forward by its rows; each also with weights of 8-bit integers, named apart. All runs alternate
within a repeat, and a ratio is the median of those of each repeat, so that a machine that is slow for a while is slow
for all. Goals: 1.1 times transformers at batch 1, 1.05 times at batch 8, 1.3 times its prompt lookup, 1.5 times with
8-bit weights, and ahead of llama.cpp's Q4_1 at batch 32; 8 rows cost little more than 1.
transformers is taken from this environment, or from that of the Python which `--hf-python` names; llama.cpp where
`--llama-python` names a Python with llama-cpp-python and `--gguf` a file of the model. Without a peer its numbers are
left out.
Run: `scripts/bench cpu`; `python bench/cpu.py --quick` takes under a minute. Writes bench/results/cpu.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from prompts import ARTICLE, CODE, REPEATING
from record import write_result

from fsm_spec.compile import compile_table
from fsm_spec.executor.cache import PagedCache
from fsm_spec.executor.generate import Options, Session, pool_for
from fsm_spec.executor.models.load import LoadedModel, load_model
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.load import load
from fsm_spec.policy import Pool
from fsm_spec.table import Table

MODEL, DTYPE = "smollm2-135m", "bfloat16"
FOLDER = Path(__file__).parent
# Where an answer of ours with 8-bit weights, or of a peer, stands in a case.
INT8, HF, LLAMA = "int8", "transformers", "llama_cpp"
# Tokens made for each request, by batch: about the same seconds for each.
BATCHES = {1: 96, 8: 64, 32: 48}
PROMPT, CONTEXT, ROWS = 32, 256, (1, 2, 4, 8, 16, 32)
Answer = dict[str, Any]


class Peer:
    """Ask a process that runs another engine; `None` in place of an answer where there is none, or it has failed."""

    def __init__(self, name: str, python: str | None, child: str, settings: dict[str, Any]) -> None:
        self.name = name
        self.process: subprocess.Popen[str] | None = None
        self.about: Answer | None = None
        if python is None:
            print(f"no Python with {name} was named; its numbers are left out")
            return
        self.process = subprocess.Popen(
            [python, str(FOLDER / child)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.about = self.ask(settings)

    def ask(self, task: dict[str, Any]) -> Answer | None:
        """Send a task and wait for its answer."""
        if self.process is None:
            return None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(task) + "\n")
            self.process.stdin.flush()
            answer: Answer = json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            print(f"{self.name} failed; its numbers are left out from here on", file=sys.stderr)
            self.close()
            return None
        return answer

    def run(self, task: dict[str, Any], tokens: int) -> Answer | None:
        """Run a task for a number of tokens."""
        return self.ask({**task, "tokens": tokens})

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process = None


def main() -> None:
    """Measure everything and write the result."""
    given = _arguments()
    torch.set_num_threads(given.threads)
    models = {
        "": load_model(MODEL, torch.bfloat16),
        INT8: load_model(MODEL, torch.bfloat16, int8=True),
    }
    plain, lookup = (compile_table(load(name).spec) for name in ("ar", "ngram"))
    if given.drafts:
        lookup = compile_table(load("ngram").spec, {"k": given.drafts})
    peers = _peers(given, models[""])
    try:
        batches = [_batch(models, plain, peers, batch, tokens, given) for batch, tokens in BATCHES.items()]
        lookups = [_lookup(models, lookup, peers[0], title, given) for title in REPEATING]
    finally:
        about = {peer.name: peer.about for peer in peers}
        for peer in peers:
            peer.close()
    rows = {name: _rows(model, 5 if given.quick else 15) for name, model in models.items()}
    for name, found in rows.items():
        line = ", ".join(f"{count} rows {ms:.1f} ms" for count, ms in found.items())
        print(f"one forward by rows{name and f', {name}'}: {line}")
    write_result(
        "cpu",
        {"model": MODEL, "dtype": DTYPE, "threads": given.threads, "repeats": given.repeats, "peers": about,
         "digests": {table.name: table.digest for table in (plain, lookup)}, "drafts": dict(lookup.params)["k"],
         "quick": given.quick, "batches": batches, "lookup": lookups, "forward_ms_by_rows": rows[""],
         "int8_forward_ms_by_rows": rows[INT8]},
    )  # fmt: skip


def _peers(given: argparse.Namespace, model: LoadedModel) -> tuple[Peer, Peer]:
    """Start transformers and llama.cpp, where they are."""
    own = sys.executable if importlib.util.find_spec("transformers") else None
    settings = {"folder": str(model.folder), "dtype": DTYPE, "threads": given.threads, "gguf": given.gguf}
    return (
        Peer(HF, given.hf_python or own, "cpu_child.py", settings),
        Peer(LLAMA, given.llama_python if given.gguf else None, "llama_child.py", settings),
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="runs of each; ratios are medians")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch, on both sides")
    parser.add_argument(
        "--drafts", type=int, default=10, help="most drafts a round of prompt lookup, on both sides"
    )
    parser.add_argument("--hf-python", default=None, help="a Python that has transformers")
    parser.add_argument("--llama-python", default=None, help="a Python that has llama-cpp-python")
    parser.add_argument("--gguf", default=None, help="the model as llama.cpp reads it")
    parser.add_argument("--quick", action="store_true", help="one repeat of fewer tokens")
    given = parser.parse_args()
    if given.quick:
        given.repeats = 1
    return given


def _batch(
    models: dict[str, LoadedModel],
    table: Table,
    peers: tuple[Peer, Peer],
    batch: int,
    tokens: int,
    given: argparse.Namespace,
) -> dict[str, Any]:
    """Alternate plain decoding of a batch of prompts of equal length."""
    tokens = tokens // 3 if given.quick else tokens
    text = models[""].tokenizer.encode(ARTICLE + "\n\n" + CODE)
    prompts = [text[5 * number : 5 * number + PROMPT] for number in range(batch)]
    runs = _own_runs(models, table, prompts, ())
    for peer in peers:
        runs[peer.name] = partial(peer.run, {"prompts": prompts, "stop": None, "drafts": 0})
    case = _alternate(runs, tokens, given.repeats)
    _print(f"ar, batch {batch}", case)
    return {"batch": batch, "tokens": tokens, **case}


def _lookup(
    models: dict[str, LoadedModel], table: Table, peer: Peer, title: str, given: argparse.Namespace
) -> dict[str, Any]:
    """Alternate prompt lookup on one prompt whose answer repeats it."""
    model = models[""]
    prompt = model.tokenizer.encode_chat([{"role": "user", "content": REPEATING[title]}])
    stop = sorted(model.config.eos_token_ids)
    task = {"prompts": [prompt], "stop": stop, "drafts": given.drafts}
    runs = _own_runs(models, table, [prompt], None)
    runs[peer.name] = partial(peer.run, task)
    case = _alternate(runs, 64 if given.quick else 192, given.repeats)
    _print(f"lookup, {title}", case)
    return {"prompt": title, "prompt_tokens": len(prompt), **case}


def _own_runs(
    models: dict[str, LoadedModel], table: Table, prompts: list[list[int]], stop: tuple[int, ...] | None
) -> dict[str, Callable[[int], Answer | None]]:
    """Give what runs a batch on each of our models for a number of tokens."""
    return {name: partial(_ours, model, table, prompts, stop) for name, model in models.items()}


def _ours(
    model: LoadedModel, table: Table, prompts: list[list[int]], stop: tuple[int, ...] | None, tokens: int
) -> Answer:
    """Run a batch to its end, from the arrival of all requests."""
    options = Options(tokens, stop_ids=stop)
    each = pool_for(table, len(prompts[0]), tokens)
    pool = Pool(each.pages * len(prompts), each.page_size)
    session = Session(table, model.transformer, model.tokenizer, pool=pool)
    started = time.perf_counter()
    numbers = [session.add(prompt, options) for prompt in prompts]
    session.run()
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "tokens": sum(len(session.result(number).token_ids) for number in numbers)}


def _alternate(runs: dict[str, Callable[[int], Answer | None]], tokens: int, repeats: int) -> dict[str, Any]:
    """Run all in turn, after a short run of each that is not counted; speeds are the best of all repeats."""
    for run in runs.values():
        run(4)
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            answer = run(tokens)
            if answer is not None:
                speeds[name].append(answer["tokens"] / answer["seconds"])
    own = speeds.pop("")
    case: dict[str, Any] = {"tokens_per_s": max(own), "all_tokens_per_s": own}
    for name, found in speeds.items():
        if len(found) == repeats:
            case |= {f"{name}_tokens_per_s": max(found), f"all_{name}": found}
    for peer, key in ((HF, "ratio"), (LLAMA, "llama_ratio")):
        if f"all_{peer}" in case:
            case |= {key: _ratio(own, case[f"all_{peer}"])}
            case |= {f"int8_{key}": _ratio(case[f"all_{INT8}"], case[f"all_{peer}"])}
    return case


def _ratio(own: list[float], others: list[float]) -> float:
    return median(one / other for one, other in zip(own, others, strict=True))


def _print(title: str, case: dict[str, Any]) -> None:
    line = f"{title:28} {case['tokens_per_s']:7.1f} tok/s, int8 {case[f'{INT8}_tokens_per_s']:7.1f}"
    for peer, key in ((HF, "ratio"), (LLAMA, "llama_ratio")):
        if key in case:
            line += f"; {peer} {case[f'{peer}_tokens_per_s']:7.1f}"
            line += f", ratio {case[key]:.2f}, int8 {case[f'int8_{key}']:.2f}"
    print(line, flush=True)


def _rows(model: LoadedModel, repeats: int) -> dict[int, float]:
    """Time one forward of one request by its rows, all with logits -> least milliseconds."""
    config, page = model.transformer.config, 16
    cache = PagedCache(config, -(-(CONTEXT + max(ROWS)) // page), page, model.transformer.dtype)
    batches = {count: _one_request(count) for count in ROWS}
    least = dict.fromkeys(ROWS, float("inf"))
    for _ in range(repeats):
        for count, batch in batches.items():
            started = time.perf_counter()
            model.transformer.forward(batch, cache)
            least[count] = min(least[count], 1000 * (time.perf_counter() - started))
    return least


def _one_request(count: int) -> RowBatch:
    """Lay out causal rows behind a context."""
    return RowBatch(
        token_ids=torch.arange(100, 100 + count),
        positions=torch.arange(CONTEXT, CONTEXT + count),
        slots=torch.arange(CONTEXT, CONTEXT + count),
        row_start=[0, count],
        context_slots=torch.arange(CONTEXT)[None],
        context=[CONTEXT],
        masks=[torch.ones(count, count, dtype=torch.bool).tril()],
        logits_rows=torch.arange(count),
    )


if __name__ == "__main__":
    main()
