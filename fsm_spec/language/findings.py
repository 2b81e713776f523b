"""Findings: what is wrong with a file, where, and the nearest right word; one line each."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fsm_spec.errors import SpecError

Path = tuple[str | int, ...]
# A file with more faults than this is not read to its end by anybody; the bound also keeps absurd files quick.
MAX_FINDINGS: Final = 100
# How alike two words are: enough to ask "did you mean", and enough to read on as if it had been written.
SUGGESTED: Final = 0.6
MENDED: Final = 0.75
_SHOWN_WORDS: Final = 12
_SHOWN_CHARACTERS: Final = 60
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Finding:
    """Hold one fault of a file: line and column count from 1, the path leads to the node inside the file."""

    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        """Print on one line: `file:line:column: path: message`."""
        place = f"{self.file}:{self.line}:{self.column}: "
        return place + " ".join((f"{self.path}: " if self.path else "").split() + self.message.split())


class SpecFindings(SpecError):
    """Report every fault of a file; usual causes: misspelt names, missing transitions, bad expressions."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(str(finding) for finding in self.findings))


def path_text(path: Path) -> str:
    """Print a path as `transitions[2].emit[0]`; keys that are no plain words stand quoted in brackets."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{quoted(part)}]"
    return text


def quoted(value: object) -> str:
    """Print a value of a file as a person would recognise it, on one line and not too long."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) > _SHOWN_CHARACTERS:
        text = text[:_SHOWN_CHARACTERS] + "..."
    return json.dumps(text, ensure_ascii=False) if isinstance(value, str) else text


def closest(word: str, candidates: Iterable[str], likeness: float = SUGGESTED) -> str | None:
    """Find the candidate that a person who wrote `word` most likely meant, or None; `likeness` is difflib's ratio."""
    lower = {candidate.casefold(): candidate for candidate in candidates}
    found = difflib.get_close_matches(word[:_SHOWN_CHARACTERS].casefold(), lower, n=1, cutoff=likeness)
    return lower[found[0]] if found else None


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Give the end of a sentence: `; did you mean "verify"?`, or `; known: a, b, c`, or nothing to offer."""
    words = list(dict.fromkeys(candidates))
    match = closest(word, words)
    if match is not None:
        return f'; did you mean "{match}"?'
    more = ", ..." if len(words) > _SHOWN_WORDS else ""
    return f"; known: {', '.join(words[:_SHOWN_WORDS])}{more}" if words else ""


def words(value: object) -> Iterator[str]:
    """Yield every word inside plain data, keys included."""
    if isinstance(value, str):
        yield from _WORD.findall(value)
    elif isinstance(value, list):
        for item in value:
            yield from words(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from words(key)
            yield from words(item)
