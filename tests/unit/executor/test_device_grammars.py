"""Grammars of resident requests: the tokens of the host's own runner, and none that a grammar forbids."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from shipped_specs import sizes

from fsm_spec.compile import compile_table
from fsm_spec.executor.adapter import random_adapter
from fsm_spec.executor.device.overlap import OverlappedEngine
from fsm_spec.executor.device.place import CpuPlace
from fsm_spec.executor.device.resident import Resident
from fsm_spec.executor.device.runner import DeviceRunner
from fsm_spec.executor.generate import Options, Result, Session
from fsm_spec.executor.grammar import Grammar
from fsm_spec.executor.models.random import tiny_model
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.executor.request import Controls
from fsm_spec.kernels.adjust import Adjustment
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool

VOCABULARY, TOKENS = 48, 9
# One row, drafts of the target, of a text, of models, in trees, and one after the other.
SPECS = ("ar", "draft_lm", "dspark", "isd_gated", "linear_spec", "ngram", "uno_tree")


class EveryThird(Grammar):
    """Allow a third of the tokens at each place, another one behind each token."""

    def __init__(self) -> None:
        super().__init__(None, VOCABULARY, [])

    def allowed(self, output: NDArray[np.int64], ahead: Sequence[int]) -> torch.Tensor | None:
        """Tell what may follow; None behind a token that could not stand there."""
        text = [*output.tolist(), *ahead]
        if not follows(text[len(output) :], before=text[: len(output)]):
            return None
        return torch.arange(VOCABULARY) % 3 == turn(text)


def turn(text: Sequence[int]) -> int:
    """Say which third may follow a text."""
    return (len(text) + (text[-1] if text else 0)) % 3


def follows(tokens: Sequence[int], before: Sequence[int] = ()) -> bool:
    """Tell whether tokens keep to the grammar."""
    text = [*before, *tokens]
    return all(text[at] % 3 == turn(text[:at]) for at in range(len(before), len(text)))


def run(spec: str, resident: Resident | None, lag: int = 0) -> tuple[list[Result], Session]:
    """Run four requests, of which two follow a grammar, one of these by adjusted laws; one comes later."""
    model = tiny_model(vocab=VOCABULARY, hidden=32, heads=2, kv_heads=1)
    model.adapter = random_adapter(model.config, torch.float64, seed=1)
    table = compile_table(load(spec).spec, sizes(spec, 4))
    policy = Policy(max_running=3, lag=lag)
    drafters = random_drafters(table, model)
    session = Session(table, model, pool=Pool(60, 4), policy=policy, drafters=drafters, resident=resident)
    source = random.Random(1)
    wanted = [Controls(), Controls(grammar=EveryThird()), Controls(min_tokens=2)]
    wanted.append(Controls(Adjustment(0.4, 0.3, 1.3), 3, EveryThird()))
    numbers = []
    for index, controls in enumerate(wanted):
        text = [source.randrange(1, 46) for _ in range(5 + 3 * index)] * 2
        sampling = SamplingParams(0.9, 20) if index % 2 else SamplingParams()
        numbers.append(
            session.add(text, Options(TOKENS, sampling, index, stop_ids=(7, 8), controls=controls))
        )
        session.iterate()
    session.run()
    return [session.result(number) for number in numbers], session


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("spec", SPECS)
def test_tokens_keep_to_the_grammar_and_are_those_of_the_host(spec: str, lag: int) -> None:
    """Masks follow each row's own drafts, on a host that would plan ahead too, and touch nobody else."""
    expected, _ = run(spec, None)
    found, session = run(
        spec, Resident(CpuPlace(graphs=spec == "ngram"), require_graphs=spec == "ngram"), lag
    )
    assert [each.token_ids for each in expected] == [each.token_ids for each in found]
    assert all(follows(found[index].token_ids) for index in (1, 3))
    assert not follows(found[0].token_ids)
    assert isinstance(session.engine, OverlappedEngine) == bool(lag)
    assert isinstance(session.runner, DeviceRunner)
    assert not session.runner.follows
