"""The sample operator: tokens and the laws they were drawn from."""

from __future__ import annotations

import random

import torch

from fsm_spec.kernels.choose import CounterChooser, Key
from fsm_spec.kernels.law import SamplingParams, SamplingRows, law
from fsm_spec.kernels.randomness import Purpose
from fsm_spec.kernels.sampling import Rule, sample, sample_plain

CHOOSER = CounterChooser()
MIXED = [
    SamplingParams(0.7, 3),
    SamplingParams(),
    SamplingParams(1.0, 0, 0.8),
    SamplingParams(1.3, 0, 1.0, 0.1),
]


def test_batch_equals_plain() -> None:
    """Each row has the plain reading's token and law, under every rule."""
    torch.manual_seed(0)
    source = random.Random(0)
    rules: tuple[Rule, ...] = ("law", "argmax", "argmax_of_law")
    for trial in range(30):
        logits = torch.randn(4, 6, dtype=torch.float64) * 2
        seed = [source.randrange(2**40) for _ in MIXED]
        position = [source.randrange(9999) for _ in MIXED]
        exclude = trial % 6 if trial % 3 else None
        for rule in rules:
            tokens, p = sample(
                logits,
                SamplingRows.of(MIXED),
                torch.tensor(seed),
                torch.tensor(position),
                Purpose.DRAFT,
                CHOOSER,
                rule,
                exclude=exclude,
                want_law=True,
            )
            assert p is not None
            for row, params in enumerate(MIXED):
                key = Key(seed[row], position[row], Purpose.DRAFT)
                token, one = sample_plain(logits[row].tolist(), params, key, CHOOSER, rule, exclude=exclude)
                assert token == tokens[row]
                torch.testing.assert_close(
                    torch.tensor(one, dtype=torch.float64), p[row], rtol=1e-12, atol=1e-15
                )


def test_law_is_the_one_sampled_from() -> None:
    """The law has the same truncation as the draw, and under argmax it is a point mass (D1, D3, D8)."""
    logits = torch.randn(2, 8)
    rows = SamplingRows.of([SamplingParams(0.5, 3, 0.9)] * 2)
    where = torch.arange(2)
    tokens, q = sample(logits, rows, where, where, Purpose.DRAFT, CHOOSER, want_law=True)
    assert q is not None
    assert q.equal(law(logits, rows))
    assert bool((q.gather(1, tokens.unsqueeze(1)) > 0).all())
    tokens, q = sample(logits, rows, where, where, Purpose.DRAFT, CHOOSER, "argmax", want_law=True)
    assert q is not None
    assert [1.0, 1.0] == q.gather(1, tokens.unsqueeze(1)).squeeze(1).tolist()
    assert 2.0 == float(q.sum())


def test_law_only_on_request() -> None:
    """Without `want_law` no law is returned, for greedy and for sampled rows."""
    logits = torch.randn(2, 8)
    where = torch.arange(2)
    for params in (SamplingParams(), SamplingParams(1.0)):
        rows = SamplingRows.of([params] * 2)
        assert sample(logits, rows, where, where, Purpose.TARGET, CHOOSER)[1] is None
