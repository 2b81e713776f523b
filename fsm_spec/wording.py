"""Words of messages that depend on a number."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Say a count with its noun: `1 request`, `2,500 requests`; `plural` is for nouns that take no s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
