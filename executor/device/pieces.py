"""Pieces of prefill chunks: how the host cuts them, and the numbers by which the device knows them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fsm_spec.launch import Chunk

# The rows of a piece, or a little more where blocks of rows see each other. Attention loses nothing by the cut: a tile
# of its kernel is no longer for most models, and what stands before a piece is read as a prefix, without a mask.
PIECE_ROWS = 32
# The pieces of one launch at most; what is more makes launches behind it. So their numbers, of each of which a graph is
# captured at the start, are few under every policy.
MOST_PIECES = 64
# What a piece costs beside its rows where shapes are free, in rows: each reads all that stands before it once more.
# Measured on one core (SmolLM2-135M, bfloat16): a prompt of 400 tokens took 2.0 s in 13 pieces and 1.3 s in one.
PIECE_COST = 32
# The numbers that say what a piece is: line, first position, tokens, whether its chunk is the last of the text, and of
# the last piece of a chunk the tokens of the whole chunk, else 0.
PIECE_NUMBERS = 5


def row_bucket(rows: int) -> int:
    """Give the least of 1, 2, 3, 4, 6, 8, 12, ... that is no less: of so many rows, at most a third are dead."""
    power = 1 << max(rows - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and rows <= power * 3 // 4 else power


def piece_sizes(most: int) -> list[int]:
    """List the numbers of pieces that a launch may have, up to `most`."""
    return sorted({row_bucket(pieces) for pieces in range(1, most + 1)})


def most_pieces(tokens: int, lines: int, text: int, rows: int) -> int:
    """Give the most pieces of a launch: chunks of `tokens` together, of `lines` requests with texts of `text`."""
    possible = min(tokens // rows + min(tokens, lines), lines * -(-text // rows))
    return row_bucket(max(1, min(possible, MOST_PIECES)))


def rows_for(lengths: Sequence[int], unit: int) -> int:
    """Choose the rows of pieces where shapes are free: few pieces, and few dead rows, of chunks of those lengths."""
    longest = max(lengths)
    # Whole eighths of a power of two, so that shapes stay few.
    step = max(PIECE_ROWS, (1 << longest.bit_length()) // 16)
    choices = {min(PIECE_ROWS << power, -(-longest // step) * step) for power in range(longest.bit_length())}

    def cost(rows: int) -> int:
        return sum(-(-length // rows) for length in lengths) * (rows + PIECE_COST)

    return -(-min(sorted(choices), key=cost) // unit) * unit


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
