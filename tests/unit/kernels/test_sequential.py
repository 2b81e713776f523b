"""Sampling with a head that reads the token before: order, laws, and the joint law of a block."""

from __future__ import annotations

import itertools

import pytest
import torch

from fsm_spec.kernels.choose import CounterChooser, Key
from fsm_spec.kernels.enumeration import Enumerator, enumerate_outcomes, outcome_law
from fsm_spec.kernels.law import SamplingParams, SamplingRows, law_plain
from fsm_spec.kernels.randomness import Purpose
from fsm_spec.kernels.sampling import Rule
from fsm_spec.kernels.sequential import sample_sequential, sample_sequential_plain

VOCABULARY, LENGTH = 4, 3
MIXED = [SamplingParams(0.7, 3), SamplingParams(), SamplingParams(1.3, 0, 1.0, 0.1)]


def drawn(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw logits [3, LENGTH, V] and biases [LENGTH, V, V] by the token before."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, LENGTH, VOCABULARY, generator=generator, dtype=torch.float64)
    return logits, torch.randn(LENGTH, VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("rule", ["law", "argmax"])
@pytest.mark.parametrize("exclude", [None, 2])
def test_batch_equals_plain(rule: Rule, exclude: int | None) -> None:
    """Each request has the plain reading's tokens and laws, and `exclude` is never drafted."""
    for seed in range(10):
        logits, biases = drawn(seed)
        position = torch.arange(3 * LENGTH).view(3, LENGTH) + seed
        tokens, laws = sample_sequential(
            logits,
            torch.tensor([0, 1, 3]),
            lambda step, previous, biases=biases: biases[step, previous],  # type: ignore[misc]
            SamplingRows.of(MIXED),
            torch.arange(3),
            position,
            CounterChooser(),
            rule,
            exclude=exclude,
            want_law=True,
        )
        assert laws is not None
        for row, (params, first) in enumerate(zip(MIXED, (0, 1, 3), strict=True)):
            one, own = sample_sequential_plain(
                logits[row].tolist(),
                first,
                lambda step, previous, biases=biases: biases[step, previous].tolist(),  # type: ignore[misc]
                params,
                [Key(row, at, Purpose.DRAFT) for at in position[row].tolist()],
                CounterChooser(),
                rule,
                exclude=exclude,
            )
            assert one == tokens[row].tolist()
            assert exclude not in one
            torch.testing.assert_close(
                torch.tensor(own, dtype=torch.float64), laws[row], rtol=1e-12, atol=1e-15
            )


def test_joint_law_is_the_chain_of_biased_laws() -> None:
    """A block's law is the product of each row's law under the bias of the token before it, to 1e-12."""
    logits, biases = drawn()
    params = SamplingParams(0.8, 0, 0.9)

    def draft(chooser: Enumerator) -> tuple[int, ...]:
        tokens, _ = sample_sequential_plain(
            logits[0].tolist(),
            1,
            lambda step, previous: biases[step, previous].tolist(),
            params,
            [Key(0, at, Purpose.DRAFT) for at in range(LENGTH)],
            chooser,
        )
        return tuple(tokens)

    found = outcome_law(enumerate_outcomes(draft))
    for tokens in itertools.product(range(VOCABULARY), repeat=LENGTH):
        mass, previous = 1.0, 1
        for step, token in enumerate(tokens):
            mass *= law_plain((logits[0, step] + biases[step, previous]).tolist(), params)[token]
            previous = token
        assert abs(found.get(tokens, 0.0) - mass) < 1e-12


def test_no_draw_is_used_again_in_a_later_round() -> None:
    """A block that starts one position later drafts two positions again, by other random numbers.

    With the same ones, a width that was chosen by the older drafts would depend on the newer.
    """

    class Named(CounterChooser):
        def __init__(self) -> None:
            self.keys: list[int] = []

        def choose(
            self, law: torch.Tensor, seed: torch.Tensor, position: torch.Tensor, purpose: Purpose
        ) -> torch.Tensor:
            self.keys += position.tolist()
            return super().choose(law, seed, position, purpose)

    chooser = Named()
    logits, biases = drawn()
    for start in (7, 8):
        sample_sequential(
            logits[:1],
            torch.tensor([1]),
            lambda step, previous: biases[step, previous],
            SamplingRows.of([SamplingParams(1.0)]),
            torch.tensor([0]),
            torch.arange(start, start + LENGTH)[None],
            chooser,
        )
    assert len(set(chooser.keys)) == 2 * LENGTH


def test_laws_only_on_request() -> None:
    """A spec that reads no law pays for none."""
    logits, biases = drawn()
    tokens, laws = sample_sequential(
        logits,
        torch.tensor([0, 1, 3]),
        lambda step, previous: biases[step, previous],
        SamplingRows.of(MIXED),
        torch.arange(3),
        torch.zeros(3, LENGTH, dtype=torch.int64),
        CounterChooser(),
    )
    assert laws is None
    assert tokens.shape == (3, LENGTH)
