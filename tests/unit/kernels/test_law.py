"""The law of the next token: temperature, top-k, top-p, min-p, exclusion, and the plain reading."""

from __future__ import annotations

import math
import random

import pytest
import torch

from fsm_spec.kernels.law import (
    SamplingParams,
    SamplingRows,
    argmax_tokens,
    best_tokens,
    in_nucleus,
    law,
    law_plain,
)

DYADIC = [0.5, 0.25, 0.125, 0.125]  # sums and logarithms to base 2 without rounding


def random_params(source: random.Random) -> SamplingParams:
    """Return parameters of which each may be off."""
    return SamplingParams(
        temperature=source.choice([0.0, 0.5, 1.0, 1.7]),
        top_k=source.choice([0, 0, 1, 3, 50]),
        top_p=source.choice([1.0, 1.0, 0.9, 0.3]),
        min_p=source.choice([0.0, 0.0, 0.2]),
    )


@pytest.mark.parametrize("width", [5, 700])
def test_batch_equals_plain(width: int) -> None:
    """Every row has the law of the plain reading, whatever parameters the other rows have (D9)."""
    source = random.Random(width)
    torch.manual_seed(width)
    for trial in range(20):
        logits = torch.randn(8, width, dtype=torch.float64) * 3
        params = [random_params(source) for _ in range(8)]
        exclude = trial % 5 if trial % 2 else None
        expected = [law_plain(row, one, exclude) for row, one in zip(logits.tolist(), params, strict=True)]
        before = logits.clone()
        torch.testing.assert_close(
            torch.tensor(expected, dtype=torch.float64),
            law(logits, SamplingRows.of(params), exclude),
            rtol=1e-12,
            atol=1e-14,
        )
        assert before.equal(logits)


def test_wide_row_equals_plain() -> None:
    """A vocabulary of many blocks, peaked as a language model's, has the plain reading's law."""
    torch.manual_seed(0)
    logits = torch.randn(3, 5_000, dtype=torch.float64)
    logits[:, ::97] += 12 * torch.rand(3, 52, dtype=torch.float64)
    params = [SamplingParams(0.8, 10, 0.9), SamplingParams(1.0, 0, 0.95), SamplingParams(1.0, 4, 1.0, 0.1)]
    expected = [law_plain(row, one) for row, one in zip(logits.tolist(), params, strict=True)]
    result = law(logits, SamplingRows.of(params))
    torch.testing.assert_close(torch.tensor(expected, dtype=torch.float64), result, rtol=1e-12, atol=1e-14)


def test_row_does_not_depend_on_batch() -> None:
    """A row's float32 law is bit for bit the same alone and beside other rows."""
    torch.manual_seed(3)
    logits = torch.randn(6, 1_000) * 4
    params = [SamplingParams(0.9, 5 * row, 0.9 if row % 2 else 1.0, 0.01 * row) for row in range(6)]
    together = law(logits, SamplingRows.of(params))
    for row in range(6):
        assert together[row].equal(law(logits[row : row + 1], SamplingRows.of([params[row]]))[0])


def test_top_p_boundary() -> None:
    """A token stays while the mass before it is below top_p: at equality it goes."""
    before = torch.tensor([[0.0, 0.5, 0.75, 0.875]], dtype=torch.float64)
    for top_p, kept in [(0.1, 1), (0.5, 1), (0.6, 2), (0.75, 2), (0.76, 3), (0.875, 3), (0.9, 4)]:
        assert kept == int(in_nucleus(before, torch.tensor([[top_p]], dtype=torch.float64)).sum())
        # log 2 is rounded, but no law here is within 1e-3 of a boundary but those that it must be at.
    logits = [math.log(mass) for mass in DYADIC]
    for top_p, kept in [(0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.874, 3), (0.876, 4)]:
        params = SamplingParams(1.0, top_p=top_p)
        assert kept == sum(mass > 0 for mass in law_plain(logits, params))
        assert kept == int((law(torch.tensor([logits]), SamplingRows.of([params])) > 0).sum())


def test_top_p_tie_goes_to_lower_id() -> None:
    """Of equally probable tokens at the boundary, the lower ids are kept."""
    rows = SamplingRows.of([SamplingParams(1.0, top_p=0.6)])
    assert [[0.0, 0.5, 0.0, 0.5, 0.0]] == law(torch.tensor([[-9e9, 0.0, -9e9, 0.0, 0.0]]), rows).tolist()


def test_top_p_is_of_the_mass_after_top_k() -> None:
    """Top-p counts the mass that top-k left: 2/3 of 0.5 and 0.25."""
    params = SamplingParams(1.0, top_k=2, top_p=0.6)
    logits = torch.tensor([DYADIC]).log()
    assert [[1.0, 0.0, 0.0, 0.0]] == law(logits, SamplingRows.of([params])).tolist()


def test_top_k_keeps_ties() -> None:
    """Tokens that tie with the k-th best stay, as in vLLM and Hugging Face transformers."""
    rows = SamplingRows.of([SamplingParams(1.0, top_k=2)])
    p = law(torch.tensor([[3.0, 1.0, 1.0, 0.0]]), rows)
    assert [True, True, True, False] == (p[0] > 0).tolist()


def test_top_k_beyond_vocabulary_is_off() -> None:
    """A k above the vocabulary removes nothing."""
    logits = torch.randn(1, 4)
    rows = SamplingRows.of([SamplingParams(1.0, top_k=9)])
    torch.testing.assert_close(logits.softmax(-1), law(logits, rows))


def test_greedy_takes_lowest_id() -> None:
    """Temperature 0 is a point mass on the first of the best; other parameters and rows do not matter."""
    logits = torch.tensor([[0.0, 7.0, 7.0], [7.0, 0.0, 7.0]])
    for params in ([SamplingParams()] * 2, [SamplingParams(0.0, 2, 0.5, 0.5), SamplingParams(1.0, top_k=1)]):
        p = law(logits, SamplingRows.of(params))
        assert [0.0, 1.0, 0.0] == p[0].tolist()
    assert [1, 0] == argmax_tokens(logits).tolist()
    assert [2, 0] == argmax_tokens(logits, exclude=1).tolist()


def test_tiny_temperature_is_greedy() -> None:
    """A temperature that would overflow the logits is plain argmax decoding."""
    rows = SamplingRows.of([SamplingParams(1e-30)])
    assert rows.all_greedy
    assert [[0.0, 1.0]] == law(torch.tensor([[1.0, 2.0]]), rows).tolist()


def test_half_precision_gives_float32() -> None:
    """Laws of bfloat16 logits are float32, so that p and q are compared as they were sampled (D7)."""
    logits = torch.randn(2, 9).bfloat16()
    for params in (SamplingParams(), SamplingParams(0.7, 3)):
        assert torch.float32 == law(logits, SamplingRows.of([params] * 2)).dtype


def test_rows_follow_their_parameters() -> None:
    """`take` repeats and reorders parameters; so may a subset without top-k or sampled rows."""
    rows = SamplingRows.of([SamplingParams(1.0, 2, 0.5, 0.1), SamplingParams(), SamplingParams(2.0)])
    logits = torch.randn(3, 6, dtype=torch.float64)
    index = torch.tensor([2, 1, 2])
    expected = [
        law_plain(logits[0].tolist(), SamplingParams(2.0)),
        law_plain(logits[1].tolist(), SamplingParams()),
    ]
    result = law(logits, rows.take(index))
    torch.testing.assert_close(torch.tensor(expected, dtype=torch.float64), result[:2])
    only_greedy = law(logits[1:2], rows.take(torch.tensor([1])))
    torch.testing.assert_close(torch.tensor(expected[1:], dtype=torch.float64), only_greedy)
    assert (0, 6) == law(logits[:0], rows.take(index[:0])).shape


@pytest.mark.parametrize("width", [7, 700, 70_000])
def test_best_tokens_are_those_of_a_stable_sort(width: int) -> None:
    """The k best come in order, the lower id first on ties, also across blocks and among impossible tokens."""
    torch.manual_seed(width)
    logits = torch.randint(0, 9, (4, width)).float()
    logits[1, 3:] = -torch.inf
    before = logits.clone()
    for k in (1, 3, 6):
        values, order = logits.sort(dim=-1, stable=True, descending=True)
        found, tokens = best_tokens(logits, k)
        assert order[:, :k].equal(tokens)
        assert values[:, :k].equal(found)
        for exclude in (0, 2, width - 1):
            kept = torch.tensor([token for token in range(width) if token != exclude])
            others = logits[:, kept].sort(dim=-1, stable=True, descending=True)
            found, tokens = best_tokens(logits, k, exclude)
            assert kept[others.indices[:, :k]].equal(tokens)
            assert others.values[:, :k].equal(found)
    assert before.equal(logits)
    for k, excluded in ((width + 1, None), (width, 2), (0, None)):
        with pytest.raises(ValueError, match=f"the best {k} of"):
            best_tokens(logits, k, excluded)


@pytest.mark.parametrize(
    ("params", "word"),
    [
        (SamplingParams(-0.1), "temperature"),
        (SamplingParams(math.nan), "temperature"),
        (SamplingParams(math.inf), "temperature"),
        (SamplingParams(1.0, -1), "top_k"),
        (SamplingParams(1.0, 0, 0.0), "top_p"),
        (SamplingParams(1.0, 0, 1.1), "top_p"),
        (SamplingParams(1.0, 0, 1.0, 1.5), "min_p"),
    ],
)
def test_bad_parameter_is_named(params: SamplingParams, word: str) -> None:
    """A parameter out of range is refused with its row and name."""
    with pytest.raises(ValueError, match=f"row 1: {word}"):
        SamplingRows.of([SamplingParams(), params])
