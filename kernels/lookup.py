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

Text = Tensor | NDArray[np.int64] | Sequence[int]


def lookup(texts: Sequence[Text], size: int, shortest: int, longest: int) -> tuple[Tensor, Tensor]:
    """Draft up to `size` tokens for each text -> (drafts int64 [B, size], count int64 [B]), on the CPU.

    A text is all tokens of a request, prompt and emitted; drafts past the count are 0.
    Looks for an earlier occurrence of the text's last n tokens, n from `longest` down to `shortest`; it may
    overlap them. Raises ValueError unless size >= 0 and 1 <= shortest <= longest.
    """
    require_lengths(size, shortest, longest)
    drafts = torch.zeros(len(texts), size, dtype=torch.int64)
    count = torch.zeros(len(texts), dtype=torch.int64)
    for row, text in enumerate(texts):
        found = _continuation(_as_array(text), size, shortest, longest)
        drafts[row, : len(found)] = torch.from_numpy(found)
        count[row] = len(found)
    return drafts, count


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


def _continuation(text: NDArray[np.int64], size: int, shortest: int, longest: int) -> NDArray[np.int64]:
    """Return the tokens after the earliest occurrence of the longest known suffix (a copy)."""
    last = len(text) - 1
    # Ends of earlier occurrences of the last n tokens, n = 1, 2, ...: each set is part of the one before.
    ends = np.flatnonzero(text[:last] == text[last]) if last > 0 else np.empty(0, dtype=np.int64)
    length, best = (1, ends) if len(ends) else (0, ends)
    while length and length < longest:
        ends = ends[ends >= length]
        ends = ends[text[ends - length] == text[last - length]]
        if not len(ends):
            break
        length, best = length + 1, ends
    if length < shortest:
        return text[:0].copy()
    start = int(best[0]) + 1
    return text[start : start + size].copy()


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
