"""Closed forms that the simulator is held against: rounds of a request as an absorbing Markov chain."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TypeVar

Chance = TypeVar("Chance", float, Fraction)


def accepted_law(rates: Sequence[Chance]) -> list[Chance]:
    """Return the law of the accepted count: entry a is the chance of exactly a accepted drafts, [drafts + 1].

    `rates` are the chances of each draft given that all before it were accepted, as floats or exact
    fractions.
    """
    if not rates:
        return []
    law: list[Chance] = []
    survival = type(rates[0])(1)
    for rate in rates:
        law.append(survival * (1 - rate))
        survival = survival * rate
    law.append(survival)
    return law


def expected_tokens(rates: Sequence[Chance]) -> Chance | int:
    """Return the mean tokens of one round: the accepted drafts and the token that the target adds."""
    law = accepted_law(rates)
    return sum((count + 1) * chance for count, chance in enumerate(law)) if law else 1


def expected_rounds(rates: Sequence[Chance], tokens: int) -> Chance | int:
    """Return the mean rounds until `tokens` are committed; a round adds accepted drafts and one.

    The committed counts are the states of an absorbing chain that only moves up, so its linear equations are
    solved by one sweep from the end: rounds(c) = 1 + sum over a of law(a) * rounds(c + a + 1), and 0 from
    `tokens` on.
    """
    law = accepted_law(rates)
    if not law:
        return max(0, tokens)
    nothing = law[0] * 0
    rounds: list[Chance] = [nothing] * (max(0, tokens) + len(law))
    for committed in range(tokens - 1, -1, -1):
        after = rounds[committed + 1 : committed + 1 + len(law)]
        rounds[committed] = 1 + sum((chance * left for chance, left in zip(law, after, strict=True)), nothing)
    return rounds[0]
