"""Counter-based random numbers: a draw is a hash of its key, so the order of drawing cannot matter.

The hash is splitmix64's finalizer (Steele, Lea and Flood, OOPSLA 2014) applied over the words of the key. Its functions
are written for arrays and single numbers alike, so that compiled runs draw the same numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

GAMMA = np.uint64(0x9E3779B97F4A7C15)
ACCEPTANCE = 1  # purposes: numbers drawn for two purposes are never shared
DRAFT_COUNT = 2
UNMASKING = 3
SAMPLE = 4
KIND = 5


def mix(words: Any) -> Any:  # noqa: ANN401 - uint64, an array or (compiled) one number
    """Return splitmix64's finalizer of uint64 words; arithmetic wraps around."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def number(start: Any, request: Any, rounds: Any, purpose: Any, index: Any) -> Any:  # noqa: ANN401 - see above
    """Return a number in [0, 1) for a key of uint64 words; `start` is what `seeded` gives."""
    state = mix((start ^ request) + GAMMA)
    state = mix((state ^ rounds) + GAMMA)
    state = mix((state ^ purpose) + GAMMA)
    state = mix((state ^ index) + GAMMA)
    return (state >> np.uint64(11)) * 2.0**-53


def seeded(seed: int) -> NDArray[np.uint64]:
    """Return the start of every key of a seed, uint64 [1]."""
    mixed: NDArray[np.uint64] = mix(np.array([seed & 0xFFFF_FFFF_FFFF_FFFF], np.uint64) + GAMMA)
    return mixed


def uniform(
    seed: int, requests: ArrayLike, rounds: ArrayLike, purpose: int, index: ArrayLike = 0
) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each key (seed, request, round, purpose, index), broadcast."""
    words = (np.atleast_1d(word).astype(np.uint64) for word in (requests, rounds, purpose, index))
    numbers: NDArray[np.float64] = number(seeded(seed), *words)
    return numbers if np.ndim(requests) or np.ndim(rounds) or np.ndim(index) else numbers.reshape(())


def counts(
    tail: NDArray[np.float64], seed: int, purpose: int, requests: ArrayLike, rounds: ArrayLike
) -> NDArray[np.int64]:
    """Draw counts by each key (request, round), int64; `tail` [most] is the chance that it exceeds i, never rising."""
    # Counting the entries above the number is a search from the right.
    below = np.searchsorted(tail[::-1], uniform(seed, requests, rounds, purpose), side="right")
    return np.asarray(len(tail) - below, dtype=np.int64)
