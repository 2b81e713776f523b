"""Greedy output of every spec that claims it equals plain decoding, token for token, in any batch, pool and adapter.

Specs that claim `no` are held to other promises, in test_lossy.py.
The first specs run at full size; the others, whose operators and layouts have tests of their own, at a smaller one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pytest
import torch
from shipped_specs import EVERY_WAY, LOSSLESS, sizes

from fsm_spec.executor.generate import Options, Session, pool_for
from fsm_spec.executor.models.load import LoadedModel, load_model
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.executor.models.store import SMOLLM2, is_whole, model_folder
from fsm_spec.policy import Policy, Pool
from fsm_spec.table import Table

PROMPTS, TOKENS = 20, 128
SMALLER = 4, 32
REAL_TOKENS = 24
VOCABULARY = 48
Tables = Callable[..., Table]


pytestmark = pytest.mark.shows("greedy-equal")


def size(spec: str) -> tuple[int, int]:
    """Say how many prompts a spec runs, and for how many tokens."""
    return (PROMPTS, TOKENS) if spec in EVERY_WAY else SMALLER


class Executor(Protocol):
    """Be the fixture of that name (`conftest.py`)."""

    def set_adapter(self, seed: int | None) -> None:
        """Give the model a random adapter, or none."""

    def run(self, table: Table, prompts: Sequence[Sequence[int]], options: Options, **more: Any) -> Any:  # noqa: ANN401 -- what the fixture takes and gives
        """Run all prompts together."""


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Return prompts of a few lengths; every other one repeats itself, so that lookups find something."""
    source = random.Random(0)
    made = []
    for index in range(PROMPTS):
        words = [source.randrange(1, VOCABULARY - 1) for _ in range(4 + 5 * (index % 4))]
        made.append(words * 2 if index % 2 else words)
    return made


@pytest.fixture(scope="module")
def plain(executor: Executor, table_of: Tables, prompts: list[list[int]]) -> list[list[int]]:
    """Return what plain decoding gives each prompt, alone."""
    table = table_of("ar")
    options = Options(TOKENS)
    return [executor.run(table, [prompt], options, replays=False).token_ids[0] for prompt in prompts]


def tight(table: Table, prompts: list[list[int]], tokens: int) -> Pool:
    """Return a pool in which a few of the requests fit at once, but not to their ends."""
    longest = pool_for(table, max(map(len, prompts)), tokens, 8)
    return Pool((3 if len(prompts) == PROMPTS else 2) * longest.pages, 8)


@pytest.mark.parametrize(
    ("spec", "adapter"), [*((spec, None) for spec in EVERY_WAY), *((spec, 1) for spec in LOSSLESS)]
)
def test_batched_output_is_plain_decoding(
    spec: str,
    adapter: int | None,
    executor: Executor,
    table_of: Tables,
    prompts: list[list[int]],
    plain: list[list[int]],
) -> None:
    """A row, slot, mask or carry that is wrong in company, or after a preemption, shows as another token."""
    table = table_of(spec, **sizes(spec))
    count, tokens = size(spec)
    chosen, expected = prompts[:count], [output[:tokens] for output in plain[:count]]
    executor.set_adapter(adapter)
    try:
        roomy = executor.run(table, chosen, Options(tokens))
        # All are admitted whose prompts fit, so that they preempt each other on their way.
        policy = Policy(policy="preempt", admit="preempt")
        pool = tight(table, chosen, tokens)
        crowded = executor.run(table, chosen, Options(tokens), pool=pool, policy=policy)
    finally:
        executor.set_adapter(None)
    assert expected == roomy.token_ids
    assert expected == crowded.token_ids
    assert 0 == roomy.preemptions
    assert crowded.preemptions > 0
    assert count == roomy.replayed.ended == crowded.replayed.ended
    assert count * tokens == roomy.replayed.emitted == crowded.replayed.emitted
    # A run in which no draft was ever accepted would show nothing of what follows an acceptance.
    judges = [
        op.out[0] for plan in table.forwards.values() for op in plan.operators if op.op in {"accept", "walk"}
    ]
    accepted = [max(record["args"].get(judge, 0) for judge in judges) for record in roomy.steps if judges]
    assert not judges or max(accepted) > 0


@pytest.mark.parametrize("spec", sorted(set(LOSSLESS) - {"ar"}))
def test_lone_output_is_plain_decoding(
    spec: str,
    executor: Executor,
    table_of: Tables,
    prompts: list[list[int]],
    plain: list[list[int]],
) -> None:
    """A lone request takes other paths through attention and gathering than one in a batch."""
    table = table_of(spec, **sizes(spec))
    count, tokens = size(spec)
    executor.set_adapter(2)
    try:
        runs = [executor.run(table, [prompt], Options(tokens), replays=False) for prompt in prompts[:count]]
    finally:
        executor.set_adapter(None)
    assert [output[:tokens] for output in plain[:count]] == [run.token_ids[0] for run in runs]


@pytest.mark.parametrize("spec", LOSSLESS)
def test_real_model_output_is_plain_decoding(
    spec: str, table_of: Tables, real: tuple[LoadedModel, list[list[int]], list[list[int]]]
) -> None:
    """Sizes, vocabulary and end tokens of a real model break what a small one does not."""
    model, prompts, expected = real
    tokens = REAL_TOKENS if spec in EVERY_WAY else REAL_TOKENS // 2
    table = table_of(spec, **sizes(spec, 8 if spec in EVERY_WAY else 4))
    assert [output[:tokens] for output in expected] == real_outputs(model, table, prompts, tokens)


def real_outputs(
    model: LoadedModel, table: Table, prompts: list[list[int]], tokens: int = REAL_TOKENS
) -> list[list[int]]:
    """Return some tokens for each prompt, run together."""
    longest = pool_for(table, max(map(len, prompts)), tokens)
    pool = Pool(longest.pages * len(prompts), longest.page_size)
    drafters = random_drafters(table, model.transformer)
    session = Session(table, model.transformer, model.tokenizer, pool=pool, drafters=drafters)
    numbers = [session.add(prompt, Options(tokens)) for prompt in prompts]
    session.run()
    return [session.result(number).token_ids for number in numbers]


@pytest.fixture(scope="module")
def real(table_of: Tables) -> tuple[LoadedModel, list[list[int]], list[list[int]]]:
    """Return SmolLM2 in float32, two prompts, and what plain decoding gives each of them, alone."""
    if not is_whole(model_folder(SMOLLM2)):
        pytest.skip(f"the model is not in the cache; run: fsm-spec model get {SMOLLM2}")
    model = load_model(SMOLLM2, torch.float32)
    texts = ["One, two, three, four. One, two, three,", "The capital of France is"]
    prompts = [model.tokenizer.encode(text) for text in texts]
    return model, prompts, [real_outputs(model, table_of("ar"), [prompt])[0] for prompt in prompts]
