"""GGUF's blocks: the formats of most published files, number by number, and types that are no weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from fsm_spec.errors import UserError
from fsm_spec.executor.models.gguf_file import GgufFile


def half(low: int, high: int) -> float:
    """Read two bytes as float16."""
    return float(np.array([low, high], np.uint8).view(np.float16)[0])


def q4_k(block: list[int]) -> list[float]:
    """Read a Q4_K block of 256 numbers as llama.cpp lays it out: two factors, 8 six-bit scales and minima, nibbles."""
    factor, least = half(*block[:2]), half(*block[2:4])
    packed, nibbles = block[4:16], block[16:]
    numbers = []
    for part in range(8):
        if part < 4:
            scale, minimum = packed[part] & 63, packed[part + 4] & 63
        else:
            scale = packed[part + 4] & 15 | packed[part - 4] >> 6 << 4
            minimum = packed[part + 4] >> 4 | packed[part] >> 6 << 4
        for place in range(32):
            byte = nibbles[part // 2 * 32 + place]
            nibble = byte >> 4 if part % 2 else byte & 15
            numbers.append(factor * scale * nibble - least * minimum)
    return numbers


def q6_k(block: list[int]) -> list[float]:
    """Read a Q6_K block of 256 numbers: low nibbles, high pairs of bits, 16 signed scales, one factor."""
    low, high, factor = block[:128], block[128:192], half(*block[208:])
    scales = [byte - 256 if byte > 127 else byte for byte in block[192:208]]
    numbers = []
    for place in range(256):
        part, row, column = place // 128, place % 128 // 32, place % 32
        byte = low[part * 64 + row % 2 * 32 + column]
        nibble = byte >> 4 if row > 1 else byte & 15
        bits = high[part * 32 + column] >> 2 * row & 3
        numbers.append(factor * scales[place // 16] * ((nibble | bits << 4) - 32))
    return numbers


@pytest.mark.parametrize(
    ("kind", "size", "factors", "plain"),
    [
        (gguf.GGMLQuantizationType.Q4_K, 144, slice(0, 4), q4_k),
        (gguf.GGMLQuantizationType.Q6_K, 210, slice(208, 210), q6_k),
    ],
)
def test_k_quants_are_read_number_by_number(
    tmp_path: Path,
    kind: gguf.GGMLQuantizationType,
    size: int,
    factors: slice,
    plain: Callable[[list[int]], list[float]],
) -> None:
    """The formats of most published files, against a plain reading of their layout."""
    blocks = np.random.default_rng(0).integers(0, 256, (3, 2, size), np.uint8)
    # Any bytes are sound blocks, but for the float16 factors, which must be finite.
    blocks[..., factors] = np.array([0.5, 0.25][: len(range(size)[factors]) // 2], np.float16).view(np.uint8)
    writer = gguf.GGUFWriter(str(tmp_path / "k.gguf"), "qwen3")
    writer.add_tensor("blk.0.ffn_up.weight", blocks.reshape(3, -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    got = next(_with_heads(tmp_path / "k.gguf").weights())[1]
    expected = [[number for block in row for number in plain(block)] for row in blocks.tolist()]
    torch.testing.assert_close(got, torch.tensor(expected))


def test_a_type_that_is_not_decoded_is_named(tmp_path: Path) -> None:
    """Integers are no weights."""
    writer = gguf.GGUFWriter(str(tmp_path / "i.gguf"), "qwen3")
    writer.add_tensor("blk.0.ffn_up.weight", np.ones((2, 2), np.int8))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match=r'"blk\.0\.ffn_up\.weight" of type I8 .* another quantisation of it'):
        next(_with_heads(tmp_path / "i.gguf").weights())


def _with_heads(path: Path) -> GgufFile:
    """Open a file that says nothing of its heads."""
    file = GgufFile(path)
    file.metadata["qwen3.attention.head_count"] = 1
    return file
