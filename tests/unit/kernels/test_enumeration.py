"""The enumerating chooser: all outcomes once, with their probabilities, and the guard against reused keys."""

from __future__ import annotations

import itertools

import pytest
import torch

from fsm_spec.kernels.choose import Key
from fsm_spec.kernels.enumeration import Enumerator, enumerate_outcomes, outcome_law
from fsm_spec.kernels.randomness import Purpose

KEY = Key(0, 0, Purpose.TARGET)


def test_all_outcomes_of_dependent_draws() -> None:
    """The law of a second draw may depend on the first; impossible outcomes are not tried."""

    def run(chooser: Enumerator) -> tuple[int, ...]:
        first = chooser.choose_one([0.25, 0.75, 0.0], KEY)
        if first == 0:
            return (first,)
        return (first, chooser.choose_one([0.0, 1.0, 3.0], KEY))

    assert [((0,), 0.25), ((1, 1), 0.1875), ((1, 2), 0.5625)] == enumerate_outcomes(run)


def test_rows_are_independent_draws() -> None:
    """A batch of rows gives the product of their laws."""
    law = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    where = torch.tensor([0, 1])

    def run(chooser: Enumerator) -> tuple[int, ...]:
        return tuple(chooser.choose(law, where, where, Purpose.TARGET).tolist())

    products = {
        pair: 0.5 * (0.25 if pair[1] == 0 else 0.75) for pair in itertools.product(range(2), repeat=2)
    }
    assert products == outcome_law(enumerate_outcomes(run))


def test_point_mass_makes_no_branch() -> None:
    """A certain outcome is taken without a branch."""
    assert [(1, 1.0)] == enumerate_outcomes(lambda chooser: chooser.choose_one([0.0, 0.3], KEY))


def test_reused_key_is_found() -> None:
    """A number that two draws depend on is an error where its purpose is watched (D5, D6)."""

    def run(chooser: Enumerator) -> int:
        return chooser.choose_one([1, 1], KEY) + chooser.choose_one([1, 1], KEY)

    assert {0: 0.25, 1: 0.5, 2: 0.25} == outcome_law(enumerate_outcomes(run))
    with pytest.raises(ValueError, match="used twice"):
        enumerate_outcomes(run, once=frozenset({Purpose.TARGET}))


def test_hidden_state_is_found() -> None:
    """A run that draws from a law that changes between runs has no total probability of 1."""
    calls = itertools.count(1)

    def run(chooser: Enumerator) -> int:
        return chooser.choose_one([1.0, next(calls)], KEY)

    with pytest.raises(ValueError, match="total probability"):
        enumerate_outcomes(run)


def test_limits() -> None:
    """Too many outcomes and laws without mass are errors."""
    with pytest.raises(ValueError, match="more than 2 sequences"):
        enumerate_outcomes(lambda chooser: chooser.choose_one([1, 1, 1], KEY), limit=2)
    with pytest.raises(ValueError, match="no mass"):
        enumerate_outcomes(lambda chooser: chooser.choose_one([0.0, 0.0], KEY))
