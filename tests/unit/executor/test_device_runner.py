"""The resident runner on the CPU: the same tokens, counts, trace and pages as the runner that the host drives."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from shipped_specs import SPECS, sizes

from fsm_spec.compile import compile_table
from fsm_spec.engine import Engine
from fsm_spec.executor.adapter import random_adapter
from fsm_spec.executor.control import reads_in_order
from fsm_spec.executor.device.overlap import OverlappedEngine
from fsm_spec.executor.device.place import CpuPlace
from fsm_spec.executor.device.resident import Resident
from fsm_spec.executor.device.runner import DeviceRunner
from fsm_spec.executor.generate import Options, Result, Session, pool_for, trace_header
from fsm_spec.executor.logprobs import TokenLogprob
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.executor.models.transformer import Transformer, product
from fsm_spec.executor.request import Controls
from fsm_spec.executor.server.meter import Meter
from fsm_spec.kernels.adjust import Adjustment
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.load import load
from fsm_spec.policy import Plan, Policy, Pool, Prefill
from fsm_spec.replay import replay_records
from fsm_spec.table import Table
from fsm_spec.tiers import Tier, TierStep
from fsm_spec.trace import TraceWriter

TOKENS = 8
# One greedy request and two that sample, in one batch; a stop token ends some of them early.
SAMPLING = (SamplingParams(), SamplingParams(0.9, 12, 0.95), SamplingParams(1.1, min_p=0.02))
# What the first and the last ask of their laws, in whole numbers too, as clients send them; the one between asks for
# nothing, and its tokens stay what they are.
CONTROLS = (
    Controls(Adjustment(0.4, 0.3, 1.3)),
    Controls(),
    Controls(Adjustment(0, 1, 2, ((7, 3), (9, -2))), 4),
)
POLICY = Policy(max_running=3)
# The iteration in which the youngest request gives its pages back.
PREEMPTS = 1


@dataclass(frozen=True)
class Ran:
    """Hold what a session gave, and its trace."""

    session: Session
    results: list[Result]
    records: list[dict[str, Any]]

    def scores(self) -> list[TokenLogprob]:
        """Give the log-probabilities of the last request and of its prompt; none where it has none."""
        found = self.session.request(len(self.results) - 1).scores
        return [] if found is None else [*found.prompt, *found.tokens]


@pytest.fixture(scope="module")
def model() -> Transformer:
    """Return a small random model with an adapter, in float64, so that no two orders of a sum choose other tokens."""
    made = tiny_model(vocab=48, hidden=32, heads=2, kv_heads=1)
    made.adapter = random_adapter(made.config, torch.float64, seed=1)
    return made


def table_of(name: str, most: int = 4, **params: int) -> Table:
    """Compile a shipped spec at a size that a CPU runs fast."""
    loaded = load(name)
    return compile_table(loaded.spec, sizes(name, most) | params, line_of=loaded.line_of)


def prompts(count: int) -> list[list[int]]:
    """Return prompts of several lengths; every other one repeats itself, so that lookups find something."""
    source = random.Random(0)
    made = [[source.randrange(1, 46) for _ in range(4 + 3 * index)] for index in range(count)]
    return [words * 2 if index % 2 else words for index, words in enumerate(made)]


def session_of(
    table: Table, model: Transformer, resident: Resident | None, policy: Policy, pool: Pool
) -> tuple[Session, list[dict[str, Any]]]:
    """Make a session and the records of its trace."""
    records: list[dict[str, Any]] = []
    writer = TraceWriter(records, trace_header(table, policy, pool, load(table.name).text))
    drafters = random_drafters(table, model)
    session = Session(
        table, model, pool=pool, policy=policy, drafters=drafters, trace=writer, resident=resident
    )
    return session, records


def preempting(engine: Engine) -> Plan:
    """Decide as the policy does, but preempt the youngest request once."""
    plan = engine.decide()
    last = len(engine.live) - 1
    if engine.iterations != PREEMPTS or last < 1:
        return plan
    pages = plan.pages.copy()
    pages[last] = 0
    run, chunks = plan.run[plan.run != last], tuple(each for each in plan.chunks if each[0] != last)
    return replace(plan, preempt=(last,), pages=pages, run=run, chunks=chunks, admit=(), admit_chunks=())


def run(
    table: Table,
    model: Transformer,
    resident: Resident | None,
    *,
    policy: Policy = POLICY,
    pool: Pool | None = None,
    texts: Sequence[Sequence[int]] = prompts(3),
    stop_ids: tuple[int, ...] = (5, 6),
    disturb: Callable[[Session, int], None] | None = None,
) -> Ran:
    """Run prompts together, with the pages of engine and device held to each other after every iteration."""
    pool = pool or Pool(len(texts) * pool_for(table, max(map(len, texts)), TOKENS, 4, policy).pages, 4)
    session, records = session_of(table, model, resident, policy, pool)
    numbers = []
    for index, text in enumerate(texts):
        scored = index % 3 == 2 and reads_in_order(table)
        options = Options(
            TOKENS,
            SAMPLING[index % 3],
            7 + index,
            stop_ids=stop_ids,
            controls=CONTROLS[index % 3],
            logprobs=3 if scored else None,
            prompt_logprobs=scored,
        )
        numbers.append(session.add(text, options))
    session.engine.planner = preempting
    steps = 0
    while session.has_work:
        session.iterate()
        if isinstance(session.runner, DeviceRunner):
            engine = session.engine
            session.allocator.check()
            assert session.allocator.free + engine.used_pages == pool.pages
            assert session.runner.pages.listed == session.runner.free_pages
            for slot in engine.live.tolist():
                assert int(engine.pages[slot]) == session.runner.held_pages(int(engine.requests[slot]))
        if disturb is not None:
            disturb(session, steps)
        steps += 1
    replay_records(enumerate(records, start=1))
    return Ran(session, [session.result(number) for number in numbers], records)


def assert_same_scores(expected: list[TokenLogprob], found: list[TokenLogprob]) -> None:
    """Hold tokens and their log-probabilities to each other; sums of another order differ by little."""
    assert [each.token for each in expected] == [each.token for each in found]
    for mine, theirs in zip(expected, found, strict=True):
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-5)
        assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]


@pytest.mark.parametrize("spec", sorted(SPECS))
def test_every_shipped_spec_runs_resident_and_gives_the_same(spec: str, model: Transformer) -> None:
    """Rows, masks, operators, carries, moves and pages of every spec, alone and after preemptions."""
    table = table_of(spec)
    expected, found = run(table, model, None), run(table, model, Resident(CpuPlace()))
    assert expected.results == found.results
    assert expected.records == found.records
    assert_same_scores(expected.scores(), found.scores())
    assert reads_in_order(table) == bool(found.scores())
    assert any(record.get("event") == "preempt" for record in found.records)


@pytest.mark.parametrize("spec", ["ar", "dspark", "eagle3", "isd", "sdar", "uno_tree"])
def test_logits_may_stay_as_narrow_as_the_head(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU bfloat16 logits are not widened: penalties, bias, scores and laws must not be computed in 8 bits."""
    table = table_of(spec)
    narrow = tiny_model(vocab=48, hidden=32, heads=2, kv_heads=1, dtype=torch.bfloat16)
    expected = run(table, narrow, Resident(CpuPlace()))
    monkeypatch.setattr(
        Transformer, "read_logits", lambda self, read: product(read.to(self.dtype), self.head).contiguous()
    )
    found = run(table, narrow, Resident(CpuPlace()))
    assert expected.results == found.results
    assert expected.records == found.records
    assert_same_scores(expected.scores(), found.scores())


# Chunks of several pieces, for each kind of draft model, of blocks that see themselves, and of gated rows.
LONG = ("ar", "dflash", "draft_lm", "eagle3", "isd_gated", "sdar")


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("spec", LONG)
def test_chunks_run_in_the_forward_of_decode_rows(spec: str, lag: int, model: Transformer) -> None:
    """Chunks longer than a piece, cut anywhere: the same tokens, in as many forwards as the host's own runner takes."""
    table = table_of(spec)
    source = random.Random(3)
    texts = [[source.randrange(1, 46) for _ in range(length)] for length in (5, 90, 41)]
    policy = Policy(max_running=3, prefill=Prefill(tokens=43), lag=lag)
    results, forwards = [], []
    for resident in (None, Resident(CpuPlace())):
        session, _ = session_of(table, model, resident, policy, Pool(60, 8))
        numbers = [session.add(text, Options(TOKENS, SAMPLING[at])) for at, text in enumerate(texts)]
        session.run()
        results.append([session.result(number) for number in numbers])
        forwards.append(session.runner.forwards)
    assert results[0] == results[1]
    # A host that plans ahead also runs launches that turn out to be nobody's.
    assert lag or forwards[0] == forwards[1]


# Rounds of one and of several launches, merged states, loops, carries of every kind, drafts of a model.
OVERLAPPED = ("isd", "draft_lm", "linear_spec_threshold", "ngram", "sdar", "uno_tree")


@pytest.mark.parametrize("spec", OVERLAPPED)
def test_a_host_that_plans_ahead_gives_the_same_tokens(spec: str, model: Transformer) -> None:
    """A round is planned before the last one is seen, a preemption waits for it, and the replay accepts the trace."""
    table = table_of(spec)
    lag = POLICY.model_copy(update={"lag": 1})
    expected, found = run(table, model, None), run(table, model, Resident(CpuPlace()), policy=lag)
    assert expected.results == found.results
    assert_same_scores(expected.scores(), found.scores())
    assert isinstance(found.session.engine, OverlappedEngine)


@pytest.mark.parametrize("lag", [0, 1])
def test_what_ends_between_rounds_touches_nobody_else(lag: int, model: Transformer) -> None:
    """An abort and a stop string, with a round in flight or not: the others go on, a newcomer takes a freed line."""
    table = table_of("isd")
    texts = prompts(5)

    def disturb(session: Session, step: int) -> None:
        if step == 2:
            session.abort(0)
            session.engine.halt(1, 1)

    expected = run(table, model, None, texts=texts, stop_ids=())
    policy = POLICY.model_copy(update={"lag": lag})
    found = run(
        table, model, Resident(CpuPlace()), policy=policy, texts=texts, stop_ids=(), disturb=disturb
    ).results
    assert "abort" == found[0].finish_reason
    assert 1 == len(found[1].token_ids)
    assert [each.token_ids for each in expected.results[2:]] == [each.token_ids for each in found[2:]]


@pytest.mark.parametrize("lag", [0, 1])
def test_tiers_run_each_round_under_the_table_of_its_size(lag: int, model: Transformer) -> None:
    """Carries hold the largest size, and a round of another size reads and writes a part of them."""
    tier = Tier(param="b", steps=(TierStep(to=1, value=8), TierStep(value=3)))
    policy = Policy(max_running=3, tier=tier, lag=lag)
    table = table_of("linear_spec", b=8)
    texts = prompts(3)
    expected = run(table, model, None, policy=policy, texts=texts)
    found = run(table, model, Resident(CpuPlace()), policy=policy, texts=texts)
    assert [each.token_ids for each in expected.results] == [each.token_ids for each in found.results]
    assert 2 == len({record["plan"]["tier"] for record in found.records if "plan" in record})


def test_a_size_may_leave_operators_no_rows(model: Transformer) -> None:
    """Plain decoding in a crowd has no noise rows: what is sampled and grown from them is nothing, not a fault."""
    steps = (TierStep(to=1, value=2), TierStep(value=0))
    policy = Policy(max_running=3, tier=Tier(param="mode", steps=steps))
    table, texts = table_of("uno_switching", mode=2, deep=5, short=3, k=2, v=6), prompts(3)
    expected = run(table, model, None, policy=policy, texts=texts)
    found = run(table, model, Resident(CpuPlace()), policy=policy, texts=texts)
    assert [each.token_ids for each in expected.results] == [each.token_ids for each in found.results]
    assert {0, 2} == {record["plan"]["tier"] for record in found.records if record.get("plan", {}).get("run")}


@pytest.mark.parametrize("lag", [0, 1])
def test_a_server_counts_the_same(lag: int, model: Transformer) -> None:
    """The meter between engine and runner sees every step, also where the host plans past it."""
    table = table_of("isd")
    counted = []
    late = POLICY.model_copy(update={"lag": lag})
    for resident, policy in ((None, POLICY), (Resident(CpuPlace()), late)):
        session, _ = session_of(table, model, resident, policy, Pool(40, 4))
        meter = Meter(table, session.engine.backend)
        session.engine.backend = meter
        for index, text in enumerate(prompts(3)):
            session.add(text, Options(TOKENS, SAMPLING[index], 7 + index))
        session.run()
        counts = meter.take()
        counted.append((counts.transitions, counts.rounds, counts.runs, counts.judged, counts.accepted))
    assert counted[0] == counted[1]
    assert counted[0][3] > 0
