"""Adjusted logits in fixed shapes: every row gets what the reading gives it, whatever stands in padding."""

from __future__ import annotations

import numpy as np
import torch
from fake_device import device_only
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.adjust import Adjustment
from fsm_spec.kernels.adjust import adjust as reading
from fsm_spec.kernels.fixed.adjust import AdjustColumns, Texts, adjust

WIDTH, ROWS, BIAS = 7, 3, 4
tokens = st.lists(st.integers(0, WIDTH - 1), max_size=6)
numbers = st.floats(-4, 4, width=32)
wishes = st.builds(
    Adjustment,
    numbers,
    numbers,
    st.floats(0.5, 2),
    st.dictionaries(st.integers(0, WIDTH - 1), numbers, max_size=BIAS).map(lambda bias: tuple(bias.items())),
)
rows_ahead = st.lists(tokens, min_size=ROWS, max_size=ROWS)
Request = tuple[Adjustment, list[int], list[int], list[list[int]], set[int]]
requests = st.tuples(wishes, tokens, tokens, rows_ahead, st.sets(st.integers(0, WIDTH - 1), max_size=2))


def padded(lists: list[list[int]], width: int, filler: int) -> torch.Tensor:
    """Lay lists below each other."""
    return torch.tensor([each + [filler] * (width - len(each)) for each in lists], dtype=torch.int64)


def columns_of(wanted: list[Adjustment]) -> AdjustColumns:
    """Gather the adjustments of several requests."""
    presence, frequency, repetition = (
        torch.tensor([each[part] for each in wanted], dtype=torch.float64) for part in range(3)
    )
    ids = padded([[token for token, _ in each.bias] for each in wanted], BIAS, 0)
    values = [[value for _, value in each.bias] for each in wanted]
    bias = torch.tensor([each + [0.0] * (BIAS - len(each)) for each in values], dtype=torch.float64)
    return AdjustColumns(presence, frequency, repetition, ids, bias)


@settings(derandomize=True, max_examples=120, deadline=None)
@given(st.lists(requests, min_size=1, max_size=3), st.integers(0, 2**31), st.integers(-9, 9))
def test_equals_the_reading(given: list[Request], seed: int, poison: int) -> None:
    """Counts of another request, of tokens ahead that a row does not see, or of padding would show."""
    wanted, prompts, outputs, ahead, stops = map(list, zip(*given, strict=True))
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(given), ROWS, WIDTH, generator=generator, dtype=torch.float32)
    banned = torch.rand(len(given), ROWS, generator=generator) < 0.5
    texts = Texts(
        padded([prompt + output for prompt, output in zip(prompts, outputs, strict=True)], 14, poison),
        torch.tensor([len(prompt) for prompt in prompts]),
        torch.tensor([len(prompt) + len(output) for prompt, output in zip(prompts, outputs, strict=True)]),
    )
    dense = torch.stack([padded(each, 6, -1) for each in ahead])
    stop_ids = padded([sorted(each) for each in stops], 3, -3)
    found = adjust(logits, columns_of(wanted), texts, dense, stop_ids, banned)
    for n, (wish, prompt, output, seen, stop) in enumerate(given):
        for row in range(ROWS):
            expected = logits[n, row].clone()
            allowed = torch.ones(WIDTH, dtype=torch.bool)
            allowed[sorted(stop)] = not banned[n, row]
            full = np.array(output + seen[row], np.int64)
            reading(expected, wish, np.array(prompt, np.int64), full, allowed)
            torch.testing.assert_close(found[n, row], expected, rtol=1e-6, atol=1e-6)


def test_neutral_columns_change_no_bit() -> None:
    """A request without wishes keeps its tokens beside one that has some."""
    logits = torch.randn(1, 2, WIDTH, generator=torch.Generator().manual_seed(0))
    texts = Texts(torch.tensor([[1, 2, 2]]), torch.tensor([1]), torch.tensor([3]))
    ahead, stops = torch.tensor([[[3], [-1]]]), torch.tensor([[2]])
    none = torch.zeros(1, 2, dtype=torch.bool)
    assert torch.equal(logits, adjust(logits, columns_of([Adjustment()]), texts, ahead, stops, none))


def test_nothing_waits_for_the_host() -> None:
    """On fake CUDA tensors, which hold no values to wait for."""
    with device_only():
        real, whole = torch.empty(2, dtype=torch.float64), torch.empty(2, dtype=torch.int64)
        ids = torch.empty(2, 3, dtype=torch.int64)
        given = AdjustColumns(real, real, real, ids, ids.double())
        banned = torch.empty(2, 4, dtype=torch.bool)
        found = adjust(
            torch.empty(2, 4, 9), given, Texts(ids, whole, whole), torch.empty(2, 4, 5).long(), ids, banned
        )
        assert (2, 4, 9) == found.shape
