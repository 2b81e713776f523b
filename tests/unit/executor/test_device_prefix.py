"""Resident requests share pages: what they find, emit, hold and record is what the CPU's own runner's requests do."""

from __future__ import annotations

import random
from typing import Any

import pytest
from shipped_specs import sizes

from fsm_spec.compile import compile_table
from fsm_spec.executor.device.pages import DevicePages
from fsm_spec.executor.device.place import CpuPlace
from fsm_spec.executor.device.resident import Resident
from fsm_spec.executor.device.runner import DeviceRunner
from fsm_spec.executor.generate import Options, Result, Session, pool_for, trace_header
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.load import load
from fsm_spec.policy import Policy
from fsm_spec.replay import replay_records
from fsm_spec.trace import TraceWriter

TOKENS, PAGE, VOCABULARY, COMMON = 8, 4, 48, 13
# Ways that KV comes to be: rows in order, along a tree's path, of a context head, beside hidden states, behind blocks.
VARIED = ("ar", "uno_tree", "dflash", "mtp", "block_diffusion")
# Those that are run by a host that plans ahead as well.
LATE = ("ar", "mtp")


@pytest.fixture(scope="module")
def model() -> Transformer:
    """Return a random float64 model of two layers."""
    return tiny_model(vocab=VOCABULARY, hidden=32, heads=2, kv_heads=1)


def prompts(seed: int) -> list[list[int]]:
    """Return prompts of which most begin alike; one ends at a page's end, one token behind it the next."""
    source = random.Random(seed)
    common = [source.randrange(1, VOCABULARY - 1) for _ in range(COMMON)]
    made = [
        common + [source.randrange(1, VOCABULARY - 1) for _ in range(1 + 3 * index)] for index in range(3)
    ]
    return [*made, common[: 2 * PAGE], common[: 2 * PAGE + 1]]


def run(
    spec: str, model: Transformer, resident: Resident | None, lag: int = 0
) -> tuple[list[Result], list[Any]]:
    """Run two waves of prompts in a pool that evicts and preempts, with all books balanced after each iteration."""
    table = compile_table(load(spec).spec, sizes(spec, 4))
    policy = Policy(max_running=3, lag=lag)
    longest = max(len(prompt) for prompt in prompts(0))
    pages = pool_for(table, longest, TOKENS, PAGE, policy).pages
    pool = pool_for(table, longest, TOKENS, PAGE, policy)._replace(pages=pages + pages // 2)
    records: list[Any] = []
    session = Session(
        table,
        model,
        pool=pool,
        policy=policy,
        drafters=random_drafters(table, model),
        trace=TraceWriter(records, trace_header(table, policy, pool, load(spec).text)),
        prefix_cache=True,
        resident=resident,
    )
    numbers = []
    for wave in (0, 1, 0):
        for index, prompt in enumerate(prompts(wave)):
            sampling = SamplingParams(0.9, 12) if index % 2 else SamplingParams()
            numbers.append(session.add(prompt, Options(TOKENS, sampling, index)))
        while session.has_work:
            session.iterate()
            session.allocator.check()
            assert pool.pages == sum(session.pages_by_kind().values())
            assert pool.pages == session.engine.used_pages + session.allocator.free
            if isinstance(session.runner, DeviceRunner):
                assert session.runner.pages.listed == session.runner.free_pages
    replay_records(enumerate(records, start=1))
    return [session.result(number) for number in numbers], records


@pytest.mark.parametrize("spec", VARIED)
def test_pages_that_were_found_give_the_same(spec: str, model: Transformer) -> None:
    """A page under another line's table, or given to two, would show in tokens; a late eviction in the trace."""
    expected, recorded = run(spec, model, None)
    found, records = run(spec, model, Resident(CpuPlace()))
    assert expected == found
    assert recorded == records
    assert max(result.cached_tokens for result in found) > 0
    assert spec != "ar" or any(record.get("event") == "preempt" for record in records)
    if spec not in LATE:
        return
    late, _ = run(spec, model, Resident(CpuPlace()), lag=1)
    # Others are preempted then; those that sample may draw anew from the same law.
    assert [result.token_ids for result in expected[::5]] == [result.token_ids for result in late[::5]]
    assert max(result.cached_tokens for result in late) > 0


def test_what_a_mail_took_back_is_not_learnt() -> None:
    """Numbers of pages come one round late: what left its request meanwhile is the device's again."""
    pages = DevicePages(8, 4)
    pages.resize(1, 3)
    pages.resize(2, 2)
    pages.resize(1, 1)
    pages.release(2)
    pages.learn(1, [7, 6, 5])
    pages.learn(2, [4, 3])
    assert [7] == pages.block_table(1)
    assert 7 == pages.free == pages.listed
    pages.check()
