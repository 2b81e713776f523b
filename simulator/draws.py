"""Counter-based random numbers: a draw is a hash of its key, so the order of drawing cannot matter.

The hash is splitmix64's finalizer (Steele, Lea and Flood, OOPSLA 2014) applied over the words of the key.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

GAMMA = np.uint64(0x9E3779B97F4A7C15)
ACCEPTANCE = 1  # purposes: numbers drawn for two purposes are never shared
DRAFT_COUNT = 2

Words = NDArray[np.uint64]


def mix(words: Words) -> Words:
    """Return splitmix64's finalizer of uint64 words; arithmetic wraps around."""
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def uniform(
    seed: int, requests: ArrayLike, rounds: ArrayLike, purpose: int, index: ArrayLike = 0
) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each key (seed, request, round, purpose, index), broadcast."""
    state = mix(np.asarray([seed & 0xFFFF_FFFF_FFFF_FFFF], dtype=np.uint64) + GAMMA)
    for word in (requests, rounds, purpose, index):
        with np.errstate(over="ignore"):
            state = mix((state ^ np.asarray(word).astype(np.uint64)) + GAMMA)
    numbers = (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers if np.ndim(requests) or np.ndim(rounds) or np.ndim(index) else numbers.reshape(())
