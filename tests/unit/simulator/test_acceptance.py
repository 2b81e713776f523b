"""Acceptance: parsing, draws that no order changes, and the closed forms they are held against."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_spec.errors import UserError
from fsm_spec.simulator import draws
from fsm_spec.simulator.acceptance import Acceptance, parse_accept
from fsm_spec.simulator.theory import accepted_law, expected_rounds, expected_tokens

# A test of n draws fails by chance where |mean - expected| > 5 standard errors: less than 6 in 10 million
# runs, and never twice, since the draws are fixed by their seed.
STANDARD_ERRORS = 5.0


def test_forms_mean_the_same() -> None:
    """Conditional, unconditional and geometric rates describe one law."""
    conditional = parse_accept("0.8,0.7,0.5")
    unconditional = parse_accept("unconditional:0.8,0.56,0.28")
    assert unconditional.rates == pytest.approx(conditional.rates)
    assert parse_accept("geometric:0.7").conditional(3) == (0.7, 0.7, 0.7)
    assert parse_accept("unconditional:0.5,0,0").rates == (0.5, 0.0, 0.0)
    assert ["0.8,0.7,0.5", "geometric:0.7"] == [
        conditional.describe(),
        parse_accept("geometric:0.7").describe(),
    ]
    assert conditional.expected(3) == pytest.approx(0.8 + 0.56 + 0.28)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", '"" at position 1 is no number'),
        ("0.8,x", '"x" at position 2 is no number'),
        ("0.8,1.2", "1.2 at position 2 lies outside 0 to 1"),
        ("nan", "outside 0 to 1"),
        ("geometric:0.7,0.6", "geometric takes one rate, not 2"),
        ("unconditional:0.5,0.6", "0.6 at position 2 rises above 0.5"),
        ("linear:0.5", 'unknown form "linear"'),
    ],
)
def test_bad_forms_get_a_sentence(text: str, words: str) -> None:
    """Each mistake is named with its position."""
    with pytest.raises(UserError, match=words):
        parse_accept(text)


def test_another_count_is_refused_with_both_numbers() -> None:
    """A list must have one rate for each judged draft; geometric fits any number."""
    with pytest.raises(UserError, match="gives 3 rates, but sketch judges 4 drafts a round"):
        parse_accept("0.8,0.7,0.6").check(4, "sketch")
    with pytest.raises(UserError, match="gives 1 rate, but sketch judges 0 drafts"):
        parse_accept("0.8").check(0, "sketch")
    parse_accept("0.8,0.7,0.6").check(3, "sketch")
    parse_accept("geometric:0.7").check(9, "sketch")


@pytest.mark.parametrize("text", ["0.8,0.7,0.6", "geometric:0.9", "1,1,1", "0,0.5,0.5", "0.5,0,1"])
def test_draws_have_the_expected_mean(text: str) -> None:
    """The mean of 200,000 draws lies within 5 standard errors of the closed form."""
    acceptance, count = parse_accept(text, seed=7), 200_000
    index = np.arange(count)
    sample = acceptance.accepted(np.full(count, 3), index % 999, index // 999)
    law = np.asarray(accepted_law(acceptance.conditional(3)))
    expected = float(np.arange(4) @ law)
    spread = float(np.sqrt(np.arange(4) ** 2 @ law - expected**2))
    assert expected == pytest.approx(acceptance.expected(3))
    assert abs(sample.mean() - expected) <= STANDARD_ERRORS * spread / np.sqrt(count) + 1e-12
    share = np.bincount(sample, minlength=4) / count
    errors = STANDARD_ERRORS * np.sqrt(law * (1 - law) / count)
    assert (np.abs(share - law) <= errors + 1e-12).all()


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1),
)
def test_order_and_company_do_not_matter(keys: list[tuple[int, int, int]]) -> None:
    """A round's draw depends on seed, request and round only, and fewer live drafts only cut it."""
    acceptance = parse_accept("geometric:0.7", seed=3)
    together = acceptance.accepted(*np.asarray(keys).T)
    alone = [int(acceptance.accepted([drafts], [request], [turn])[0]) for drafts, request, turn in keys]
    assert alone == together.tolist()
    full = acceptance.accepted(*np.asarray([(4, request, turn) for _, request, turn in keys]).T)
    assert np.minimum(full, [drafts for drafts, _, _ in keys]).tolist() == alone


def test_draws_are_pinned() -> None:
    """A change of the hash would change every published result."""
    numbers = draws.uniform(1, [0, 1], [5, 5], draws.ACCEPTANCE)
    assert numbers.tolist() == draws.uniform(1, np.array([0, 1]), 5, draws.ACCEPTANCE).tolist()
    assert [round(number, 12) for number in numbers.tolist()] == PINNED
    assert draws.uniform(2, 0, 5, draws.ACCEPTANCE) != numbers[0]
    assert draws.uniform(1, 0, 5, draws.DRAFT_COUNT) != numbers[0]
    assert draws.uniform(1, 0, 5, draws.ACCEPTANCE).shape == ()


PINNED = [0.542419735965, 0.775415593755]


def test_uniform_numbers_are_uniform() -> None:
    """Neighbouring keys give independent numbers: means, and the correlation of successive rounds."""
    count = 100_000
    numbers = draws.uniform(0, np.zeros(count), np.arange(count), draws.ACCEPTANCE)
    assert abs(numbers.mean() - 0.5) <= STANDARD_ERRORS * np.sqrt(1 / 12 / count)
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) <= STANDARD_ERRORS / np.sqrt(count)
    across = draws.uniform(0, np.arange(count), np.zeros(count), draws.ACCEPTANCE)
    assert abs(np.corrcoef(numbers, across)[0, 1]) <= STANDARD_ERRORS / np.sqrt(count)


def test_expected_rounds_match_the_model_checker() -> None:
    """Two drafts, four tokens: 2.625, 2.243 and 2.029 rounds (Storm), here as exact fractions."""
    rounds = [expected_rounds([Fraction(rate, 10)] * 2, 4) for rate in (5, 7, 9)]
    assert [Fraction(21, 8), Fraction(2243, 1000), Fraction(2029, 1000)] == rounds
    assert expected_rounds([0.7, 0.7], 4) == pytest.approx(2.243)


def test_chain_ends() -> None:
    """No drafts mean one token a round; sure drafts mean full rounds; no tokens mean no rounds."""
    assert expected_rounds([], 5) == 5
    assert expected_rounds([1.0, 1.0], 7) == 3
    assert expected_rounds([0.5], 0) == 0
    assert expected_tokens([]) == 1
    assert expected_tokens([Fraction(1, 2), Fraction(1, 2)]) == Fraction(7, 4)
    assert Acceptance((0.5, 0.5)).expected(2) == 0.75


def test_simulated_rounds_match_the_chain() -> None:
    """Requests stepped round by round need the expected rounds, within 5 standard errors."""
    acceptance, requests, tokens = parse_accept("0.8,0.6", seed=11), 20_000, 33
    committed = np.zeros(requests, dtype=np.int64)
    rounds = np.zeros(requests, dtype=np.int64)
    while (live := np.flatnonzero(committed < tokens)).size:
        committed[live] += 1 + acceptance.accepted(np.full(live.size, 2), live, rounds[live])
        rounds[live] += 1
    error = STANDARD_ERRORS * rounds.std() / np.sqrt(requests)
    assert abs(rounds.mean() - float(expected_rounds([0.8, 0.6], tokens))) <= error
