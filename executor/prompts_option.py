"""The prompts of a run, given one by one or in a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fsm_spec.errors import UserError


def read_prompts(given: Sequence[str], file: Path | None) -> tuple[str, ...]:
    """Give the prompts of the command line, then those of a file; empty lines are skipped.

    A line is a prompt; in a file that ends in .jsonl it is a JSON string, or an object with the key `prompt`.
    Raises UserError that names file and line.
    """
    if file is None:
        return tuple(given)
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise UserError(f"{file} cannot be read: {reason}; name a file of prompts after --prompts") from None
    numbered = [(number, line.removesuffix("\r")) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise UserError(f"{file} holds no prompt; write one a line")
    if file.suffix == ".jsonl":
        return (*given, *(_read_json(line, f"{file}:{number}") for number, line in numbered))
    return (*given, *(line for _, line in numbered))


def _read_json(line: str, where: str) -> str:
    """Read a prompt out of a line of JSON."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(
            f'{where}: this is no JSON; write {{"prompt": "..."}}, or name the file .txt for plain lines'
        ) from None
    text = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(text, str) or not text:
        raise UserError(f'{where}: there is no prompt; write {{"prompt": "..."}}')
    return text
