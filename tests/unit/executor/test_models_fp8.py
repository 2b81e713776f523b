"""8-bit floats: every layout of scales against a plain reading, and what is said of scales that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fsm_spec.errors import UserError
from fsm_spec.executor.models.fp8 import STORED, read_block, read_scaled
from fsm_spec.executor.models.load import SafetensorsFolder
from fsm_spec.executor.models.weights import WeightReader

ROWS, COLUMNS = 200, 150
GENERATOR = torch.Generator().manual_seed(0)
WEIGHT = (torch.randn(ROWS, COLUMNS, generator=GENERATOR) * 100).to(STORED)


def value(stored: int) -> float:
    """Read an 8-bit float as its definition says: 1 sign, 4 exponent bits of bias 7, 3 of fraction."""
    sign, exponent, fraction = (-1 if stored >> 7 else 1), stored >> 3 & 15, stored & 7
    return sign * (fraction / 8 * 2**-6 if exponent == 0 else (1 + fraction / 8) * 2 ** (exponent - 7))


def read(scale: torch.Tensor, block: tuple[int, int] | None = None, name: str = "w_scale") -> torch.Tensor:
    """Dequantise the weight under scales of that name."""
    return read_scaled("w", WEIGHT, {"w": WEIGHT, name: scale}, block).dequantise()


def plain(scales: dict[tuple[int, int], float], block: tuple[int, int]) -> torch.Tensor:
    """Multiply number by number."""
    bits = WEIGHT.view(torch.uint8).tolist()
    return torch.tensor(
        [
            [value(each) * scales[row // block[0], column // block[1]] for column, each in enumerate(line)]
            for row, line in enumerate(bits)
        ]
    )


@pytest.mark.parametrize("name", ["w_scale", "w_scale_inv"])
def test_one_scale_a_tensor(name: str) -> None:
    """A scalar, with or without a dimension, stands for the whole weight."""
    expected = plain({(0, 0): 0.125}, (ROWS, COLUMNS))
    for scale in (torch.tensor(0.125), torch.tensor([0.125]).bfloat16(), torch.tensor([[0.125]])):
        assert torch.equal(expected, read(scale, name=name))


def test_one_scale_a_row() -> None:
    """The layout of per-channel checkpoints, with and without a second dimension."""
    scale = torch.rand(ROWS, generator=GENERATOR)
    expected = plain({(row, 0): float(each) for row, each in enumerate(scale)}, (1, COLUMNS))
    torch.testing.assert_close(read(scale), expected)
    torch.testing.assert_close(read(scale[:, None]), expected)


@pytest.mark.parametrize("block", [(128, 128), (64, 128), (1, 128)])
def test_one_scale_a_block(block: tuple[int, int]) -> None:
    """Blocks that the weight does not fill end with it."""
    grid = (-(-ROWS // block[0]), -(-COLUMNS // block[1]))
    scale = torch.rand(grid, generator=GENERATOR)
    places = {(row, column): float(scale[row, column]) for row in range(grid[0]) for column in range(grid[1])}
    torch.testing.assert_close(read(scale, block, "w_scale_inv"), plain(places, block))


@pytest.mark.parametrize(
    ("scale", "block", "message"),
    [
        (torch.ones(3, 2), (128, 128), r'"w_scale" have shape \[3, 2\].* \[200, 150\] asks for \[2, 2\]'),
        (torch.ones(1), (128, 128), r"asks for \[2, 2\]"),
        (torch.ones(150), None, r"have shape \[150\].* asks for \[1\] or \[200, 1\]"),
        (torch.tensor(float("nan")), None, '"w_scale" are not all finite and positive'),
        (torch.tensor(-1.0), None, '"w_scale" are not all finite and positive'),
    ],
)
def test_scales_that_do_not_fit_are_named(
    scale: torch.Tensor, block: tuple[int, int] | None, message: str
) -> None:
    """Name, expected and found in one sentence."""
    with pytest.raises(UserError, match=message):
        read(scale, block)


def test_missing_scales_and_other_shapes_are_named() -> None:
    """A weight whose scales were lost would be read as numbers hundreds of times too large."""
    with pytest.raises(UserError, match='without scales: there is neither "w_scale_inv" nor "w_scale"'):
        read_scaled("w", WEIGHT, {"w": WEIGHT}, None)
    with pytest.raises(UserError, match=r"of shape \[200\]; only matrices can"):
        read_scaled("w", WEIGHT[:, 0], {"w_scale": torch.ones(1)}, None)


GROUP = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}


@pytest.mark.parametrize(
    ("config", "block"),
    [
        (None, None),
        ({"quant_method": "fp8", "activation_scheme": "static"}, None),
        ({"quant_method": "fp8", "weight_block_size": [128, 64]}, (128, 64)),
        ({"quant_method": "fbgemm_fp8"}, None),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, None),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": GROUP}}},
            (128, 128),
        ),
    ],
)
def test_published_configurations(config: dict[str, Any] | None, block: tuple[int, int] | None) -> None:
    """Each tool says in its own words which numbers share a scale."""
    assert block == read_block({"quantization_config": config}, "config.json")


FOUR_BITS = {"weights": GROUP | {"num_bits": 4, "type": "int"}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "gptq"}, 'quantisation "gptq" is not supported; known are 8-bit floats of fp8'),
        ({"bits": 4}, "quantisation null is not supported"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 'quantisation "NVFP4" is not supported'),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": FOUR_BITS}},
            "compressed-tensors of 4-bit int",
        ),
        ({"quant_method": "compressed-tensors"}, '"config_groups" says nothing of weights'),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": GROUP},
                    "b": {"weights": GROUP | {"block_structure": None}},
                },
            },
            "blocks of several sizes",
        ),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, r"two positive integers, not \[128, 0\]"),
        ([], "has to be an object"),
    ],
)
def test_other_quantisation_is_refused_by_name(config: object, message: str) -> None:
    """A method that is read wrongly gives noise, so it is refused."""
    with pytest.raises(UserError, match=message):
        read_block({"quantization_config": config}, "config.json")


def test_folder_gives_numbers_and_what_is_stored(tmp_path: Path) -> None:
    """Readers of weights see numbers; a kernel for 8-bit floats sees bytes and scales."""
    scale = torch.rand(2, 2, generator=GENERATOR)
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(
        {"w": WEIGHT, "w_scale_inv": scale, "plain": torch.ones(2).half()}, tmp_path / "model.safetensors"
    )
    with SafetensorsFolder(tmp_path) as folder:
        assert torch.equal(read(scale, (128, 128)), folder["w"])
        stored = folder.stored("w")
        assert STORED == stored.stored.dtype
        assert torch.equal(scale, stored.scales)
        assert torch.float16 == folder["plain"].dtype


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.int8])
def test_numbers_that_mean_nothing_alone_are_refused(dtype: torch.dtype) -> None:
    """Integers and other 8-bit floats would be taken at face value."""
    reader = WeightReader({"w": torch.ones(2, 2).to(dtype)}, torch.float32, 1e-6)
    with pytest.raises(
        UserError, match=rf'weight "w" is stored as {str(dtype)[6:]}; known are bfloat16, float16'
    ):
        reader.matrix("w", 2, 2)
