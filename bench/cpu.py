"""Time decoding of SmolLM2-135M in bfloat16 on a CPU beside Hugging Face transformers' generate, in turn.

Plain decoding at batch 1, 8 and 32 (all tokens are made, no stop), prompt lookup on prompts whose answers repeat
them, and the cost of one forward by its rows. Runs of both alternate within a repeat, and a ratio is the median of
those of each repeat, so that a machine that is slow for a while is slow for both. Goals: 1.1 times transformers at
batch 1, 1.05 times at batch 8, 1.3 times its prompt lookup; 8 rows cost little more than 1.
transformers is taken from this environment, or from that of the Python which `--hf-python` names; without it only
our own numbers are printed.
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
CHILD = Path(__file__).with_name("cpu_child.py")
# Tokens made for each request, by batch: about the same seconds for each.
BATCHES = {1: 96, 8: 64, 32: 48}
PROMPT, CONTEXT, ROWS = 32, 256, (1, 2, 4, 8, 16, 32)
Answer = dict[str, Any]


class Peer:
    """Ask a process that runs transformers; `None` in place of an answer once it has failed."""

    def __init__(self, python: str | None, settings: dict[str, Any]) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.about: Answer | None = None
        if python is None:
            print("transformers is not importable here; name a Python that has it with --hf-python")
            return
        self.process = subprocess.Popen(
            [python, str(CHILD)],
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
            print("transformers failed; its numbers are left out from here on", file=sys.stderr)
            self.close()
            return None
        return answer

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
    model = load_model(MODEL, torch.bfloat16)
    settings = {"folder": str(model.folder), "dtype": DTYPE, "threads": given.threads}
    plain, lookup = (compile_table(load(name).spec) for name in ("ar", "ngram"))
    if given.drafts:
        lookup = compile_table(load("ngram").spec, {"k": given.drafts})
    peer = Peer(
        given.hf_python or (sys.executable if importlib.util.find_spec("transformers") else None), settings
    )
    try:
        batches = [_batch(model, plain, peer, batch, tokens, given) for batch, tokens in BATCHES.items()]
        lookups = [_lookup(model, lookup, peer, title, given) for title in REPEATING]
    finally:
        about = peer.about
        peer.close()
    rows = _rows(model, 5 if given.quick else 15)
    print("one forward by rows: " + ", ".join(f"{count} rows {ms:.1f} ms" for count, ms in rows.items()))
    write_result(
        "cpu",
        {"model": MODEL, "dtype": DTYPE, "threads": given.threads, "repeats": given.repeats, "peer": about,
         "digests": {table.name: table.digest for table in (plain, lookup)}, "drafts": dict(lookup.params)["k"],
         "quick": given.quick, "batches": batches, "lookup": lookups, "forward_ms_by_rows": rows},
    )  # fmt: skip


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
    parser.add_argument("--quick", action="store_true", help="one repeat of fewer tokens")
    given = parser.parse_args()
    if given.quick:
        given.repeats = 1
    return given


def _batch(
    model: LoadedModel, table: Table, peer: Peer, batch: int, tokens: int, given: argparse.Namespace
) -> dict[str, Any]:
    """Alternate plain decoding of a batch of prompts of equal length."""
    tokens = tokens // 3 if given.quick else tokens
    text = model.tokenizer.encode(ARTICLE + "\n\n" + CODE)
    prompts = [text[5 * number : 5 * number + PROMPT] for number in range(batch)]
    case = _alternate(
        lambda count: _ours(model, table, prompts, Options(count, stop_ids=())),
        lambda count: peer.ask({"prompts": prompts, "tokens": count, "stop": None, "drafts": 0}),
        tokens,
        given.repeats,
    )
    _print(f"ar, batch {batch}", case)
    return {"batch": batch, "tokens": tokens, **case}


def _lookup(
    model: LoadedModel, table: Table, peer: Peer, title: str, given: argparse.Namespace
) -> dict[str, Any]:
    """Alternate prompt lookup on one prompt whose answer repeats it."""
    prompt = model.tokenizer.encode_chat([{"role": "user", "content": REPEATING[title]}])
    stop = sorted(model.config.eos_token_ids)
    case = _alternate(
        lambda count: _ours(model, table, [prompt], Options(count)),
        lambda count: peer.ask({"prompts": [prompt], "tokens": count, "stop": stop, "drafts": given.drafts}),
        64 if given.quick else 192,
        given.repeats,
    )
    _print(f"lookup, {title}", case)
    return {"prompt": title, "prompt_tokens": len(prompt), **case}


def _ours(model: LoadedModel, table: Table, prompts: list[list[int]], options: Options) -> Answer:
    """Run a batch to its end, from the arrival of all requests."""
    each = pool_for(table, len(prompts[0]), options.max_tokens)
    pool = Pool(each.pages * len(prompts), each.page_size)
    session = Session(table, model.transformer, model.tokenizer, pool=pool)
    started = time.perf_counter()
    numbers = [session.add(prompt, options) for prompt in prompts]
    session.run()
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "tokens": sum(len(session.result(number).token_ids) for number in numbers)}


def _alternate(
    ours: Callable[[int], Answer], theirs: Callable[[int], Answer | None], tokens: int, repeats: int
) -> dict[str, Any]:
    """Run both in turn, after a short run of each that is not counted; speeds are the best of all repeats."""
    ours(4)
    theirs(4)
    speeds: list[float] = []
    others: list[float] = []
    for _ in range(repeats):
        for run, found in ((ours, speeds), (theirs, others)):
            answer = run(tokens)
            if answer is not None:
                found.append(answer["tokens"] / answer["seconds"])
    case: dict[str, Any] = {"tokens_per_s": max(speeds), "all_tokens_per_s": speeds}
    if len(others) == len(speeds):
        ratio = median(own / other for own, other in zip(speeds, others, strict=True))
        case |= {"transformers_tokens_per_s": max(others), "all_transformers": others, "ratio": ratio}
    return case


def _print(title: str, case: dict[str, Any]) -> None:
    line = f"{title:28} {case['tokens_per_s']:7.1f} tok/s"
    if "ratio" in case:
        line += f", transformers {case['transformers_tokens_per_s']:7.1f} tok/s, ratio {case['ratio']:.2f}"
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
