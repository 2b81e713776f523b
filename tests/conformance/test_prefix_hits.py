"""A request that starts behind pages it found goes on as one that computed them: tokens, drafts, pages and trace."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from shipped_specs import SPECS, sizes

from fsm_spec.executor.generate import Options, Result, Session, pool_for, trace_header
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool, fill_slots
from fsm_spec.prefix_cache import refusal, usable
from fsm_spec.replay import replay_records
from fsm_spec.simulator.scripted import rerun
from fsm_spec.table import Table
from fsm_spec.trace import TraceWriter

Tables = Callable[..., Table]
VOCABULARY, TOKENS, FEW, PAGE = 48, 16, 6, 8
# Tokens that all prompts begin with.
COMMON = 21


# Their kept rows see the whole block.
REFUSED = ("fast_dllm", "low_confidence", "sdar", "sdar_entropy", "sdar_sequential", "sdar_static")
# One for each way that KV or draft models' KV comes to be.
VARIED = ("ar", "uno_linear", "uno_tree", "quadratic", "draft_lm", "dflash", "eagle3", "mtp", "fast_diffuser")


@dataclass(frozen=True)
class Served:
    """Hold what a session with a prefix cache gave: results, the tokens that each admission found, preemptions."""

    results: list[Result]
    hits: list[int]
    preemptions: int


@pytest.fixture(scope="module")
def model() -> Transformer:
    """Return a random float64 model of two layers."""
    return tiny_model(vocab=VOCABULARY, hidden=32, heads=2, kv_heads=1)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Return prompts that begin alike; two of them end at a page's end, or one token behind it."""
    source = random.Random(0)
    common = [source.randrange(1, VOCABULARY - 1) for _ in range(COMMON)]
    made = [
        common + [source.randrange(1, VOCABULARY - 1) for _ in range(3 + 4 * index)] for index in range(2)
    ]
    return [*made, common[: 2 * PAGE], common[: 2 * PAGE + 1]]


def cold(
    model: Transformer, table: Table, prompts: Sequence[Sequence[int]], tokens: int = TOKENS
) -> list[Result]:
    """Run each prompt alone, in a session that has computed nothing before."""
    given = []
    for prompt in prompts:
        session = Session(table, model, pool=Pool(64, PAGE), drafters=random_drafters(table, model))
        number = session.add(prompt, Options(tokens))
        session.run()
        given.append(session.result(number))
    return given


def warm(
    model: Transformer,
    table: Table,
    waves: Sequence[tuple[Sequence[Sequence[int]], int]],
    pool: Pool,
    policy: Policy,
) -> Served:
    """Run waves of prompts, each for so many tokens, with a prefix cache.

    Books balance at every iteration; the traces of VARIED specs replay, and run again to the same records.
    """
    records: list[dict[str, Any]] = []
    writer = TraceWriter(records, trace_header(table, policy, pool, load(table.name).text))
    drafters = random_drafters(table, model)
    session = Session(
        table, model, pool=pool, policy=policy, drafters=drafters, trace=writer, prefix_cache=True
    )
    numbers = []
    for wave, tokens in waves:
        numbers += [session.add(prompt, Options(tokens)) for prompt in wave]
        while session.has_work:
            session.iterate()
            session.allocator.check()
            kinds = session.pages_by_kind()
            assert pool.pages == sum(kinds.values())
            assert session.engine.used_pages + session.allocator.free == pool.pages
    # A second compilation costs as much as the run.
    if table.name in VARIED:
        replay_records(enumerate(records, start=1))
        assert records[1:] == rerun(records)[1:]
    steps = [record for record in records if "event" in record]
    return Served(
        [session.result(number) for number in numbers],
        [step["args"]["hit"] for step in steps if step["event"] == "admit"],
        sum(step["event"] == "preempt" for step in steps),
    )


@pytest.mark.parametrize("name", SPECS)
def test_a_hit_equals_a_cold_run(
    name: str, model: Transformer, table_of: Tables, prompts: list[list[int]]
) -> None:
    """KV of masks or drafts under a text, or a draft model's KV that is missing, shows in tokens or in acceptance."""
    table = table_of(name, **sizes(name, 4))
    assert (name in REFUSED) == bool(refusal(table))
    if name in REFUSED:
        return
    (first,) = cold(model, table, prompts[:1])
    turn = [*prompts[0], *first.token_ids, 3]
    later = [prompts[2], turn] if name in VARIED else [turn]
    expected = [first, *cold(model, table, later, FEW)]
    roomy = warm(model, table, [(prompts[:1], TOKENS), (later, FEW)], Pool(100, PAGE), Policy())
    assert [each.token_ids for each in expected] == [each.token_ids for each in roomy.results]
    assert [each.acceptance_length for each in expected] == [each.acceptance_length for each in roomy.results]
    # A text is never found whole, and the next turn starts behind what rounds left of the answer before it.
    fill = fill_slots(table, len(prompts[2]), 0)
    found = [PAGE * usable(table, PAGE, COMMON // PAGE, fill)] if name in VARIED else []
    assert [0, *found] == roomy.hits[:-1]
    assert len(prompts[2]) > max(found, default=0)
    assert roomy.hits[-1] > len(prompts[0])
    assert roomy.hits == [each.cached_tokens for each in roomy.results]
    assert 0 == roomy.preemptions


@pytest.mark.parametrize("name", VARIED)
def test_preempted_requests_find_their_own_pages(
    name: str, model: Transformer, table_of: Tables, prompts: list[list[int]]
) -> None:
    """A request that gave its pages back starts behind what of them is left, emitted text included."""
    table = table_of(name, **sizes(name, 4))
    # The youngest are preempted first; they have the longest texts here.
    prompts = sorted(prompts, key=len)[1:]
    expected = cold(model, table, prompts)
    tight = Pool(pool_for(table, max(map(len, prompts)), TOKENS, PAGE).pages + 1, PAGE)
    crowded = warm(model, table, [(prompts, TOKENS)], tight, Policy(policy="preempt", admit="preempt"))
    assert [each.token_ids for each in expected] == [each.token_ids for each in crowded.results]
    assert crowded.preemptions > 0
    again = crowded.hits[len(prompts) :]
    assert len(again) == crowded.preemptions
    assert min(again) > 0
    assert max(again) > COMMON


def test_requests_that_come_together_share_in_the_end(
    model: Transformer, table_of: Tables, prompts: list[list[int]]
) -> None:
    """Nobody finds what is being computed; those who were slower go on with the pages of the first."""
    table = table_of("ar")
    session = Session(table, model, pool=Pool(100, PAGE), prefix_cache=True)
    for _ in range(4):
        session.add(prompts[1], Options(TOKENS))
    session.iterate()
    full = len(prompts[1]) // PAGE
    assert [0, full, full, full] == session.engine.count_shared().tolist()
    assert full + 4 == session.engine.used_pages
    session.run()
    session.allocator.check()
    assert 100 == session.allocator.free
