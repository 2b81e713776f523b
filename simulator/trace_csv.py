"""Traces as CSV: the Azure LLM inference traces (2023 and 2024) and BurstGPT."""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from pathlib import Path

from fsm_spec.errors import UserError
from fsm_spec.simulator.trace_file import SECOND_NS, Broken, Row, TraceColumns, in_order, tokens

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURST_GPT = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
BURST_GPT_SESSIONS = ("Timestamp", "Session ID", "Elapsed time", *BURST_GPT[1:])
EXAMPLES = {
    AZURE: "2023-11-16 18:17:03.9799600,4808,10",
    BURST_GPT: "5,ChatGPT,472,18,490,Conversation log",
    BURST_GPT_SESSIONS: "5,0,3.1,ChatGPT,472,18,490,Conversation log",
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read(path: Path, lines: list[str], most_tokens: int) -> TraceColumns:
    """Read a trace with one of the known first lines; raises UserError with the line."""
    reader = csv.reader(lines)
    header = tuple(word.strip() for word in next(reader, []))
    if header not in EXAMPLES:
        raise UserError(
            f"{path}:1: the first line is not {','.join(AZURE)} or {','.join(BURST_GPT)}; give an Azure or BurstGPT"
            " trace as CSV"
        )
    row_of = _azure if header == AZURE else _burst_gpt
    rows: list[Row] = []
    try:
        for fields in reader:
            if fields:
                row = row_of(_named(header, fields), most_tokens)
                in_order(rows, row.arrival_ns)
                rows.append(row)
    except (Broken, csv.Error) as error:
        raise UserError(
            f"{path}:{reader.line_num}: {error}; mend or remove that line, which should look like {EXAMPLES[header]}"
        ) from error
    if not rows:
        raise UserError(f"{path}: holds no request; give a file with lines such as {EXAMPLES[header]}")
    return TraceColumns.of(rows, 0)


def _named(header: tuple[str, ...], fields: list[str]) -> dict[str, str]:
    """Put names to the fields of a line."""
    if len(fields) != len(header):
        raise Broken(f"has {len(fields)} fields instead of {len(header)}")
    return dict(zip(header, fields, strict=True))


def _azure(fields: dict[str, str], most_tokens: int) -> Row:
    """Read a line of an Azure trace."""
    prompt, output = (tokens(name, fields[name], most_tokens) for name in AZURE[1:])
    return Row(_nanoseconds(fields["TIMESTAMP"].strip()), prompt, output)


def _burst_gpt(fields: dict[str, str], most_tokens: int) -> Row:
    """Read a line of BurstGPT; its failed requests have 0 response tokens and are left out of its `without_fails`."""
    prompt = tokens("Request tokens", fields["Request tokens"], most_tokens)
    output = tokens("Response tokens", fields["Response tokens"], most_tokens)
    try:
        arrival = round(float(fields["Timestamp"]) * SECOND_NS)
        session = int(fields.get("Session ID", -1) or -1)
    except (ValueError, OverflowError):
        raise Broken(f'Timestamp "{fields["Timestamp"][:40]}" or the session is no number') from None
    return Row(arrival, prompt, output, session)


def _nanoseconds(text: str) -> int:
    """Read a time as nanoseconds since 1970, with any number of digits behind the second, as integers."""
    whole, _, fraction = text.partition(".")
    digits = fraction.split("+", maxsplit=1)[0].removesuffix("Z")  # the 2024 traces append +00:00
    try:
        moment = datetime.fromisoformat(whole)
        rest = int(digits[:9].ljust(9, "0")) if digits else 0
    except ValueError:
        raise Broken(f'TIMESTAMP "{text[:40]}" is no time') from None
    span = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH
    return (span.days * 86_400 + span.seconds) * SECOND_NS + rest
