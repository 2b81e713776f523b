"""Measure acceptance length and tokens per forward of each spec that runs on a model's own weights, on SmolLM2.

Such specs name no adapter and no draft model. Those that read masks were made for models trained to fill them, which
this one is not: their numbers are a floor, not what the algorithm gives on its own model.
Greedy, float32, all prompts together; parameters of at most 8, so that a CPU is done in minutes.
Run: `scripts/bench acceptance`; `python bench/acceptance.py --tokens 8 --specs ar ngram` is a short trial.
Writes bench/results/acceptance.json; exit code 1 if a spec that claims at least greedy differs from plain decoding.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from prompts import MIXED, REPEATING
from record import write_result

from fsm_spec.compile import compile_table
from fsm_spec.executor.generate import Options, Result, Session, pool_for
from fsm_spec.executor.models.load import LoadedModel, load_model
from fsm_spec.load import load, shipped
from fsm_spec.policy import Pool
from fsm_spec.spec import Spec
from fsm_spec.table import Table

PLAIN, MODEL = "ar", "smollm2-135m"
MOST, SIZES = 8, 64


def main() -> int:
    """Measure every spec and write the result."""
    given = _arguments()
    torch.set_num_threads(given.threads)
    model = load_model(MODEL, torch.float32)
    chats = [REPEATING["code edit"], MIXED[2], MIXED[3]]
    prompts = [model.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in chats]
    expected = [result.token_ids for result in _run(model, compile_table(load(PLAIN).spec), prompts, given)]
    cases, wrong = [], []
    for name in given.specs or _untrained():
        case, outputs = _measure(model, name, prompts, given)
        case["equal_to_plain"] = outputs == expected
        if case["claims"] != "no" and not case["equal_to_plain"]:
            wrong.append(name)
        cases.append(case)
        print(
            f"{name:24} acceptance length {case['acceptance_length']:5.2f}, tokens per forward "
            f"{case['tokens_per_forward']:5.2f}, claims {case['claims']}, equal: {case['equal_to_plain']}"
        )
    write_result(
        "acceptance",
        {"model": MODEL, "tokens": given.tokens, "prompts": chats,
         "prompt_tokens": list(map(len, prompts)), "cases": cases},
    )  # fmt: skip
    return int(bool(wrong))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=48, help="tokens of each answer at most")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--specs", nargs="*", default=None, help="specs to measure instead of all")
    return parser.parse_args()


def _untrained() -> list[str]:
    """List the shipped specs that need no weights beside the model's."""
    specs = {name: load(path).spec for name, path in sorted(shipped().items())}
    return [name for name, spec in specs.items() if not spec.models and not _reads_adapter(spec)]


def _reads_adapter(spec: Spec) -> bool:
    return any(row.weights == "adapter" for forward in spec.forwards.values() for row in forward.segments)


def _run(
    model: LoadedModel, table: Table, prompts: list[list[int]], given: argparse.Namespace
) -> list[Result]:
    """Run all prompts together to their ends."""
    longest = pool_for(table, max(map(len, prompts)), given.tokens)
    pool = Pool(longest.pages * len(prompts), longest.page_size)
    session = Session(table, model.transformer, model.tokenizer, pool=pool)
    numbers = [session.add(prompt, Options(given.tokens)) for prompt in prompts]
    session.run()
    return [session.result(number) for number in numbers]


def _measure(
    model: LoadedModel, name: str, prompts: list[list[int]], given: argparse.Namespace
) -> tuple[dict[str, Any], list[list[int]]]:
    """Run one spec -> (its counts over all prompts, its outputs)."""
    spec = load(name).spec
    # Larger defaults are thresholds and bounds, in thousandths.
    sizes = {key: min(each.default, MOST) for key, each in spec.params.items() if each.default <= SIZES}
    table = compile_table(spec, sizes)
    results = _run(model, table, prompts, given)
    rounds, forwards = (sum(getattr(result, what) for result in results) for what in ("rounds", "forwards"))
    emitted = sum(round((result.acceptance_length or 0) * result.rounds) for result in results)
    case = {
        "spec": name, "digest": table.digest, "params": dict(table.params),
        "claims": spec.lossless.claim if spec.lossless else "no",
        "emitted_by_rounds": emitted, "rounds": rounds, "forwards": forwards,
        "acceptance_length": emitted / rounds, "tokens_per_forward": emitted / forwards,
    }  # fmt: skip
    return case, [result.token_ids for result in results]


if __name__ == "__main__":
    sys.exit(main())
