"""Runs of a toy model under drawn policies: what executor, simulator and checker could disagree about, drawn together.

A case draws a spec's parameters, a policy (admission, chunks, tiers that grow and shrink, a budget, a lag), a pool
that holds the longest request and little more, and requests that arrive, stop and are given up as they like.
`run_case` raises AssertionError at the first difference. Many cases, beyond what CI runs:
`.venv/bin/python tests/property/hostile_runs.py 0 5000` runs 5000 cases from seed 0 on.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from followed_trace import follow
from page_books import check_pages
from shipped_specs import SPECS

from fsm_spec.compile import compile_table
from fsm_spec.engine import Engine
from fsm_spec.errors import FsmSpecError
from fsm_spec.executor.cache import PageAllocator
from fsm_spec.executor.generate import trace_header
from fsm_spec.executor.operators import Operators
from fsm_spec.executor.prefix_cache import PrefixCache
from fsm_spec.executor.request import Request
from fsm_spec.executor.runner import Runner
from fsm_spec.executor.toy import ToyCache, ToyModel
from fsm_spec.executor.toy_drafters import toy_drafters
from fsm_spec.kernels.choose import CounterChooser
from fsm_spec.language.spec import Param
from fsm_spec.life_cycle import ADMIT, PREEMPT
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool, longest_pages
from fsm_spec.prefix_cache import refusal
from fsm_spec.replay import replay_records
from fsm_spec.simulator.scripted import rerun
from fsm_spec.table import Table
from fsm_spec.tiers import tiers_of
from fsm_spec.trace import TraceWriter

VOCABULARY, MASK, SUPPORT = 6, 5, 4
# The token of a slot that nobody may read.
STALE: Final = -7
MOST_ITERATIONS: Final = 2_000
# Larger parameters are thresholds and bounds, in thousandths.
_LARGEST_SIZE: Final = 128


@dataclass(frozen=True)
class Arrival:
    """Hold one request: when it comes, what it asks, and the iteration in which it is given up, if it is."""

    at: int
    prompt: tuple[int, ...]
    limit: int
    stops: tuple[int, ...]
    aborted: int | None


@dataclass(frozen=True)
class Case:
    """Hold what one run is made of."""

    seed: int
    table: Table
    policy: Policy
    pool: Pool
    prefix: bool
    arrivals: tuple[Arrival, ...]

    def describe(self) -> str:
        """Name all that was drawn, so that a failure can be read."""
        return (
            f"seed {self.seed}: {self.table.name} {dict(self.table.params)} {self.policy!r} {self.pool} "
            f"prefix={self.prefix} {self.arrivals}"
        )


def _sized(source: random.Random, param: Param) -> int:
    low, high = param.range
    return source.randint(low, high if high > _LARGEST_SIZE else min(high, low + 3))


@cache
def _compiled(name: str, params: tuple[tuple[str, int], ...]) -> Table:
    loaded = load(name)
    return compile_table(loaded.spec, dict(params), line_of=loaded.line_of)


def _draw_policy(source: random.Random, name: str) -> Policy:
    spec = load(name).spec
    policy: dict[str, Any] = {
        "admit": source.choice(["reserve", "holdback", "preempt"]),
        "prefill": {"tokens": source.choice([1, 2, 3, 5, 9, 2048]), "mixed": source.random() < 0.7},
        "max_running": source.choice([1, 2, 3, 4, 256]),
        "lag": source.choice([0, 0, 1]),
    }
    for key, param in spec.params.items():
        if param.tiered and source.random() < 0.8:
            bounds = sorted(source.sample(range(1, 5), source.randint(0, 3)))
            steps: list[dict[str, int]] = [{"to": bound, "value": _sized(source, param)} for bound in bounds]
            policy["tier"] = {"param": key, "steps": [*steps, {"value": _sized(source, param)}]}
    if any(op.op == "budget" for forward in spec.forwards.values() for op in forward.ops):
        rows = sorted(source.sample(range(1, 40), 3))
        rates = [source.randint(1, 50) for _ in rows]
        if source.random() < 0.8:
            policy["budget"] = {"rows": rows, "steps_per_second": rates}
    return Policy.model_validate(policy)


def draw(seed: int, names: Sequence[str]) -> Case | None:
    """Draw a case of one of the specs named; None where the drawn parameters are not the spec's to take."""
    source = random.Random(seed)
    name = source.choice(names)
    params = {key: _sized(source, param) for key, param in load(name).spec.params.items()}
    policy = _draw_policy(source, name)
    try:
        table = _compiled(name, tuple(params.items()))
        tiers = tiers_of(table, policy)
    except FsmSpecError:
        return None
    prefix = not refusal(table) and source.random() < 0.5
    arrivals = tuple(_draw_arrivals(source, prefix=prefix))
    page_size = source.choice([1, 2, 3, 4, 7])
    most = max(
        longest_pages(tiers.largest, Pool(0, page_size), len(each.prompt), each.limit, policy)
        for each in arrivals
    )
    pool = Pool(max(1, most + source.choice([0, 0, 1, 2, 3, 5, 20])), page_size)
    return Case(seed, table, policy, pool, prefix, arrivals)


def _draw_arrivals(source: random.Random, *, prefix: bool) -> Iterator[Arrival]:
    common = tuple(source.randrange(VOCABULARY - 1) for _ in range(source.randint(0, 8) if prefix else 0))
    for _ in range(source.randint(2, 6)):
        own = tuple(source.randrange(VOCABULARY - 1) for _ in range(source.randint(1, 6)))
        prompt = common + own if source.random() < 0.8 else (common or own)
        stops = tuple(source.sample(range(VOCABULARY), source.choice([0, 0, 0, 1])))
        given_up = source.randint(0, 12) if source.random() < 0.15 else None
        yield Arrival(source.choice([0, 0, 1, 2, 4]), prompt, source.randint(0, 14), stops, given_up)


class Drive:
    """Run a case on the toy, and hold books, slots, plans and ways to what the other two say."""

    def __init__(self, case: Case, model: ToyModel) -> None:
        self.case = case
        table, pool = case.table, case.pool
        tiers = tiers_of(table, case.policy)
        slots = pool.pages * pool.page_size
        self.records: list[dict[str, Any]] = []
        self.allocator = PageAllocator(pool.pages, pool.page_size)
        self.runner = Runner(
            tiers.largest,
            model,
            ToyCache(slots),
            self.allocator,
            vocabulary=VOCABULARY,
            mask_id=MASK,
            operators=Operators(CounterChooser(), rate=case.policy.rate),
            carry=tiers.carry,
            drafters=toy_drafters(table, slots, VOCABULARY, SUPPORT),
        )
        prefixes = None
        if case.prefix:
            prefixes = PrefixCache(table, self.allocator, self.runner.requests, "toy")
        self.runner.prefixes = prefixes
        text = load(table.name).text
        trace = TraceWriter(self.records, trace_header(table, case.policy, pool, text))
        self.engine = Engine(table, case.policy, pool, self.runner, trace, prefixes=prefixes)
        self.requests: dict[int, Request] = {}

    def run(self) -> list[list[int]]:
        """Run to the end; gives the outputs in the order of arrival."""
        pending = sorted(self.case.arrivals, key=lambda each: each.at)
        iteration = 0
        while pending or self.engine.has_work:
            iteration += 1
            assert iteration < MOST_ITERATIONS, "requests do not come to their end"
            # Time stands still while nobody is there: the next one comes at once.
            while pending and (pending[0].at <= iteration or not self.engine.has_work):
                self._submit(pending.pop(0))
            for number in self.requests:
                if self.ordered()[number].aborted == iteration:
                    self.engine.abort(number)
            if not self.engine.has_work:
                continue
            report = self.engine.iterate()
            assert not (report.idle and self.engine.has_work), "nothing moves, and requests wait"
            check_pages(self.engine, self.allocator)
            self._make_stale()
        assert self.allocator.free == self.case.pool.pages, "pages are left over"
        return [request.output for request in self.requests.values()]

    def ordered(self) -> list[Arrival]:
        """List the requests by their numbers."""
        return sorted(self.case.arrivals, key=lambda each: each.at)

    def _submit(self, arrival: Arrival) -> None:
        request = Request(arrival.prompt, arrival.limit, stop_ids=arrival.stops)
        number = self.engine.submit(len(arrival.prompt), arrival.limit)
        self.runner.add(number, request)
        self.requests[number] = request

    def _make_stale(self) -> None:
        """Make every slot whose KV is not committed unreadable, so that a wrong read shows as another token."""
        engine, size = self.engine, self.case.pool.page_size
        stale = torch.ones(self.case.pool.pages * size, dtype=torch.bool)
        for page in self.allocator.cached:
            stale[page * size : (page + 1) * size] = False
        for slot in engine.live.tolist():
            kv = int(engine.columns["kv"][slot])
            if kv:
                stale[self.allocator.slots(int(engine.requests[slot]), 0, kv)] = False
        self.runner.cache.tokens[stale] = STALE
        for draft in self.runner.drafting.models.values():
            for place in stale.nonzero()[:, 0].tolist():
                draft.cache.rows[place] = (-1, STALE, 0.0)


@cache
def plain(prompt: tuple[int, ...], limit: int, seed: int) -> tuple[int, ...]:
    """Decode greedily from the definition, with no cache at all."""
    model = _model(seed)
    text = list(prompt)
    for _ in range(limit):
        text.append(int(np.argmax(model.after(tuple(text)))))
    return tuple(text[len(prompt) :])


def expected(arrival: Arrival, seed: int) -> list[int]:
    """Give the plain output of a request, cut behind its first stop token."""
    tokens = list(plain(arrival.prompt, arrival.limit, seed))
    ends = [place for place, token in enumerate(tokens) if token in arrival.stops]
    return tokens[: ends[0] + 1] if ends else tokens


@cache
def _model(seed: int) -> ToyModel:
    return ToyModel(VOCABULARY, SUPPORT, seed)


def run_case(case: Case) -> dict[str, int]:
    """Run a case everywhere; raises AssertionError or an error of ours at the first difference. Gives what happened."""
    seed = case.seed % 7
    drive = Drive(case, _model(seed))
    outputs = drive.run()
    claim = load(case.table.name).spec.lossless
    if claim and claim.claim != "no":
        for arrival, output in zip(drive.ordered(), outputs, strict=True):
            told = expected(arrival, seed)
            assert output == (told if arrival.aborted is None else told[: len(output)]), (
                "greedy output differs"
            )
    records = drive.records
    replayed = replay_records(enumerate(records, start=1))
    assert replayed.ended == len(outputs)
    assert rerun(records)[1:] == records[1:], "the simulator takes other steps"
    steps = [record for record in records if "event" in record]
    return {
        "rounds": follow(case.table, case.policy, case.pool, records),
        "preempted": sum(record["event"] == PREEMPT for record in steps),
        "hits": sum(record["event"] == ADMIT and record["args"]["hit"] > 0 for record in steps),
        "sizes": len({record["plan"].get("tier") for record in records if record.get("plan", {}).get("run")})
        > 1,
        "accepted": sum(record["args"].get("a", 0) for record in steps),
    }


def decoding_specs() -> list[str]:
    """List the shipped specs that have forwards."""
    return [name for name, spec in SPECS.items() if spec.contract is not None]


def main(first: int, count: int, names: Sequence[str]) -> int:
    """Run cases one after another, print the failures; gives their number."""
    failures = drawn = 0
    totals: dict[str, int] = {}
    for seed in range(first, first + count):
        case = draw(seed, names)
        if case is None:
            continue
        drawn += 1
        try:
            for key, value in run_case(case).items():
                totals[key] = totals.get(key, 0) + value
        except Exception as error:  # noqa: BLE001 -- whatever goes wrong is what is looked for
            failures += 1
            print(f"{case.describe()}\n  {type(error).__name__}: {str(error)[:600]}", flush=True)
    print(f"{drawn} cases, {failures} failures, {totals}")
    return failures


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or decoding_specs())))
