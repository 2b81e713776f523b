"""Mixtures of experts: each row against a plain reading of the definition, alone and in a batch."""

from __future__ import annotations

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fsm_spec.executor.models.config import Experts
from fsm_spec.executor.models.experts import mix_experts, run_all, run_by_expert, run_by_row

HIDDEN, FFN, COUNT = 12, 10, 6


def weights() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw a router and the networks of all experts."""
    generator = torch.Generator().manual_seed(2)
    shapes = ((COUNT, HIDDEN), (COUNT, 2 * FFN, HIDDEN), (COUNT, HIDDEN, FFN))
    router, gate_up, down = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return router, gate_up, down


def plain(row: list[float], per_token: int, *, normalised: bool) -> list[float]:
    """Mix the experts of one row as the definition says, with numbers of Python."""
    router, gate_up, down = (tensor.tolist() for tensor in weights())

    def times(matrix: list[list[float]], vector: list[float]) -> list[float]:
        return [sum(a * b for a, b in zip(line, vector, strict=True)) for line in matrix]

    scores = [math.exp(score) for score in times(router, row)]
    chances = [score / sum(scores) for score in scores]
    best = sorted(range(COUNT), key=lambda number: -chances[number])[:per_token]
    mass = sum(chances[number] for number in best) if normalised else 1.0
    mixed = [0.0] * HIDDEN
    for number in best:
        wide = times(gate_up[number], row)
        inner = [gate / (1 + math.exp(-gate)) * up for gate, up in zip(wide[:FFN], wide[FFN:], strict=True)]
        for place, value in enumerate(times(down[number], inner)):
            mixed[place] += chances[number] / mass * value
    return mixed


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("per_token", [1, 3, COUNT])
def test_rows_are_mixed_as_defined(per_token: int, *, normalised: bool) -> None:
    """A wrong choice, weight or network of any row would show; so would a row that leaks into another."""
    experts = Experts(COUNT, per_token, FFN, normalised=normalised, layers=frozenset({0}))
    rows = torch.randn(9, HIDDEN, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    got = mix_experts(rows, *weights(), experts)
    expected = [plain(row, per_token, normalised=normalised) for row in rows.tolist()]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))


def test_bfloat16_rows_are_weighed_and_added_in_float32() -> None:
    """The sum over experts must not lose what bfloat16 would round away."""
    experts = Experts(COUNT, 2, FFN, normalised=True, layers=frozenset({0}))
    rows = torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(4))
    small = [tensor.bfloat16() for tensor in weights()]
    got = mix_experts(rows.bfloat16(), small[0], small[1], small[2], experts)
    assert torch.float32 == got.dtype
    wide = mix_experts(
        rows.bfloat16().double(), small[0].double(), small[1].double(), small[2].double(), experts
    )
    torch.testing.assert_close(got.double(), wide, rtol=0.05, atol=0.5)


@pytest.mark.parametrize("count", [1, 7, 300])
def test_all_orders_of_work_give_the_same(count: int) -> None:
    """What a device runs, without counts on the host, is what a CPU runs."""
    _, gate_up, down = weights()
    generator = torch.Generator().manual_seed(6)
    rows = torch.randn(count, HIDDEN, generator=generator, dtype=torch.float64)
    shares, chosen = torch.rand(count, COUNT, generator=generator, dtype=torch.float64).topk(3)
    expected = run_by_expert(rows, gate_up, down, shares, chosen)
    for run in (run_by_row, run_all):
        torch.testing.assert_close(run(rows, gate_up, down, shares, chosen), expected)


@pytest.mark.parametrize("count", [2, 500])
def test_a_device_waits_for_no_count(count: int) -> None:
    """On a device the layer is traced without data, which anything that reads a value would break."""
    experts = Experts(COUNT, 2, FFN, normalised=True, layers=frozenset({0}))
    with FakeTensorMode():
        shapes = ((count, HIDDEN), (COUNT, HIDDEN), (COUNT, 2 * FFN, HIDDEN), (COUNT, HIDDEN, FFN))
        rows, router, gate_up, down = (
            torch.empty(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes
        )
        out = mix_experts(rows, router, gate_up, down, experts)
    assert ((count, HIDDEN), torch.float32, "cuda") == (out.shape, out.dtype, out.device.type)


def test_no_rows_are_no_work() -> None:
    """A launch may have no row in a layer's batch."""
    experts = Experts(COUNT, 2, FFN, normalised=True, layers=frozenset({0}))
    assert (0, HIDDEN) == mix_experts(torch.empty(0, HIDDEN, dtype=torch.float64), *weights(), experts).shape
