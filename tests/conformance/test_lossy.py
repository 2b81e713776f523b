"""What specs that claim no output law still promise: company changes nothing, masks stay inside, KV is accounted.

A preempted block starts again from its masks, so denoising specs give the same text after a preemption. Specs that
keep drafts over rounds start cold after one and draft anew, so of them only the accounting is asked there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pytest
import torch
from shipped_specs import DENOISING, LOSSY, sizes

from fsm_spec.executor.generate import Options, pool_for
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.policy import Pool
from fsm_spec.table import Table

PROMPTS, TOKENS, VOCABULARY = 4, 20, 48
LAWS = [SamplingParams(), SamplingParams(0.8, 20, 0.95)]
Tables = Callable[..., Table]


class Executor(Protocol):
    """Be the fixture of that name (`conftest.py`)."""

    model: Transformer

    def run(self, table: Table, prompts: Sequence[Sequence[int]], options: Options, **more: Any) -> Any:  # noqa: ANN401 -- what the fixture takes and gives
        """Run all prompts together."""


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Return prompts of lengths that leave every kind of tail in a block."""
    source = random.Random(4)
    return [[source.randrange(1, VOCABULARY - 1) for _ in range(3 + 5 * index)] for index in range(PROMPTS)]


@pytest.fixture
def loves_masks(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> Iterator[Transformer]:
    """Give the model, which for this test finds the mask the likeliest token everywhere."""
    model = executor.model
    forward = model.forward

    def forward_to_masks(*args: Any, **more: Any) -> torch.Tensor:  # noqa: ANN401 -- handed on
        logits: torch.Tensor = forward(*args, **more)
        logits[..., model.config.mask_token_id] = 1000
        return logits

    monkeypatch.setattr(model, "forward", forward_to_masks)
    yield model
    monkeypatch.undo()


@pytest.mark.shows("run")
@pytest.mark.parametrize("law", LAWS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("spec", LOSSY)
def test_company_changes_nothing(
    spec: str, law: SamplingParams, executor: Executor, table_of: Tables, prompts: list[list[int]]
) -> None:
    """A block whose rows see a neighbour's masks, or draw a neighbour's numbers, differs in a batch."""
    table = table_of(spec, **sizes(spec))
    seeds = range(PROMPTS)
    together = executor.run(table, prompts, Options(TOKENS, law), seeds=seeds)
    alone = [
        executor.run(table, [prompt], Options(TOKENS, law), seeds=[seed], replays=False).token_ids[0]
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    assert alone == together.token_ids
    assert PROMPTS * TOKENS == together.replayed.emitted


@pytest.mark.shows("run")
@pytest.mark.parametrize("spec", LOSSY)
def test_preemption_restarts_the_round(
    spec: str, executor: Executor, table_of: Tables, prompts: list[list[int]]
) -> None:
    """A preempted request emits neither a token of its lost round nor one twice; a block comes out the same again."""
    table = table_of(spec, **sizes(spec))
    options = Options(TOKENS, LAWS[1])
    pool = Pool(2 * pool_for(table, max(map(len, prompts)), TOKENS, 4).pages, 4)
    crowded = executor.run(table, prompts, options, pool=pool, seeds=range(PROMPTS))
    assert crowded.preemptions > 0
    assert PROMPTS == crowded.replayed.ended
    assert [TOKENS] * PROMPTS == [len(tokens) for tokens in crowded.token_ids]
    if spec in DENOISING:
        roomy = executor.run(table, prompts, options, seeds=range(PROMPTS), replays=False)
        assert roomy.token_ids == crowded.token_ids


@pytest.mark.parametrize("law", LAWS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("spec", DENOISING)
def test_no_mask_is_emitted(
    spec: str,
    law: SamplingParams,
    loves_masks: Transformer,
    executor: Executor,
    table_of: Tables,
    prompts: list[list[int]],
) -> None:
    """The mask is never proposed for a mask, however much the model likes it, and every mask is filled.

    The token that opens a block under the contract `pending` is the target's own, whose law nothing alters.
    """
    table = table_of(spec, **sizes(spec))
    own = range(0, TOKENS, table.params["b"]) if table.contract == "pending" else ()
    outputs = executor.run(table, prompts, Options(TOKENS, law)).token_ids
    filled = {token for output in outputs for at, token in enumerate(output) if at not in own}
    assert filled
    assert loves_masks.config.mask_token_id not in filled
