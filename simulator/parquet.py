"""Rows of requests as Parquet files, written while a run goes on: a file a run, a row a request, in their order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pyarrow import parquet

from fsm_spec.simulator.metrics import COUNTS, UNSET, RequestLog
from fsm_spec.writing import writing

TIMES = ("arrival_ns", "admitted_ns", "first_token_ns", "finish_ns")
COLUMNS = ("request", "prompt", *TIMES, *COUNTS)


class RowFile:
    """Write the rows of one run; a time that never came is null. `about` goes into the file's metadata."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        schema = pa.schema([(name, pa.int64()) for name in COLUMNS])
        self._schema = schema.with_metadata({"fsm-spec": json.dumps(about)})
        self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd")

    def write(self, log: RequestLog) -> None:
        """Write the rows of a log as a row group."""
        values = {"request": np.arange(log.first, log.first + len(log.prompt)), "prompt": log.prompt}
        values |= {name: getattr(log, name) for name in (*TIMES, *COUNTS)}
        columns = [_column(values[name], name in TIMES) for name in COLUMNS]
        self._writer.write_table(pa.table(columns, schema=self._schema))

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


def _column(values: NDArray[np.int64], times: bool) -> Any:  # noqa: ANN401, FBT001 - pyarrow's arrays have no type
    return pa.array(values, mask=values == UNSET if times else None)


def file_name(spec: str, arrivals: str, taken: set[str]) -> str:
    """Name the file of a run, as no other of `taken` is named."""
    words = "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in arrivals)
    name, number = f"{spec}-{words}", 1
    while f"{name}.parquet" in taken:
        number += 1
        name = f"{spec}-{words}-{number}"
    taken.add(f"{name}.parquet")
    return f"{name}.parquet"


@contextmanager
def row_file(path: Path, about: Mapping[str, Any]) -> Iterator[RowFile]:
    """Open the file of a run, its folder made where it is missing; raises UserError where it cannot be written."""
    with writing(path, "--parquet"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(RowFile(path, about)) as file:
            yield file
