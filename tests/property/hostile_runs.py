"""Runs of a toy model under drawn policies: what executor, simulator and checker could disagree about, drawn together.

What is drawn is in `hostile_cases.py`: policies with chunks, tiers, a budget or a lag, pools that hold the longest
request and little more, and requests that arrive, stop and are given up as they like.
`run_case` raises AssertionError at the first difference. Many cases, beyond what CI runs:
`.venv/bin/python tests/property/hostile_runs.py 0 5000` runs 5000 cases from seed 0 on, `--resizing` those in which a
policy changes sizes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from followed_trace import follow
from hostile_cases import VOCABULARY, Arrival, Case, decoding_specs, draw, draw_resizing, resizing_specs
from page_books import check_pages

from fsm_spec.engine import Engine
from fsm_spec.executor.cache import PageAllocator
from fsm_spec.executor.generate import trace_header
from fsm_spec.executor.operators import Operators
from fsm_spec.executor.prefix_cache import PrefixCache
from fsm_spec.executor.request import Request
from fsm_spec.executor.runner import Runner
from fsm_spec.executor.toy import ToyCache, ToyModel
from fsm_spec.executor.toy_drafters import toy_drafters
from fsm_spec.kernels.choose import CounterChooser
from fsm_spec.life_cycle import ADMIT, PREEMPT
from fsm_spec.load import load
from fsm_spec.replay import replay_records
from fsm_spec.simulator.scripted import rerun
from fsm_spec.tiers import tiers_of
from fsm_spec.trace import TraceWriter

MASK, SUPPORT = 5, 4
# The token of a slot that nobody may read.
STALE: Final = -7
MOST_ITERATIONS: Final = 2_000


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
        trace = TraceWriter(self.records, trace_header(table, case.policy, pool, case.text))
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
        "resized": _resized(records),
        "accepted": sum(record["args"].get("a", 0) for record in steps),
    }


def _resized(records: Iterable[Mapping[str, Any]]) -> int:
    """Count the rounds of requests whose round before ran under another size."""
    sizes: dict[int, int | None] = {}
    resized = 0
    for record in records:
        plan = record.get("plan", {"run": ()})
        for number in plan["run"]:
            resized += sizes.setdefault(number, plan.get("tier")) != plan.get("tier")
            sizes[number] = plan.get("tier")
    return resized


def run_all(cases: Iterable[Case | None]) -> tuple[int, list[str], Counter[str]]:
    """Run cases one after another; gives their number, the failures in words, and what happened in how many cases."""
    drawn, failures, happened = 0, [], Counter[str]()
    for case in cases:
        if case is None:
            continue
        drawn += 1
        try:
            happened.update(key for key, count in run_case(case).items() if count)
        except Exception as error:  # noqa: BLE001 -- whatever goes wrong is what is looked for
            failures.append(f"{case.describe()}\n  {type(error).__name__}: {str(error)[:600]}")
            print(failures[-1], flush=True)
    return drawn, failures, happened


def main(words: Sequence[str]) -> int:
    """Run as many cases as are asked for, print the failures; gives their number."""
    resizing = "--resizing" in words
    first, count, *names = [word for word in words if word != "--resizing"]
    seeds = range(int(first), int(first) + int(count))
    if resizing:
        drawn, failures, happened = run_all(draw_resizing(seed, names or resizing_specs()) for seed in seeds)
    else:
        drawn, failures, happened = run_all(draw(seed, names or decoding_specs()) for seed in seeds)
    print(f"{drawn} cases, {len(failures)} failures; cases with {dict(happened)}")
    return len(failures)


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
