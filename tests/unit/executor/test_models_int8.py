"""8-bit weights: products against the rounded weights in float64, rows that do not depend on others, and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fsm_spec.errors import UserError
from fsm_spec.executor.adapter import random_adapter
from fsm_spec.executor.cache import PagedCache
from fsm_spec.executor.models import int8
from fsm_spec.executor.models.config import Experts
from fsm_spec.executor.models.int8 import Int8Transformer, Int8Weight, split_rows
from fsm_spec.executor.models.random import random_weights, tiny_config
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.executor.quantization_option import require_quantization

CONFIG = tiny_config()
WEIGHTS = random_weights(CONFIG, 0)
needs_products = pytest.mark.skipif(not int8.exact_products(), reason="this CPU has no exact 8-bit products")


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """Round each output of a weight to 255 steps, number by number."""
    lines = []
    for line in weight.double():
        step = line.abs().max() / 127
        lines.append(torch.stack([torch.round(each / step) * step for each in line]))
    return torch.stack(lines)


def rounded_weights() -> dict[str, torch.Tensor]:
    """Round what becomes 8-bit integers of the tiny model."""
    kept = {name: each for name, each in WEIGHTS.items() if each.dim() == 1 or "embed" in name}
    return kept | {name: rounded(each) for name, each in WEIGHTS.items() if name not in kept}


def causal(count: int, *, gated: bool = False) -> RowBatch:
    """Lay out the rows of one prompt."""
    numbers = torch.arange(count)
    return RowBatch(
        token_ids=numbers * 7 % CONFIG.vocab,
        positions=numbers,
        slots=numbers,
        row_start=[0, count],
        context_slots=torch.zeros(1, 0, dtype=torch.int64),
        context=[0],
        masks=[torch.ones(count, count, dtype=torch.bool).tril()],
        logits_rows=numbers,
        adapter_rows=numbers % 2 == 1 if gated else None,
    )


def run(model: Transformer, rows: RowBatch) -> torch.Tensor:
    """Give the logits of a batch on an empty cache."""
    return model.forward(rows, PagedCache(CONFIG, 4, 16, model.dtype))


@needs_products
def test_product() -> None:
    """Only the weights lose precision: rows keep 16 bits, and a bias is added as it is."""
    generator = torch.Generator().manual_seed(1)
    weight, rows = torch.randn(40, 64, generator=generator), torch.randn(9, 64, generator=generator)
    rows[:, 3] *= 50
    weight[5] = 0
    bias = torch.randn(40, generator=generator)
    expected = rows.double() @ torch.nan_to_num(rounded(weight)).T + bias
    # Half a step of a row is 1 / 64,516 of its largest magnitude; 64 of them add up at random.
    bound = 8 * 3 * float(rows.abs().max()) / 64_516 * float(weight.abs().max())
    torch.testing.assert_close(Int8Weight(weight).product(rows, bias).double(), expected, atol=bound, rtol=0)


@needs_products
def test_rows_stand_alone() -> None:
    """A row gives the same bits alone and in any crowd, none give none, and one of zeros gives zeros."""
    generator = torch.Generator().manual_seed(2)
    weight = Int8Weight(torch.randn(33, 64, generator=generator))
    rows = torch.randn(70, 64, generator=generator)
    rows[4] = 0
    crowd = weight.product(rows)
    for number in (0, 4, 69):
        assert torch.equal(crowd[number : number + 1], weight.product(rows[number : number + 1]))
    assert not crowd[4].any()
    assert weight.product(rows[:0]).shape == (0, 33)


def test_halves_add_up() -> None:
    """High and low halves of a row are within 127 and give its 16 bits back; strided rows are read as they are."""
    rows = torch.randn(64, 5, generator=torch.Generator().manual_seed(3)).T
    halves, scale = split_rows(rows)
    assert halves.abs().max() <= 127
    back = (halves[:5].double() * 254 + halves[5:].double()) * scale
    assert ((back - rows).abs() <= 0.5001 * scale).all()


@needs_products
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_are_not_finite(bad: float) -> None:
    """Integers hold no NaN, so that its scale has to carry it into the products."""
    rows = torch.ones(2, 64)
    rows[1, 2] = bad
    assert [True, False] == Int8Weight(torch.eye(64)).product(rows).isfinite().all(1).tolist()


@needs_products
def test_model_against_rounded_weights() -> None:
    """The model is that of the rounded weights, with and without an adapter, and keeps no second copy of its layers."""
    model, plain = (
        Int8Transformer(CONFIG, WEIGHTS, torch.float32),
        Transformer(CONFIG, rounded_weights(), torch.float64),
    )
    assert model.layers[0].qkv.is_meta
    for adapter in (False, True):
        if adapter:
            model.adapter, plain.adapter = (
                random_adapter(CONFIG, each.rows_dtype, seed=1) for each in (model, plain)
            )
        expected = run(plain, causal(12, gated=adapter))
        torch.testing.assert_close(run(model, causal(12, gated=adapter)), expected, atol=5e-3, rtol=0)
    unlike = run(Transformer(CONFIG, WEIGHTS, torch.float64), causal(12)) - run(model, causal(12))
    assert unlike.abs().max() > 0.02, "the weights were rounded, and the comparison above can tell"


def test_mixtures_are_refused() -> None:
    """Experts are chosen by row, which the packed product does not do."""
    config = replace(CONFIG, experts=Experts(4, 2, 8, normalised=True, layers=frozenset({0})))
    with pytest.raises(UserError, match="mixture of experts"):
        Int8Transformer(config, {}, torch.float32)


def test_other_processors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that cuts sums of products would give wrong numbers in silence."""
    monkeypatch.setattr(int8, "exact_products", lambda: False)
    with pytest.raises(UserError, match="AMX or VNNI"):
        Int8Transformer(CONFIG, {}, torch.float32)


def test_where_rounded_weights_run() -> None:
    """Resident rows and cut weights take the stored ones."""
    require_quantization("none", resident=True, processes=2)
    require_quantization("int8", resident=False, processes=1)
    with pytest.raises(UserError, match="--resident"):
        require_quantization("int8", resident=True, processes=1)
    with pytest.raises(UserError, match="--tensor-parallel"):
        require_quantization("int8", resident=False, processes=2)
