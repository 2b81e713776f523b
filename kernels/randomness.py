"""Counter-based random numbers: a draw is a function of (seed, position, purpose), not of earlier draws.

So a request draws the same numbers alone, in a batch and after a preemption.
Choosing a token with such a number is `choose.py`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Multipliers and key increments of Philox4x32 (Salmon et al., "Parallel Random Numbers", SC 2011).
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_WORD = 0xFFFFFFFF

Word = TypeVar("Word", int, NDArray[np.int64], Tensor)


class Purpose(IntEnum):
    """Name what a draw is for: two purposes at one position never share a number."""

    TARGET = 1  # a token of the target: plain decoding, bonus tokens, samples matched with drafts
    DRAFT = 2  # a proposed token
    ACCEPT = 3  # the verdict on a proposed token
    RESIDUAL = 4  # the correction after a rejected proposal
    NOISE = 5  # the input id of a noise row
    SYNTHETIC = 6  # how many drafts stand where that is drawn by given chances, for measuring


def philox(counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]) -> tuple[Word, Word, Word, Word]:
    """Mix a 128-bit counter with a 64-bit key (Philox4x32-10); every word is an integer in 0..2**32-1.

    Works on Python ints, int64 arrays and int64 tensors alike: where a 64-bit product wraps, its bits are
    still those of the unsigned product, and the masks remove the sign bits that the shift drags in.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0, product_1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c1 = ((product_1 >> 32) & _WORD) ^ c1 ^ k0, product_1 & _WORD
        c2, c3 = ((product_0 >> 32) & _WORD) ^ c3 ^ k1, product_0 & _WORD
        k0, k1 = (k0 + _WEYL_0) & _WORD, (k1 + _WEYL_1) & _WORD
    return c0, c1, c2, c3


def salted(position: Word, salt: Word) -> Word:
    """Name one of several draws for the same position and purpose: the salt fills the counter's second word.

    `position` in 0..2**32-1, `salt` in 0..2**31-1; a salt of 0 is the position itself.
    """
    return position + (salt << 32)


def _bits53(seed: Word, position: Word, purpose: int) -> Word:
    """Return 53 random bits each: the key is the seed, the counter is (position, purpose)."""
    zero = position & 0
    counter = (position & _WORD, (position >> 32) & _WORD, zero + purpose, zero)
    first, second, _, _ = philox(counter, (seed & _WORD, (seed >> 32) & _WORD))
    return ((first >> 5) << 26) | (second >> 6)


def uniform(seed: Tensor, position: Tensor, purpose: int) -> Tensor:
    """Draw one number in [0, 1) for each element; `seed` and `position` int64 of one shape -> float64."""
    if seed.device.type == "cpu":
        # About 150 operations on small arrays: numpy's overhead for each is a third of torch's.
        bits = _bits53(seed.reshape(-1).numpy(), position.reshape(-1).numpy(), purpose)
        return torch.from_numpy(bits * 2.0**-53).reshape(seed.shape)
    return _bits53(seed, position, purpose).to(torch.float64) * 2.0**-53


def uniform_plain(seed: int, position: int, purpose: int) -> float:
    """Draw the number that `uniform` draws for one element; `seed` and `position` in -2**63..2**63-1."""
    return _bits53(seed, position, purpose) * 2.0**-53
