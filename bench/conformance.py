"""Hold the greedy output of every spec that claims it, on SmolLM2 in float32, to plain decoding: 20 prompts of 128.

Each spec runs alone, in a batch with room, and in a batch whose pool makes it preempt; those with a tiered parameter
run in a batch under tiers as well. Draft models and adapters are random ones. Every trace is replayed.
A first difference is excused only where the two best logits lie within 1e-4, and is counted.
Run: `scripts/bench conformance`, or with fewer of everything
`python bench/conformance.py --prompts 2 --tokens 24 --specs ngram --cap 8`.
Writes bench/results/conformance.json; exit code 1 if any token differs without excuse.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from prompts import MIXED
from record import write_result

from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.executor.adapter import random_adapter
from fsm_spec.executor.cache import PageAllocator, PagedCache
from fsm_spec.executor.generate import Options, Session, pool_for, trace_header
from fsm_spec.executor.models.load import LoadedModel, load_model
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.load import load, shipped
from fsm_spec.policy import Policy, Pool
from fsm_spec.replay import replay_records
from fsm_spec.table import Table
from fsm_spec.trace import TraceWriter

NEAR_TIE = 1e-4
PAGE = 16


@dataclass(frozen=True)
class Setting:
    """Name one way to run: how many requests together, in how large a pool, with a random adapter or none, in tiers."""

    name: str
    together: bool
    roomy: bool
    adapter: bool
    tiers: bool = False


SETTINGS = (
    Setting("alone", together=False, roomy=True, adapter=True),
    Setting("batched", together=True, roomy=True, adapter=False),
    Setting("batched, tiny pool", together=True, roomy=False, adapter=True),
    Setting("batched, in tiers", together=True, roomy=True, adapter=True, tiers=True),
)


def main() -> int:
    """Run the matrix."""
    given = _arguments()
    torch.set_num_threads(given.threads)
    model = load_model("smollm2-135m", torch.float32)
    chats = [[{"role": "user", "content": text}] for text in MIXED[: given.prompts]]
    prompts = [model.tokenizer.encode_chat(chat) for chat in chats]
    plain, _ = _run(model, _table("ar", None), prompts, given.tokens, SETTINGS[0])
    cases = []
    for spec in given.specs.split(",") if given.specs else _claiming():
        table = _table(spec, given.cap)
        for setting in SETTINGS:
            if setting.tiers and _tiered(table) is None:
                continue
            case = _case(model, table, prompts, given.tokens, setting, plain)
            cases.append(case)
            print(
                f"{table.name:14} {setting.name:20} {case['equal']} of {len(prompts)} equal, "
                f"{case['near_ties']} near ties, {case['preemptions']} preemptions, "
                f"acceptance length {case['acceptance_length']:.2f}, {case['seconds']:.0f} s",
                flush=True,
            )
    wrong = sum(case["differences"] for case in cases)
    write_result(
        "conformance",
        {"model": model.name, "dtype": "float32", "tokens": given.tokens, "near_tie": NEAR_TIE, "cases": cases,
         "differences": wrong, "near_ties": sum(case["near_ties"] for case in cases)},
    )  # fmt: skip
    return int(wrong > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=len(MIXED), help="how many of the prompts")
    parser.add_argument("--tokens", type=int, default=128, help="tokens for each prompt")
    parser.add_argument("--specs", default="", help="names, separated by commas; all shipped ones by default")
    parser.add_argument("--cap", type=int, default=None, help="lower sizes to this value at most")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    return parser.parse_args()


def _claiming() -> list[str]:
    """List the shipped specs whose greedy output is that of plain decoding, as they say."""
    specs = {name: load(path).spec for name, path in sorted(shipped().items())}
    return [name for name, spec in specs.items() if spec.lossless and spec.lossless.claim != "no"]


def _tiered(table: Table) -> str | None:
    """Name the parameter that a policy may choose."""
    return next((name for name, param in table.spec.params.items() if param.tiered), None)


def _policy(table: Table, *, tiers: bool) -> Policy:
    """Give the policy: with tiers, the smallest size while all run, larger ones when few are left."""
    name = _tiered(table)
    if not tiers or name is None:
        return Policy()
    low, high = table.spec.params[name].range[0], table.params[name]
    steps = [{"to": 1, "value": high}, {"to": 2, "value": (low + high) // 2}, {"value": low}]
    return Policy.model_validate({"policy": "sizes", "tier": {"param": name, "steps": steps}})


def _table(spec: str, cap: int | None) -> Table:
    loaded = load(spec)
    table = compile_table(loaded.spec, line_of=loaded.line_of)
    if cap is None:
        return table
    low = {
        name: min(value, max(cap, loaded.spec.params[name].range[0])) for name, value in table.params.items()
    }
    try:
        return compile_table(loaded.spec, low, line_of=loaded.line_of)
    except UserError:  # what the spec requires of its sizes does not hold when all are low
        return compile_table(loaded.spec, check=True, line_of=loaded.line_of)


def _case(
    model: LoadedModel,
    table: Table,
    prompts: list[list[int]],
    tokens: int,
    setting: Setting,
    plain: list[list[int]],
) -> dict[str, Any]:
    """Run one spec in one setting and compare with plain decoding."""
    started = time.perf_counter()
    outputs, counts = _run(model, table, prompts, tokens, setting)
    near, wrong = 0, []
    for index, (expected, found) in enumerate(zip(plain, outputs, strict=True)):
        if expected != found:
            gap = _gap(model, prompts[index], expected, found)
            near += gap <= NEAR_TIE
            if gap > NEAR_TIE:
                wrong.append({"prompt": index, "gap": gap})
    return {
        "spec": table.name, "params": dict(table.params), "digest": table.digest, "setting": setting.name,
        "prompts": len(prompts), "equal": len(prompts) - near - len(wrong), "near_ties": near,
        "differences": len(wrong), "where": wrong, **counts, "seconds": time.perf_counter() - started,
    }  # fmt: skip


def _run(
    model: LoadedModel, table: Table, prompts: list[list[int]], tokens: int, setting: Setting
) -> tuple[list[list[int]], dict[str, Any]]:
    """Run all prompts; every trace is replayed against its spec."""
    adapter = random_adapter(model.config, torch.float32, rank=8) if setting.adapter else None
    model.transformer.adapter = adapter
    outputs: list[list[int]] = []
    preemptions = rounds = emitted = forwards = 0
    sizes: set[int | None] = set()
    for group in [prompts] if setting.together else [[prompt] for prompt in prompts]:
        pool = _pool(table, group, tokens, roomy=setting.roomy)
        policy = _policy(table, tiers=setting.tiers)
        records: list[dict[str, Any]] = []
        trace = TraceWriter(records, trace_header(table, policy, pool, load(table.name).text))
        drafters = random_drafters(table, model.transformer)
        session = Session(
            table,
            model.transformer,
            model.tokenizer,
            pool=pool,
            policy=policy,
            trace=trace,
            drafters=drafters,
        )
        numbers = [session.add(prompt, Options(tokens)) for prompt in group]
        session.run()
        replay_records(enumerate(records, start=1))
        results = [session.result(number) for number in numbers]
        outputs += [result.token_ids for result in results]
        sizes |= {record["plan"].get("tier") for record in records if record.get("plan", {}).get("run")}
        preemptions += sum(record.get("event") == "preempt" for record in records)
        rounds += sum(result.rounds for result in results)
        forwards += sum(result.forwards for result in results)
        emitted += sum(len(result.token_ids) - 1 for result in results)
    model.transformer.adapter = None
    counts = {
        "preemptions": preemptions,
        "sizes": len(sizes),
        "acceptance_length": emitted / max(rounds, 1),
        "tokens_per_forward": emitted / max(forwards, 1),
    }
    return outputs, counts


def _pool(table: Table, group: list[list[int]], tokens: int, *, roomy: bool) -> Pool:
    """Size the pool: room for all, or for a third of what all need at their ends, so that some must give way."""
    needs = [pool_for(table, len(prompt), tokens, PAGE).pages for prompt in group]
    return Pool(sum(needs) if roomy else max(*needs, sum(needs) // 3), PAGE)


def _gap(model: LoadedModel, prompt: list[int], expected: list[int], found: list[int]) -> float:
    """Return the distance of the two best logits where two texts part; infinite where one is the other's start."""
    shared = 0
    while shared < min(len(expected), len(found)) and expected[shared] == found[shared]:
        shared += 1
    if shared == min(len(expected), len(found)):
        return float("inf")
    text = torch.tensor([*prompt, *expected[:shared]])
    pages = -(-len(text) // PAGE)
    allocator = PageAllocator(pages, PAGE)
    allocator.resize(0, pages)
    rows = RowBatch(
        token_ids=text,
        positions=torch.arange(len(text)),
        slots=allocator.slots(0, 0, len(text)),
        row_start=[0, len(text)],
        context_slots=torch.zeros(1, 0, dtype=torch.int64),
        context=[0],
        masks=[torch.ones(len(text), len(text), dtype=torch.bool).tril()],
        logits_rows=torch.tensor([len(text) - 1]),
    )
    cache = PagedCache(model.config, pages, PAGE, torch.float32)
    best = model.transformer.forward(rows, cache)[0].topk(2).values
    return float(best[0] - best[1])


if __name__ == "__main__":
    sys.exit(main())
