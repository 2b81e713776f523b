"""Pieces of prefill chunks: how the host cuts them, and the numbers by which the device knows them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fsm_spec.launch import Chunk

# The rows of a piece, or a little more where blocks of rows see each other. Attention loses nothing by the cut: a tile
# of its kernel is no longer for most models, and what stands before a piece is read as a prefix, without a mask.
PIECE_ROWS = 32
# The numbers that say what a piece is: line, first position, tokens, whether its chunk is the last of the text, and of
# the last piece of a chunk the tokens of the whole chunk, else 0.
PIECE_NUMBERS = 5


def row_bucket(rows: int) -> int:
    """Give the least of 1, 2, 3, 4, 6, 8, 12, ... that is no less: of so many rows, at most a third are dead."""
    power = 1 << max(rows - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and rows <= power * 3 // 4 else power


def pieces_of(chunk: Chunk, line: int, rows: int, unit: int) -> list[tuple[int, ...]]:
    """Cut a chunk of a line into pieces of so many rows -> the numbers of each.

    `rows` are whole blocks of `unit`; the rows of the first piece begin where the block begins that the chunk does.
    """
    pieces: list[tuple[int, ...]] = []
    begin, stop = chunk.start, chunk.start + chunk.tokens
    while begin < stop:
        end = min(begin - begin % unit + rows, stop)
        done = end == stop
        pieces.append((line, begin, end - begin, int(done and chunk.last), chunk.tokens if done else 0))
        begin = end
    return pieces


def numbers_of(pieces: Sequence[tuple[int, ...]], nobody: int) -> NDArray[np.int64]:
    """Lay out pieces as `Chunks` reads them, filled up to a size of `row_bucket` with some of nobody's line."""
    numbers = np.zeros((row_bucket(len(pieces)), PIECE_NUMBERS), np.int64)
    numbers[:, 0] = nobody
    numbers[: len(pieces)] = pieces
    return numbers
