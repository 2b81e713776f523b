"""Traces as JSON lines: Mooncake's (FAST '25) with block hashes, and our own form."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fsm_spec.errors import UserError
from fsm_spec.simulator.trace_file import SECOND_NS, Broken, Row, TraceColumns, in_order, numbered, tokens

MOONCAKE_BLOCK = 512  # tokens of a hashed block in the Mooncake traces
MOONCAKE = '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}'
OURS = '{"arrival_s": 0.5, "input": 1024, "output": 128}'
OUR_KEYS = frozenset({"arrival_s", "input", "output", "session"})
MOONCAKE_KEYS = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})


def read(path: Path, lines: list[str], most_tokens: int) -> TraceColumns:
    """Read a trace of JSON lines; raises UserError with the line."""
    rows: list[Row] = []
    mooncake = False
    index = 0
    try:
        for index, record in _records(lines):  # noqa: B007 - named in the error
            mooncake = _same_form("timestamp" in record, mooncake, first=not rows)
            row = (_mooncake if mooncake else _ours)(record, most_tokens)
            in_order(rows, row.arrival_ns)
            rows.append(row)
    except (Broken, json.JSONDecodeError) as error:
        at = index if isinstance(error, Broken) else index + 1
        what = error if isinstance(error, Broken) else "is no JSON"
        example = MOONCAKE if mooncake else OURS
        raise UserError(f"{path}:{at}: {what}; mend that line, which should look like {example}") from error
    return TraceColumns.of(rows, MOONCAKE_BLOCK if mooncake else 0)


def _same_form(here: bool, before: bool, *, first: bool) -> bool:  # noqa: FBT001 - both are Mooncake's or ours
    """Return the form of a line; raises Broken where it is not that of the lines above."""
    if here != before and not first:
        raise Broken("is of another form than the lines above")
    return here


def _records(lines: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects with their line numbers."""
    for index, line in numbered(iter(lines)):
        record = json.loads(line)
        if not isinstance(record, dict):
            raise Broken("is no JSON object")
        yield index, record


def _seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise Broken(f'{name} "{value!s:.40}" is no time')
    return float(value)


def _mooncake(record: dict[str, Any], most_tokens: int) -> Row:
    """Read a line of Mooncake: times in ms, hashes of 512-token blocks, the last one perhaps not full."""
    unknown, missing = record.keys() - MOONCAKE_KEYS, MOONCAKE_KEYS - record.keys()
    if unknown or missing:
        raise Broken(f"has the keys {', '.join(sorted(record))}")
    prompt = tokens("input_length", record["input_length"], most_tokens)
    output = tokens("output_length", record["output_length"], most_tokens)
    blocks = record["hash_ids"]
    if not isinstance(blocks, list) or not all(type(block) is int and block >= 0 for block in blocks):
        raise Broken("hash_ids is no list of numbers")
    needed = -(-prompt // MOONCAKE_BLOCK)
    if len(blocks) != needed:
        raise Broken(
            f"has {len(blocks)} hash_ids, but {prompt} tokens are {needed} blocks of {MOONCAKE_BLOCK}"
        )
    arrival = round(_seconds("timestamp", record["timestamp"]) * 1_000_000)
    return Row(arrival, prompt, output, -1, tuple(blocks))


def _ours(record: dict[str, Any], most_tokens: int) -> Row:
    """Read a line of our own form: seconds, tokens and, where it has one, a session."""
    missing = OUR_KEYS - {"session"} - record.keys()
    if missing or record.keys() - OUR_KEYS:
        raise Broken(f"has the keys {', '.join(sorted(record)) or 'none'}")
    session = record.get("session", -1)
    if type(session) is not int or session < -1:
        raise Broken(f'session "{session!s:.40}" is no number')
    prompt, output = (tokens(name, record[name], most_tokens) for name in ("input", "output"))
    return Row(round(_seconds("arrival_s", record["arrival_s"]) * SECOND_NS), prompt, output, session)
