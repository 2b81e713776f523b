"""The look of tables on a terminal: no boxes, numbers to the right and never cut, titles and captions to the left."""

from __future__ import annotations

from collections.abc import Mapping

from rich.box import HORIZONTALS
from rich.console import Console
from rich.markup import escape
from rich.table import Table

# Letters of the widest numbers of a column, such as `12,345` tok/s or `12.3 ms`; titles are no wider.
NUMBER_WIDTH = {
    "users": 5,
    "TTFT": 7,
    "TPOT": 7,
    "accepted": 8,
    "forward": 7,
    "KV": 5,
    "bound": 7,
    "a million": 9,
}
WIDEST = 400  # that any table needs
NAME_WIDTH = 8  # at least, of names that are folded


def plain_table(title: str = "", caption: str = "") -> Table:
    """Return an empty table; nine columns of numbers fit a terminal of 80 characters."""
    return Table(
        title=escape(title) or None,
        caption=caption or None,
        title_justify="left",
        caption_justify="left",
        box=HORIZONTALS,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def flowed(settings: Mapping[str, str], width: int) -> str:
    """Write settings as `key value` after each other, in lines that never break within one that fits a line."""
    lines = [""]
    for part in (f"{key} {value}" for key, value in settings.items()):
        if lines[-1] and len(lines[-1]) + 2 + len(part) > width:
            lines.append("")
        lines[-1] += f"  {part}" if lines[-1] else part
    return "\n".join(lines)


def add_column(table: Table, title: str, *, named: bool = False) -> None:
    """Add a column of numbers or of names; neither is ever cut or broken."""
    if named:
        table.add_column(title, no_wrap=True)
    else:
        table.add_column(title, justify="right", no_wrap=True, min_width=NUMBER_WIDTH.get(title, 6))


def print_table(console: Console, table: Table) -> None:
    """Print a table whole: on a narrow terminal closer together, on a very narrow one with lines that are too long."""
    least = _least(console, table)
    if least > console.width:
        table.padding, table.show_edge = 0, False
        least = _least(console, table)
    before = console.width
    console.width = max(before, least)
    try:
        console.print(table)
    finally:
        console.width = before


def _least(console: Console, table: Table) -> int:
    """Give the letters that the lines of a table need at least."""
    wide = console.options.update(width=WIDEST)
    least = console.measure(table, options=wide).minimum
    # Names may be folded down to the least width of their column; rich measures their longest words.
    for column in table.columns:
        if column.overflow == "fold":
            parts = (column.header, *column.cells)
            longest = max(console.measure(each, options=wide).minimum for each in parts)
            column.min_width = column.min_width or min(longest, NAME_WIDTH)
            least -= max(0, longest - column.min_width)
    return least


def small_table(name: str, *columns: str) -> Table:
    """Return an empty table of one column of names, and columns of numbers."""
    table = plain_table()
    add_column(table, name, named=True)
    for column in columns:
        add_column(table, column)
    return table
