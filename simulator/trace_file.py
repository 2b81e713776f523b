"""Request traces on disk: the CSV of the public Azure LLM inference traces (2023 and 2024)."""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from fsm_spec.errors import UserError

HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
EXAMPLE = "2023-11-16 18:17:03.9799600,4808,10"
SECOND_NS = 1_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Integers = NDArray[np.int64]


def read_trace(path: Path, most_tokens: int) -> tuple[Integers, Integers, Integers]:
    """Return arrival (ns from the first), prompt and output tokens, each int64 [requests].

    Raises UserError for a file that cannot be read and, with its number, for the first broken line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = _rows(path, file, most_tokens)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give an Azure trace as CSV") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text; give an Azure trace as CSV") from error
    if not rows:
        raise UserError(f"{path}: holds no request; give a file with lines such as {EXAMPLE}")
    table = np.asarray(rows, dtype=np.int64)
    return table[:, 0] - table[0, 0], table[:, 1].copy(), table[:, 2].copy()


def _rows(path: Path, file: TextIO, most_tokens: int) -> list[tuple[int, int, int]]:
    """Read all lines, naming the first broken one."""
    lines = csv.reader(file)
    rows: list[tuple[int, int, int]] = []
    try:
        header: list[str] = next(lines, [])
        if tuple(word.strip() for word in header) != HEADER:
            raise UserError(f"{path}:1: the first line is not {','.join(HEADER)}; give an Azure trace as CSV")
        for fields in lines:
            if fields:
                rows.append(_row(fields, most_tokens, rows[-1][0] if rows else None))
    except (ValueError, csv.Error) as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        raise UserError(
            f"{path}:{lines.line_num}: {error}; mend or remove that line, which should look like {EXAMPLE}"
        ) from error
    return rows


def _row(fields: list[str], most_tokens: int, before_ns: int | None) -> tuple[int, int, int]:
    """Read one line, or raise ValueError that says what is wrong."""
    if len(fields) != len(HEADER):
        raise ValueError(f"has {len(fields)} fields instead of {len(HEADER)}")
    tokens = []
    for name, word in zip(HEADER[1:], fields[1:], strict=True):
        if not word.strip().isascii() or not word.strip().isdigit():
            raise ValueError(f'{name} "{word[:40]}" is no number of tokens')
        count = int(word) if len(word) < 12 else most_tokens + 1
        if not 1 <= count <= most_tokens:
            raise ValueError(f"{name} {word[:40]} lies outside 1 to {most_tokens}")
        tokens.append(count)
    arrival_ns = _nanoseconds(fields[0].strip())
    if before_ns is not None and arrival_ns < before_ns:
        raise ValueError("its time lies before that of the line above")
    return arrival_ns, tokens[0], tokens[1]


def _nanoseconds(text: str) -> int:
    """Read a time as nanoseconds since 1970, with any number of digits behind the second, as integers."""
    whole, _, fraction = text.partition(".")
    digits = fraction.split("+", maxsplit=1)[0].removesuffix("Z")  # the 2024 traces append +00:00
    try:
        moment = datetime.fromisoformat(whole)
        rest = int(digits[:9].ljust(9, "0")) if digits else 0
    except ValueError:
        raise ValueError(f'TIMESTAMP "{text[:40]}" is no time') from None
    span = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH
    return (span.days * 86_400 + span.seconds) * SECOND_NS + rest
