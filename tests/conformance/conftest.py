"""What conformance tests share: small tables of shipped specs, and runs of the executor with their traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from page_books import check_pages

from fsm_spec.compile import compile_table
from fsm_spec.executor.adapter import random_adapter
from fsm_spec.executor.cache import PageAllocator
from fsm_spec.executor.generate import Options, Session, trace_header
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.executor.operators import Operators
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool
from fsm_spec.replay import Replayed, replay_records
from fsm_spec.table import Table
from fsm_spec.trace import TraceWriter


@dataclass(frozen=True)
class Outputs:
    """Hold what a run of the executor gave."""

    token_ids: list[list[int]]
    preemptions: int
    steps: list[dict[str, Any]]
    replayed: Replayed | None
    records: list[dict[str, Any]]


class Executor:
    """Run prompts through a table on one small model, and hold pages, trace and table together all the way."""

    def __init__(self, **sizes: Any) -> None:  # noqa: ANN401 -- sizes of any kind
        self.model = tiny_model(**sizes)

    def set_adapter(self, seed: int | None) -> None:
        """Give the model a random adapter, or none."""
        config = self.model.config
        self.model.adapter = None if seed is None else random_adapter(config, torch.float64, seed=seed)

    def run(
        self,
        table: Table,
        prompts: Sequence[Sequence[int]],
        options: Options,
        *,
        pool: Pool | None = None,
        policy: Policy | None = None,
        operators: Operators | None = None,
        seeds: Sequence[int] | None = None,
        replays: bool = True,
    ) -> Outputs:
        """Run all prompts together; every page the engine counts must be a page the allocator holds."""
        pool = pool or Pool(64 * len(prompts), 16)
        policy = policy or Policy()
        records: list[dict[str, Any]] = []
        writer = TraceWriter(records, trace_header(table, policy, pool, load(table.name).text))
        session = Session(
            table,
            self.model,
            pool=pool,
            policy=policy,
            operators=operators,
            drafters=random_drafters(table, self.model),
            trace=writer if replays else None,
        )
        numbers = [
            session.add(prompt, self._seeded(options, seeds, index)) for index, prompt in enumerate(prompts)
        ]
        while session.has_work:
            session.iterate()
            if replays:
                assert isinstance(session.allocator, PageAllocator)
                check_pages(session.engine, session.allocator)
        assert pool.pages == session.allocator.free
        results = [session.result(number) for number in numbers]
        return Outputs(
            [result.token_ids for result in results],
            sum(record.get("event") == "preempt" for record in records),
            [record for record in records if "event" in record],
            replay_records(enumerate(records, start=1)) if replays else None,
            records,
        )

    def _seeded(self, options: Options, seeds: Sequence[int] | None, index: int) -> Options:
        if seeds is None:
            return options
        return Options(options.max_tokens, options.sampling, seeds[index], options.stop_ids, options.stop)


@pytest.fixture(scope="session")
def executor() -> Executor:
    """Return an executor on a random float64 model of two layers."""
    return Executor(vocab=48, hidden=32, heads=2, kv_heads=1)


@pytest.fixture(scope="session")
def table_of() -> Callable[..., Table]:
    """Return a function that compiles a shipped spec for given parameters."""

    def compiled(name: str, *, check: bool = False, **params: int) -> Table:
        loaded = load(name)
        return compile_table(loaded.spec, params, check=check, line_of=loaded.line_of)

    return compiled
