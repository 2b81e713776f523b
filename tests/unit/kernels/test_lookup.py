"""Prompt lookup: longest suffix first, earliest occurrence, nothing past the text."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from fsm_spec.kernels.lookup import lookup, lookup_plain


@pytest.mark.parametrize(
    ("text", "size", "shortest", "longest", "expected"),
    [
        ([1, 2, 3, 4, 2, 3], 4, 2, 3, [4, 2, 3]),  # the example in vLLM's proposer
        ([1, 2, 3, 9, 8, 2, 3, 7, 1, 2, 3], 2, 1, 3, [9, 8]),  # three tokens beat two
        ([5, 1, 5, 2, 5], 3, 1, 4, [1, 5, 2]),  # the earliest of two
        ([7, 7, 7], 4, 1, 2, [7]),  # an occurrence may overlap the suffix
        ([7, 7, 7], 4, 1, 5, [7]),
        ([1, 2, 3, 1], 4, 2, 3, []),  # one token is too short a match
        ([1, 2, 3], 4, 1, 3, []),
        ([1], 4, 1, 3, []),
        ([], 4, 1, 3, []),
        ([1, 2, 1], 0, 1, 3, []),
    ],
)
def test_examples(text: list[int], size: int, shortest: int, longest: int, expected: list[int]) -> None:
    """Both readings draft the expected continuation."""
    assert expected == lookup_plain(text, size, shortest, longest)
    drafts, count = lookup([text], size, shortest, longest)
    assert (1, size) == drafts.shape
    assert expected == drafts[0, : int(count[0])].tolist()


def test_batch_equals_plain() -> None:
    """Ragged batches of lists, arrays and tensors give the plain reading's drafts, filled up with zeros."""
    source = random.Random(0)
    for _ in range(200):
        size, shortest = source.randrange(5), source.randrange(1, 4)
        longest = shortest + source.randrange(3)
        texts = [[source.randrange(3) for _ in range(source.randrange(25))] for _ in range(3)]
        drafts, count = lookup(
            [texts[0], np.array(texts[1], dtype=np.int64), torch.tensor(texts[2], dtype=torch.int32)],
            size,
            shortest,
            longest,
        )
        for row, text in enumerate(texts):
            expected = lookup_plain(text, size, shortest, longest)
            assert [*expected, *[0] * (size - len(expected))] == drafts[row].tolist()
            assert len(expected) == count[row]


def test_input_is_not_aliased() -> None:
    """Writing to the drafts does not write to the text."""
    text = torch.tensor([1, 2, 1])
    drafts, _ = lookup([text], 2, 1, 1)
    drafts.fill_(9)
    assert [1, 2, 1] == text.tolist()


@pytest.mark.parametrize(("size", "shortest", "longest"), [(-1, 1, 2), (2, 0, 2), (2, 3, 2)])
def test_bad_lengths(size: int, shortest: int, longest: int) -> None:
    """Lengths out of range are refused by both readings."""
    with pytest.raises(ValueError, match="give"):
        lookup([[1]], size, shortest, longest)
    with pytest.raises(ValueError, match="give"):
        lookup_plain([1], size, shortest, longest)
