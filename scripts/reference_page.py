"""The form of a reference page: its head, and tables in Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parent.parent
NOTE: Final = "<!-- Written by scripts/reference.py; change what it reads, not this page. -->"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Lay out a Markdown table; bars inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n" for cells in lines)


def page(title: str, *parts: str) -> str:
    """Join the parts of a page that is written whole."""
    return "\n".join([f"# {title}\n", f"{NOTE}\n", *parts])
