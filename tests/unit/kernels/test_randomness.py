"""Counter-based random numbers: known answers, equal readings, one stream a purpose, uniform law."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from scipy import stats

from fsm_spec.kernels.randomness import Purpose, philox, salted, uniform, uniform_plain

ONES = 0xFFFFFFFF
# The known-answer vectors of Random123, the authors' own implementation (kat_vectors, philox4x32 10).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    """The generator is the published Philox4x32-10, in Python ints and in wrapping 64-bit tensors."""
    assert expected == philox(counter, key)
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    k0, k1 = (torch.tensor([word]) for word in key)
    assert expected == tuple(int(word) for word in philox((c0, c1, c2, c3), (k0, k1)))


def test_tensor_equals_plain() -> None:
    """Both readings give the same 53 bits, also for negative and large seeds."""
    source = random.Random(1)
    edges = [0, 1, -1, 2**32, 2**32 - 1, 2**63 - 1, -(2**63)]
    keys = list(itertools.product(edges, edges))
    keys += [(source.randrange(-(2**63), 2**63), source.randrange(2**20)) for _ in range(100)]
    seed, position = (torch.tensor(column) for column in zip(*keys, strict=True))
    for purpose in Purpose:
        assert [uniform_plain(*key, purpose) for key in keys] == uniform(seed, position, purpose).tolist()


def test_shape_is_kept() -> None:
    """A matrix of keys gives a matrix of numbers; no keys give none."""
    grid = torch.arange(6).view(2, 3)
    assert uniform(grid, grid, Purpose.DRAFT).shape == (2, 3)
    assert uniform(grid[:0], grid[:0], Purpose.DRAFT).shape == (0, 3)


def test_no_number_is_shared() -> None:
    """Seeds, positions and purposes name distinct numbers; none moves along from call to call (D5, D6)."""
    seed, position = torch.arange(40).repeat_interleave(40), torch.arange(40).repeat(40)
    numbers = torch.cat([uniform(seed, position, purpose) for purpose in Purpose])
    assert len(Purpose) * 1600 == len(set(numbers.tolist()))


def test_salts_name_further_numbers() -> None:
    """Draws for one position are told apart by their salt, in both readings, and salt 0 is the position."""
    position, salt = torch.arange(40).repeat(40), torch.arange(40).repeat_interleave(40)
    names = salted(position, salt)
    assert 1600 == len(set(uniform(torch.zeros_like(names), names, Purpose.DRAFT).tolist()))
    assert names.tolist() == [
        salted(at, mark) for at, mark in zip(position.tolist(), salt.tolist(), strict=True)
    ]
    assert position[:40].equal(names[:40])
    assert 2**63 - 1 == salted(2**32 - 1, 2**31 - 1)


def test_uniform_law() -> None:
    """Numbers are uniform, purposes independent: chi-square, error rate 1e-4 in each of 15 tests."""
    seed = torch.full((50_000,), 7)
    position = torch.arange(50_000)
    streams = {purpose: uniform(seed, position, purpose).numpy() for purpose in Purpose}
    for numbers in streams.values():
        assert numbers.min() >= 0
        assert numbers.max() < 1
        counts = torch.bincount(torch.from_numpy((numbers * 64).astype("int64")), minlength=64)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-4
    for one, other in itertools.combinations(streams.values(), 2):
        cells = torch.from_numpy((one * 8).astype("int64") * 8 + (other * 8).astype("int64"))
        assert stats.chisquare(torch.bincount(cells, minlength=64).numpy()).pvalue > 1e-4
