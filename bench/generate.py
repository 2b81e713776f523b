"""Time prompt lookup against plain decoding on two prompts whose answers repeat the prompt, on SmolLM2.

Beside them Hugging Face transformers' generate, plain and with prompt lookup, where it is importable: here, or in the
environment whose Python `--hf-python` names. Runs alternate, and medians are given.
Run: `scripts/bench generate`; `python bench/generate.py --repeats 1 --tokens 32` is a short trial.
Writes bench/results/generate.json; exit code 1 if tokens differ in float32.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from prompts import REPEATING
from record import write_result

from fsm_spec.compile import compile_table
from fsm_spec.executor.generate import Options, Result, Session, pool_for
from fsm_spec.executor.models.load import LoadedModel, load_model
from fsm_spec.load import load
from fsm_spec.table import Table

PLAIN, LOOKUP = "ar", "ngram"
CHILD = Path(__file__).with_name("transformers_child.py")


def main() -> int:
    """Measure everything and write the result."""
    given = _arguments()
    torch.set_num_threads(given.threads)
    loaded = load(LOOKUP)
    tables = {PLAIN: compile_table(load(PLAIN).spec), LOOKUP: compile_table(loaded.spec, {"k": given.drafts})}
    cases = []
    for name in ("float32", "bfloat16"):
        model = load_model("smollm2-135m", {"float32": torch.float32, "bfloat16": torch.bfloat16}[name])
        chats = {
            title: model.tokenizer.encode_chat([{"role": "user", "content": text}])
            for title, text in REPEATING.items()
        }
        others = _transformers(given, model, name, list(chats.values()))
        for index, (title, prompt) in enumerate(chats.items()):
            case = {"prompt": title, "dtype": name, **_compare(model, tables, prompt, given)}
            output = case.pop("token_ids")
            if others:
                other = others[index]
                case["transformers"] = other | {"tokens_equal": other.pop("token_ids") == output}
            cases.append(case)
            _print(case)
    wrong = [case for case in cases if case["dtype"] == "float32" and not case["tokens_equal"]]
    write_result(
        "generate",
        {"model": "smollm2-135m", "threads": given.threads, "repeats": given.repeats, "tokens": given.tokens,
         "params": dict(tables[LOOKUP].params),
         "digests": {spec: table.digest for spec, table in tables.items()}, "cases": cases},
    )  # fmt: skip
    return int(bool(wrong))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=256, help="most tokens of an answer")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each; medians are given")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--drafts", type=int, default=4, help="most drafts a round")
    parser.add_argument("--hf-python", default=None, help="a Python that has transformers")
    return parser.parse_args()


def _once(model: LoadedModel, table: Table, prompt: list[int], tokens: int) -> tuple[float, Result]:
    """Run one request to its end -> (seconds from its arrival, result)."""
    session = Session(table, model.transformer, model.tokenizer, pool=pool_for(table, len(prompt), tokens))
    started = time.perf_counter()
    number = session.add(prompt, Options(tokens))
    session.run()
    return time.perf_counter() - started, session.result(number)


def _compare(
    model: LoadedModel, tables: dict[str, Table], prompt: list[int], given: argparse.Namespace
) -> dict[str, Any]:
    """Alternate the specs, after one run of each that is not counted."""
    results = {spec: _once(model, table, prompt, given.tokens)[1] for spec, table in tables.items()}
    output = results[PLAIN].token_ids
    seconds: dict[str, list[float]] = {spec: [] for spec in tables}
    for _ in range(given.repeats):
        for spec, table in tables.items():
            seconds[spec].append(_once(model, table, prompt, given.tokens)[0])
    speed = {spec: len(results[spec].token_ids) / median(seconds[spec]) for spec in tables}
    return {
        "prompt_tokens": len(prompt),
        "tokens": len(output),
        "tokens_equal": output == results[LOOKUP].token_ids,
        "token_ids": output,
        "acceptance_length": results[LOOKUP].acceptance_length,
        "tokens_per_s": speed,
        "ratio": speed[LOOKUP] / speed[PLAIN],
        "seconds": seconds,
    }


def _transformers(
    given: argparse.Namespace, model: LoadedModel, dtype: str, prompts: list[list[int]]
) -> list[dict[str, Any]] | None:
    """Measure transformers' generate in a process of its own; None where there is no transformers."""
    python = given.hf_python or (sys.executable if importlib.util.find_spec("transformers") else None)
    if python is None:
        print(
            "transformers is not importable here; name a Python that has it with --hf-python", file=sys.stderr
        )
        return None
    task = {
        "folder": str(model.folder), "dtype": dtype, "threads": given.threads, "repeats": given.repeats,
        "tokens": given.tokens, "drafts": given.drafts, "prompts": prompts, "stop": model.config.eos_token_ids,
    }  # fmt: skip
    done = subprocess.run(
        [python, str(CHILD)], input=json.dumps(task), capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"transformers failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def _print(case: dict[str, Any]) -> None:
    speed = case["tokens_per_s"]
    print(
        f"{case['dtype']:9} {case['prompt']:20} plain {speed[PLAIN]:6.1f} tok/s, lookup {speed[LOOKUP]:6.1f} tok/s, "
        f"ratio {case['ratio']:.2f}, acceptance length {case['acceptance_length']:.2f}, "
        f"{case['tokens']} tokens, equal: {case['tokens_equal']}"
    )
    other = case.get("transformers")
    if other:
        print(
            f"{'':9} {'transformers':20} plain {other['plain']:6.1f} tok/s, lookup {other['lookup']:6.1f} tok/s, "
            f"our tokens: {other['tokens_equal']}"
        )


if __name__ == "__main__":
    sys.exit(main())
