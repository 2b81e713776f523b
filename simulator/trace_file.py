"""Request traces on disk as they are published: which reader takes a file, and what all readers share.

CSV: Azure LLM inference traces (2023, 2024), BurstGPT, ServeGen windows. JSON lines: Mooncake, and our own form.
Files that end in `.gz` are read as they are. Every fault names the file and the line.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsm_spec.errors import UserError

FORMS = "an Azure, BurstGPT or ServeGen trace as CSV, or Mooncake's or our own JSON lines"
SECOND_NS = 1_000_000_000

Integers = NDArray[np.int64]


class Row(NamedTuple):
    """One request of a trace: time in ns, tokens, the session it belongs to (-1: none), and its block hashes."""

    arrival_ns: int
    prompt: int
    output: int
    session: int = -1
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class TraceColumns:
    """Hold a trace as columns, int64 [requests] each, times from its first request on.

    `blocks` holds the hashes of all requests' full and last blocks one after the other, `block_start` [requests + 1]
    where each request's begin; `block_tokens` is 0 where the trace has none.
    """

    arrival_ns: Integers
    prompt: Integers
    output: Integers
    session: Integers
    blocks: Integers
    block_start: Integers
    block_tokens: int = 0

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_ns)

    @classmethod
    def of(cls, rows: list[Row], block_tokens: int) -> TraceColumns:
        """Turn rows into columns."""
        numbers = np.asarray([row[:4] for row in rows], dtype=np.int64)
        blocks = np.asarray([block for row in rows for block in row.blocks], dtype=np.int64)
        start = np.concatenate([[0], np.cumsum([len(row.blocks) for row in rows])]).astype(np.int64)
        arrival, prompt, output, session = (column.copy() for column in numbers.T)
        return cls(arrival - arrival[0], prompt, output, session, blocks, start, block_tokens)

    def take(self, keep: Integers) -> TraceColumns:
        """Return some of the requests, in order; times count from the first of them."""
        start = [0]
        blocks = [self.blocks[self.block_start[i] : self.block_start[i + 1]] for i in keep.tolist()]
        start += np.cumsum([len(part) for part in blocks]).tolist()
        arrival = self.arrival_ns[keep]
        return TraceColumns(
            arrival - arrival[0],
            self.prompt[keep],
            self.output[keep],
            self.session[keep],
            np.concatenate(blocks) if blocks else self.blocks[:0],
            np.asarray(start, dtype=np.int64),
            self.block_tokens,
        )


class Broken(ValueError):
    """A line of a trace holds what no request can be; the message says what."""


def numbered(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of lines that are not empty."""
    for index, line in enumerate(lines, start=1):
        if line.strip():
            yield index, line


def tokens(name: str, word: object, most_tokens: int) -> int:
    """Read a number of tokens; raises Broken."""
    text = str(word).strip()
    if isinstance(word, float) and word.is_integer():
        text = str(int(word))
    if not text.isascii() or not text.isdigit() or isinstance(word, bool):
        raise Broken(f'{name} "{text[:40]}" is no number of tokens')
    count = int(text) if len(text) < 12 else most_tokens + 1
    if not 1 <= count <= most_tokens:
        raise Broken(f"{name} {text[:40]} lies outside 1 to {most_tokens}")
    return count


def in_order(rows: list[Row], arrival_ns: int) -> None:
    """Refuse a time before that of the request above; raises Broken."""
    if rows and arrival_ns < rows[-1].arrival_ns:
        raise Broken("its time lies before that of the line above")


def read_lines(path: Path) -> list[str]:
    """Read a file as text lines; raises UserError."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        return io.StringIO(data.decode("utf-8-sig"), newline="").read().splitlines()
    except (gzip.BadGzipFile, EOFError) as error:
        raise UserError(f"{path}: is no gzip file ({error}); give {FORMS}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give {FORMS}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text; give {FORMS}") from error


def read_trace(path: Path, most_tokens: int, *, requests: int | None = None, seed: int = 0) -> TraceColumns:
    """Return the requests of a trace; a trace of windows (ServeGen) draws them from `seed`, `requests` at most.

    Raises UserError for a file that cannot be read and, with its number, for the first broken line.
    """
    # The readers import the names above.
    from fsm_spec.simulator import servegen, trace_csv, trace_json  # noqa: PLC0415

    lines = read_lines(path)
    first = next((line for line in lines if line.strip()), "")
    if first.lstrip().startswith("{"):
        found = trace_json.read(path, lines, most_tokens)
    elif servegen.is_window(first):
        found = servegen.read(path, lines, most_tokens, requests=requests, seed=seed)
    else:
        found = trace_csv.read(path, lines, most_tokens)
    if not len(found):
        raise UserError(f"{path}: holds no request; give {FORMS}")
    return found
