"""The runner does what the table says: rows, carries, chunks, stops and pages, with no code of any algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fsm_spec.compile import compile_table
from fsm_spec.engine import Engine
from fsm_spec.executor.block import NOISE_LOW
from fsm_spec.executor.cache import PageAllocator, PagedCache
from fsm_spec.executor.carry import EMPTY, Carries
from fsm_spec.executor.members import Members
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.executor.request import Request
from fsm_spec.executor.runner import Runner
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.language.expression import Const
from fsm_spec.language.piece import parse_piece
from fsm_spec.load import load, loads
from fsm_spec.policy import Policy, Pool, Prefill
from fsm_spec.table import NO_STOP, CarryPlan, Table

VOCABULARY, MASK = 48, 47
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


@pytest.fixture(scope="module")
def model() -> Transformer:
    """Return a random float64 model of two layers."""
    return tiny_model(vocab=VOCABULARY, hidden=32, heads=2, kv_heads=1)


class Spy:
    """Pass rows on to a model and keep them."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.seen: list[RowBatch] = []

    def forward(self, rows: RowBatch, cache: Any) -> torch.Tensor:  # noqa: ANN401 (as the protocol)
        """Run the rows."""
        self.seen.append(rows)
        return self.model.forward(rows, cache)

    def forward_captured(
        self,
        rows: RowBatch,
        cache: Any,  # noqa: ANN401 (as the protocol)
        capture: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the rows, and give hidden states."""
        self.seen.append(rows)
        return self.model.forward_captured(rows, cache, capture)


class Bench:
    """Hold an engine and a runner on one model."""

    def __init__(
        self, model: Transformer, table: Table, policy: Policy | None = None, pages: int = 40
    ) -> None:
        self.spy = Spy(model)
        self.allocator = PageAllocator(pages, 4)
        cache = PagedCache(model.config, pages, 4, torch.float64)
        self.runner = Runner(table, self.spy, cache, self.allocator, vocabulary=VOCABULARY, mask_id=MASK)
        self.engine = Engine(table, policy or Policy(), Pool(pages, 4), self.runner)

    def add(self, prompt: Sequence[int] = PROMPT, limit: int = 12, **more: Any) -> Request:  # noqa: ANN401
        """Submit a request."""
        request = Request(prompt, limit, **more)
        self.runner.add(self.engine.submit(len(prompt), limit), request)
        return request

    def run(self) -> None:
        """Run to the end of all requests."""
        while self.engine.has_work:
            assert not self.engine.iterate().idle


def table_of(name: str, **params: int) -> Table:
    """Compile a shipped spec."""
    return compile_table(load(name).spec, params)


@pytest.fixture(scope="module")
def greedy(model: Transformer) -> list[int]:
    """Return the plain greedy text after PROMPT."""
    bench = Bench(model, table_of("ar"))
    request = bench.add()
    bench.run()
    return request.output


def test_prefill_in_chunks_is_prefill_at_once(model: Transformer, greedy: list[int]) -> None:
    """Chunks see all KV before them, and only the last one gives a token."""
    bench = Bench(model, table_of("ar"), Policy(prefill=Prefill(tokens=3)))
    request = bench.add()
    bench.run()
    assert greedy == request.output
    assert [3, 3, 3, 2] == [len(rows.token_ids) for rows in bench.spy.seen[:4]]
    assert [0, 0, 0, 1] == [len(rows.logits_rows) for rows in bench.spy.seen[:4]]


def test_prefill_rides_with_decode(model: Transformer, greedy: list[int]) -> None:
    """A newcomer's prompt runs in one forward with the rows of those who decode."""
    bench = Bench(model, table_of("ar"))
    first = bench.add()
    bench.engine.iterate()
    second = bench.add()
    bench.engine.iterate()
    assert [1, len(PROMPT)] == np.diff(bench.spy.seen[-1].row_start).tolist()
    bench.run()
    assert greedy == first.output == second.output


def test_rows_of_a_verify_forward(model: Transformer) -> None:
    """Sources, positions, slots, mask, gate and logits rows are those of the plan."""
    bench = Bench(model, table_of("isd_gated", n=3))
    request = bench.add()
    bench.engine.iterate()
    bench.engine.iterate()
    bench.engine.iterate()
    rows = bench.spy.seen[-1]
    kv = len(PROMPT) + 1
    assert [request.text[kv], MASK, MASK] == [int(rows.token_ids[index]) for index in (0, 3, 4)]
    assert list(range(kv, kv + 5)) == rows.positions.tolist()
    assert list(range(kv)) == rows.context_of(0).tolist()
    assert bool((rows.masks[0] == torch.ones(5, 5).tril().bool()).all())
    assert rows.adapter_rows is not None
    assert [False, False, False, True, True] == rows.adapter_rows.tolist()
    assert [0, 1, 2, 3, 4] == rows.logits_rows.tolist()


def test_dead_rows_do_not_run(model: Transformer) -> None:
    """A request whose lookup finds nothing runs one row, beside one with drafts."""
    table = table_of("ngram", k=3, shortest=1, longest=2)
    bench = Bench(model, table)
    bench.add([7, 8, 9, 10, 11], limit=3)
    bench.engine.iterate()
    counts = []
    bench.add([7, 8, 9, 7, 8, 9, 7, 8, 9, 7, 8, 9], limit=6)
    while bench.engine.has_work:
        bench.engine.iterate()
        counts += [len(mask) for mask in bench.spy.seen[-1].masks]
    assert set(counts) <= {1, 2, 3, 4, 12}
    assert 1 in counts


def test_forward_without_rows_runs_no_model(model: Transformer) -> None:
    """A lookup needs no model: its launch is counted nowhere as a forward."""
    bench = Bench(model, table_of("ngram"))
    request = bench.add()
    bench.run()
    assert len(bench.spy.seen) == bench.runner.forwards == 1 + request.forwards
    assert request.forwards == request.rounds


def test_stop_token_cuts_the_run(model: Transformer, greedy: list[int]) -> None:
    """Nothing follows the first stop token, in whatever run it comes."""
    stop = greedy[4]
    first = greedy.index(stop)
    for name in ("ar", "ngram", "isd", "uno_linear"):
        bench = Bench(model, table_of(name))
        request = bench.add(stop_ids=[stop])
        bench.run()
        assert greedy[: first + 1] == request.output
        assert bench.allocator.pages == bench.allocator.free


def test_halt_takes_tokens_back(model: Transformer, greedy: list[int]) -> None:
    """A stop string found late lowers what was emitted."""
    bench = Bench(model, table_of("ar"))
    request = bench.add()
    for _ in range(5):
        bench.engine.iterate()
    bench.engine.halt(0, 2)
    assert greedy[:2] == request.output
    assert not bench.engine.has_work
    assert bench.allocator.pages == bench.allocator.free


def test_abort_releases_everything(model: Transformer) -> None:
    """A request that nobody waits for leaves no page and no carry behind."""
    bench = Bench(model, table_of("isd"))
    bench.add()
    for _ in range(3):
        bench.engine.iterate()
    bench.engine.abort(0)
    assert bench.allocator.pages == bench.allocator.free
    assert {} == bench.runner.requests
    assert all((values == EMPTY).all() for values in bench.runner.carries.tokens.values())


def test_pages_follow_the_engine_under_preemption(model: Transformer, greedy: list[int]) -> None:
    """What the engine counts is what the allocator holds, at every iteration, and nobody's text changes."""
    table = table_of("uno_linear")
    bench = Bench(model, table, pages=14)
    requests = [bench.add(limit=20) for _ in range(4)]
    preempted = 0
    while bench.engine.has_work:
        report = bench.engine.iterate()
        preempted += len(report.preempted)
        bench.allocator.check()
        held = [bench.allocator.held(int(bench.engine.requests[slot])) for slot in bench.engine.live]
        assert bench.engine.pages[bench.engine.live].tolist() == held
    assert preempted > 0
    assert [greedy] * 4 == [request.output[:12] for request in requests]


def test_requests_with_their_own_sampling_share_a_launch(model: Transformer, greedy: list[int]) -> None:
    """A greedy request beside a sampled one stays greedy, and the sampled one draws by its seed alone."""
    hot = SamplingParams(1.3)
    for name in ("ar", "uno_linear", "ngram", "linear_spec"):
        bench = Bench(model, table_of(name, **({"b": 4} if name == "linear_spec" else {})), pages=80)
        still, first, second = bench.add(), bench.add(sampling=hot, seed=1), bench.add(sampling=hot, seed=1)
        other = bench.add(sampling=hot, seed=2)
        bench.run()
        assert greedy == still.output
        assert first.output == second.output != other.output


def test_noise_is_named_by_seed_and_position(model: Transformer) -> None:
    """Noise ids lie in their range, differ between positions and seeds, and come again after a preemption."""

    def noise(seed: int) -> list[int]:
        bench = Bench(model, table_of("uno_linear", b=16))
        bench.add(seed=seed)
        bench.engine.iterate()
        bench.engine.iterate()
        return [int(token) for token in bench.spy.seen[1].token_ids[1:16]]

    assert noise(1) == noise(1) != noise(2)
    assert len(set(noise(1))) > 5
    assert all(NOISE_LOW <= token < VOCABULARY for token in noise(1) + noise(2))


def test_changed_row_changes_the_text(model: Transformer, greedy: list[int]) -> None:
    """One row of a compiled table, and nothing else, decides what is emitted."""
    table = table_of("isd")
    (index,) = (row.index for row in table.rows if row.event == "cold")
    twice = table.with_row(index, emit=(parse_piece("next[0:1]"), parse_piece("next[0:1]")), keep=Const(2))
    bench = Bench(model, twice)
    request = bench.add()
    bench.engine.iterate()
    bench.engine.iterate()
    assert [greedy[0], greedy[1], greedy[1]] == request.output


def test_spec_nobody_has_seen_runs(model: Transformer, greedy: list[int]) -> None:
    """Two looks at the target a round, made of known operators: no code knows this algorithm."""
    text = """
spec: patient
lossless: {claim: sampling, why: every token is the target's own sample}
contract: pending
carry: {held: {shape: [1], type: token}}
forwards:
  once:
    attention: causal
    rows: [{name: last, source: pending, logits: shifted, kv: keep}]
    ops: [{op: sample, rows: last, out: one}]
  twice:
    attention: causal
    rows: [{name: last, source: held, logits: shifted, kv: keep}]
    ops: [{op: sample, rows: last, out: two}]
states:
  once: {phase: verify, forward: once, round: true, start: true}
  twice: {phase: verify, forward: twice}
transitions:
  - {from: once, to: twice, keep: 1, set: {held: one}}
  - {from: twice, to: once, keep: 1, emit: [held, two], set: {pending: two}}
check: {always: {"one token has no KV": "kv == prompt + emitted - 1 or state == twice"}, eventually: end}
"""
    bench = Bench(model, compile_table(loads(text).spec))
    request = bench.add(limit=12)
    bench.run()
    assert greedy == request.output
    assert (11, 6, 12) == (request.emitted, request.rounds, request.forwards)


def test_carries_grow_and_forget() -> None:
    """More requests than lines get lines of their own, and a freed line holds nothing."""
    carries = Carries([CarryPlan("drafts", (2,), "token"), CarryPlan("q", (2, None), "law")])
    lines = [carries.take() for _ in range(40)]
    assert 40 == len(set(lines))
    carries.tokens["drafts"][lines[20]] = 5
    carries.wide["q"][lines[20]] = torch.zeros(2, 3)
    carries.give_back(lines[20])
    assert [EMPTY, EMPTY] == carries.tokens["drafts"][lines[20]].tolist()
    assert {} == carries.wide["q"]
    assert lines[20] == carries.take()


def test_request_text_grows() -> None:
    """The text may outgrow its first buffer."""
    request = Request([1, 2], 1000)
    for _ in range(4):
        request.append(np.arange(200))
    assert 802 == len(request.text)
    assert [0, 1, 2] == request.output[:3]


@pytest.mark.parametrize("alike", [True, False])
def test_first_stop_token_of_a_run_counts(*, alike: bool) -> None:
    """Requests may have the same stop tokens, others, or none; what stands behind a run is none."""
    sets = [[9, 8]] * 4 if alike else [[9, 8], [8], [], [7, 9]]
    members = Members([Request([1], 9, stop_ids=ids) for ids in sets], range(4))
    runs = np.array([[7, 8, 9], [7, EMPTY, EMPTY], [8, 9, EMPTY], [1, 2, 9]], np.int64)
    expected = [1, NO_STOP, 0, 2] if alike else [1, NO_STOP, NO_STOP, 2]
    assert expected == members.stops(runs).tolist()
