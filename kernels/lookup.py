"""The `lookup` operator: drafts copied from earlier in the request's own text (prompt-lookup decoding).

Source: Saxena, "Prompt Lookup Decoding" (2023). As in vLLM's and Hugging Face transformers' implementations,
the longest n-gram wins, and of its occurrences the earliest, whose continuation is the longest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Integers = NDArray[np.int64]
Text = Tensor | Integers | Sequence[int]


def lookup(texts: Sequence[Text], size: int, shortest: int, longest: int) -> tuple[Tensor, Tensor]:
    """Draft up to `size` tokens for each text -> (drafts int64 [B, size], count int64 [B]), on the CPU.

    A text is all tokens of a request, prompt and emitted; drafts past the count are 0.
    Looks for an earlier occurrence of the text's last n tokens, n from `longest` down to `shortest`; it may
    overlap them. Raises ValueError unless size >= 0 and 1 <= shortest <= longest.
    """
    require_lengths(size, shortest, longest)
    # All texts one behind the other, and a 0 behind all, so that every place can be read.
    arrays = [_as_array(text) for text in texts]
    joined = np.concatenate([*arrays, np.zeros(1, np.int64)])
    lasts = np.array([len(text) for text in arrays], np.int64).cumsum() - 1
    ends = _earlier(arrays, joined, lasts, shortest, longest)
    count = np.where(ends >= 0, np.minimum(lasts - ends, size), 0)
    places = np.arange(size)
    read = np.where(places < count[:, None], ends[:, None] + 1 + places, len(joined) - 1)
    return torch.from_numpy(joined[read]), torch.from_numpy(count)


def require_lengths(size: int, shortest: int, longest: int) -> None:
    """Raise ValueError for lengths out of range."""
    if size < 0:
        raise ValueError(f"size is {size}; give at least 0")
    if not 1 <= shortest <= longest:
        raise ValueError(f"n-gram lengths are {shortest} to {longest}; give 1 <= shortest <= longest")


def _as_array(text: Text) -> NDArray[np.int64]:
    """Return the text as an array, without a copy where it is one already."""
    if isinstance(text, Tensor):
        return text.to("cpu", torch.int64).numpy()
    return np.asarray(text, dtype=np.int64)


def _earlier(
    texts: Sequence[Integers], joined: Integers, lasts: Integers, shortest: int, longest: int
) -> Integers:
    """Return where the earliest occurrence of each text's longest known suffix ends; -1 where none is known.

    All places are those of the joined texts, whose last tokens stand at `lasts`.
    """
    found = np.full(len(texts), -1, np.int64)
    starts = lasts + 1 - np.array([len(text) for text in texts], np.int64)
    # Ends of earlier occurrences of the last n tokens, n = 1, 2, ...: each set is part of the one before.
    equal = np.zeros(len(joined), np.bool_)
    for text, start, last in zip(texts, starts.tolist(), lasts.tolist(), strict=True):
        if last > start:
            np.equal(text[:-1], text[-1], out=equal[start:last])
    ends = equal.nonzero()[0]
    owner = np.arange(len(texts)).repeat(np.searchsorted(ends, lasts) - np.searchsorted(ends, starts))
    for length in range(1, longest + 1):
        if length > 1:
            kept = ends - starts[owner] >= length - 1
            ends, owner = ends[kept], owner[kept]
            kept = joined[ends - (length - 1)] == joined[lasts[owner] - (length - 1)]
            ends, owner = ends[kept], owner[kept]
        if length >= shortest:
            # Of each text the first one stays, as those further on are written before it.
            found[owner[::-1]] = ends[::-1]
    return found


def lookup_plain(text: Sequence[int], size: int, shortest: int, longest: int) -> list[int]:
    """Draft the tokens that `lookup` drafts for one text, in plain Python."""
    require_lengths(size, shortest, longest)
    text = list(text)
    for length in range(min(longest, len(text) - 1), shortest - 1, -1):
        suffix = text[-length:]
        for start in range(len(text) - length):
            if text[start : start + length] == suffix:
                return text[start + length :][:size]
    return []
