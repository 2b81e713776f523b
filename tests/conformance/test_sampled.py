"""Sampled output: what is identical in any batch, pool and spec, and what only alone and in a batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pytest
from shipped_specs import IDENTICAL, LOSSLESS, sizes

from fsm_spec.executor.generate import Options, pool_for
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.policy import Pool
from fsm_spec.table import Table

TOKENS, SEEDS = 16, (5, 6, 7, 5, 9, 10)
OPTIONS = Options(TOKENS, SamplingParams(0.8, 20, 0.95))
Tables = Callable[..., Table]


class Executor(Protocol):
    """Be the fixture of that name (`conftest.py`)."""

    def run(self, table: Table, prompts: Sequence[Sequence[int]], options: Options, **more: Any) -> Any:  # noqa: ANN401 -- what the fixture takes and gives
        """Run all prompts together."""


# A sample at a position is a function of seed and text where every emitted token is the target's own sample
# (IDENTICAL); specs that claim no law are asked for the same text in company in test_lossy.py.


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Return a prompt for each seed; the first and the fourth are the same."""
    source = random.Random(1)
    made = [[source.randrange(1, 47) for _ in range(6 + 3 * index)] for index in range(len(SEEDS))]
    made[3] = made[0]
    return made


@pytest.fixture(scope="module")
def plain(executor: Executor, table_of: Tables, prompts: list[list[int]]) -> list[list[int]]:
    """Return what plain sampling gives each prompt, alone."""
    table = table_of("ar")
    return [
        executor.run(table, [prompt], OPTIONS, seeds=[seed], replays=False).token_ids[0]
        for prompt, seed in zip(prompts, SEEDS, strict=True)
    ]


def test_seeds_decide(plain: list[list[int]]) -> None:
    """Equal seeds and prompts give equal texts; others differ, or sampling would not be sampling."""
    assert plain[0] == plain[3]
    assert len({tuple(tokens) for tokens in plain}) == len(SEEDS) - 1


@pytest.mark.shows("run")
@pytest.mark.parametrize("spec", IDENTICAL)
def test_sample_and_match_is_plain_sampling(
    spec: str, executor: Executor, table_of: Tables, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    """The same tokens as plain decoding at the same seed, in a batch and after preemptions."""
    table = table_of(spec, **sizes(spec))
    assert plain == executor.run(table, prompts, OPTIONS, seeds=SEEDS).token_ids
    pool = Pool(2 * pool_for(table, max(map(len, prompts)), TOKENS, 4).pages, 4)
    crowded = executor.run(table, prompts, OPTIONS, seeds=SEEDS, pool=pool)
    assert plain == crowded.token_ids
    assert crowded.preemptions > 0


@pytest.mark.shows("run")
@pytest.mark.parametrize("spec", LOSSLESS)
def test_company_changes_nothing(
    spec: str, executor: Executor, table_of: Tables, prompts: list[list[int]]
) -> None:
    """A request draws its own numbers: alone and in a batch it gives the same tokens under every spec."""
    table = table_of(spec, check=True)
    together = executor.run(table, prompts, OPTIONS, seeds=SEEDS).token_ids
    alone = [
        executor.run(table, [prompt], OPTIONS, seeds=[seed], replays=False).token_ids[0]
        for prompt, seed in zip(prompts, SEEDS, strict=True)
    ]
    assert alone == together
