"""Measure acceptance length and tokens per forward of each spec that runs on a model's own weights, on SmolLM2.

Such specs name no adapter and no draft model. Those that read masks were made for models trained to fill them, which
this one is not: their numbers are a floor, not what the algorithm gives on its own model.
Greedy, float32, all prompts together; parameters of at most 8, so that a CPU is done in minutes.
Run: `scripts/bench acceptance`; `python bench/acceptance.py --tokens 8 --specs ar ngram` is a short trial.
Writes bench/results/acceptance.json, and with `--profiles FOLDER` what `fsm-spec simulate --acceptance` reads: a file
for each spec that judges drafts, of a few prompts; raise --tokens for rates that are worth something.
Exit code 1 if a spec that claims at least greedy differs from plain decoding.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

import torch
import yaml
from prompts import MIXED, REPEATING
from record import write_result

from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.executor.generate import Options, Result, Session, pool_for, trace_header
from fsm_spec.executor.models.load import LoadedModel, load_model
from fsm_spec.language.spec import Spec
from fsm_spec.load import load, shipped
from fsm_spec.policy import Policy, Pool
from fsm_spec.simulator.recording import record
from fsm_spec.table import Table
from fsm_spec.trace import TraceWriter

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
    parser.add_argument("--profiles", type=Path, default=None, help="folder for acceptance profiles")
    parser.add_argument("--specs", nargs="*", default=None, help="specs to measure instead of all")
    return parser.parse_args()


def _untrained() -> list[str]:
    """List the shipped specs that need no weights beside the model's."""
    specs = {name: load(path).spec for name, path in sorted(shipped().items())}
    return [name for name, spec in specs.items() if not spec.models and not _reads_adapter(spec)]


def _reads_adapter(spec: Spec) -> bool:
    return any(row.weights == "adapter" for forward in spec.forwards.values() for row in forward.segments)


def _run(
    model: LoadedModel,
    table: Table,
    prompts: list[list[int]],
    given: argparse.Namespace,
    trace: tuple[IO[str], str] | None = None,
) -> list[Result]:
    """Run all prompts together to their ends; `trace` is a file for what happens, and the text of the spec."""
    longest = pool_for(table, max(map(len, prompts)), given.tokens)
    pool = Pool(longest.pages * len(prompts), longest.page_size)
    writer = None if trace is None else TraceWriter(trace[0], trace_header(table, Policy(), pool, trace[1]))
    session = Session(table, model.transformer, model.tokenizer, policy=Policy(), pool=pool, trace=writer)
    numbers = [session.add(prompt, Options(given.tokens)) for prompt in prompts]
    session.run()
    return [session.result(number) for number in numbers]


def _measure(
    model: LoadedModel, name: str, prompts: list[list[int]], given: argparse.Namespace
) -> tuple[dict[str, Any], list[list[int]]]:
    """Run one spec -> (its counts over all prompts, its outputs)."""
    loaded = load(name)
    spec = loaded.spec
    # Larger defaults are thresholds and bounds, in thousandths.
    sizes = {key: min(each.default, MOST) for key, each in spec.params.items() if each.default <= SIZES}
    table = compile_table(spec, sizes)
    with NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        results = _run(model, table, prompts, given, (file, loaded.text))
        file.flush()
        if given.profiles is not None:
            _write_profile(given.profiles, name, Path(file.name))
    rounds, forwards = (sum(getattr(result, what) for result in results) for what in ("rounds", "forwards"))
    emitted = sum(round((result.acceptance_length or 0) * result.rounds) for result in results)
    case = {
        "spec": name, "digest": table.digest, "params": dict(table.params),
        "claims": spec.lossless.claim if spec.lossless else "no",
        "emitted_by_rounds": emitted, "rounds": rounds, "forwards": forwards,
        "acceptance_length": emitted / rounds, "tokens_per_forward": emitted / forwards,
    }  # fmt: skip
    return case, [result.token_ids for result in results]


def _write_profile(folder: Path, name: str, trace: Path) -> None:
    """Write the acceptance profile of a spec; a sentence where it has none."""
    try:
        found = record([(MODEL, trace)]).model_copy(
            update={"source": f"bench/acceptance.py, {MODEL}, greedy"}
        )
    except UserError as error:
        print(f"  no profile: {error}")
        return
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(found.model_dump(mode="json", exclude_defaults=True), sort_keys=False, width=110)
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
