"""All outcomes of a randomised computation with their probabilities, found by running it once for each.

This makes the output law of an algorithm on a toy model exact, where sampling could only fail to refute it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from fsm_spec.kernels.choose import Key
from fsm_spec.kernels.randomness import Purpose

T = TypeVar("T")

_EXACT = 1e-9


class Enumerator:
    """Be the chooser of one run: follow the forced outcomes, then take the first possible one each time.

    `path` lists the outcomes taken at draws with more than one possible outcome, `probability` their product.
    A key drawn twice raises ValueError if its purpose is in `once`: two draws at one key share their random
    number, which is sound only if nothing has depended on the first.
    """

    def __init__(self, forced: Sequence[int] = (), once: frozenset[Purpose] = frozenset()) -> None:
        self.path: list[int] = []
        self.probability = 1.0
        self._forced = forced
        self._once = once
        self._seen: set[Key] = set()
        self.untried: list[list[int]] = []

    def choose_one(self, law: Sequence[float], key: Key) -> int:
        """Take the forced outcome or the first possible one, and note the untried ones."""
        if key in self._seen and key.purpose in self._once:
            raise ValueError(f"the random number of {key} is used twice")
        self._seen.add(key)
        possible = [outcome for outcome, mass in enumerate(law) if mass > 0]
        total = math.fsum(law)
        if not possible or not math.isfinite(total):
            raise ValueError(f"the law of {key} has no mass; its logits are NaN or all -inf")
        if len(possible) == 1:
            return possible[0]
        depth = len(self.path)
        if depth < len(self._forced):
            outcome = self._forced[depth]
        else:
            outcome = possible[0]
            self.untried += [[*self.path, other] for other in possible[1:]]
        self.path.append(outcome)
        self.probability *= law[outcome] / total
        return outcome

    def choose(self, law: Tensor, seed: Tensor, position: Tensor, purpose: Purpose) -> Tensor:
        """Take one outcome for each row of law [n, V], row after row -> int64 [n]."""
        keys = zip(seed.tolist(), position.tolist(), strict=True)
        laws = law.to(torch.float64).tolist()
        outcomes = [self.choose_one(one, Key(*key, purpose)) for one, key in zip(laws, keys, strict=True)]
        return torch.tensor(outcomes, dtype=torch.int64, device=law.device)


def enumerate_outcomes(
    run: Callable[[Enumerator], T], once: frozenset[Purpose] = frozenset(), limit: int = 1_000_000
) -> list[tuple[T, float]]:
    """Run a computation once for each sequence of outcomes -> (result, probability), depth first.

    `run` must draw only through the chooser it is given. Equal results of several sequences stay apart.
    Raises ValueError after `limit` runs, and if the probabilities do not add up to 1: then `run` is not a
    function of its draws.
    """
    results: list[tuple[T, float]] = []
    waiting: list[list[int]] = [[]]
    while waiting:
        if len(results) >= limit:
            raise ValueError(f"more than {limit} sequences of outcomes; use a smaller vocabulary")
        chooser = Enumerator(waiting.pop(), once)
        results.append((run(chooser), chooser.probability))
        waiting += reversed(chooser.untried)
    total = math.fsum(probability for _, probability in results)
    if abs(total - 1) > _EXACT:
        raise ValueError(
            f"the outcomes have total probability {total}; the run is not a function of its draws"
        )
    return results


def outcome_law(outcomes: Sequence[tuple[T, float]]) -> dict[T, float]:
    """Add up the probabilities of equal results."""
    grouped: dict[T, list[float]] = {}
    for result, probability in outcomes:
        grouped.setdefault(result, []).append(probability)
    return {result: math.fsum(parts) for result, parts in grouped.items()}
