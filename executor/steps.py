"""Rounds as a person reads them: state, rows, accepted drafts, KV before and after, transition, line of the spec.

Made from the records of a trace and the table alone, so that what is shown is what the trace holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fsm_spec import life_cycle
from fsm_spec.language.expression import Const, Expr, evaluate
from fsm_spec.table import STOP, Row, Table
from fsm_spec.tiers import Tiers

# What was emitted is the one cell without a longest form, so it comes last.
HEADER = ("request", "event", "rows", "results", "KV", "transition", "line", "emitted")
DIGITS = 5  # of the numbers that a column has room for: KV slots of a context of 100,000 tokens


class StepView:
    """Turn trace records into lines of a table; `show` turns the ids of emitted tokens into text."""

    def __init__(self, tiers: Tiers, show: Callable[[int, int, int], str]) -> None:
        self.tiers = tiers
        self.table = tiers.largest
        self.show = show
        self._columns: dict[int, dict[str, int]] = {}
        self._widths = _widths(self.table)

    def header(self) -> str:
        """Give the table's first line."""
        return self._line(HEADER)

    def line(self, record: Mapping[str, Any]) -> str | None:
        """Describe one record; None for one that is no step."""
        if "arrive" in record:
            self._columns[record["arrive"]] = self.table.new_request(record["prompt"], record["limit"])
        if "plan" in record:
            self.table = self.tiers.of_size(record["plan"].get("tier"))
        if "event" not in record:
            return None
        request, after = record["request"], record["columns"]
        before = self._columns[request]
        self._columns[request] = after
        row = self.table.rows[record["transition"] // 2]
        emitted = after["emitted"] - before["emitted"]
        results = {name: value for name, value in record["args"].items() if name != STOP}
        return self._line(
            (
                str(request),
                record["event"],
                self._rows(row, before, record["args"]),
                " ".join(f"{name}={value}" for name, value in results.items()),
                f"{before['kv']} -> {after['kv']}",
                f"{self.table.states[before['state']].name} -> {self.table.states[after['state']].name}",
                str(row.line or ""),
                f"{emitted} {self.show(request, before['emitted'], after['emitted'])}".strip(),
            )
        )

    def _rows(self, row: Row, before: Mapping[str, int], args: Mapping[str, int]) -> str:
        """Count the rows that ran, by segment."""
        state = self.table.state(row.sources[0])
        if row.event == life_cycle.CHUNK:
            return f"text {args['n']}"
        if row.event == life_cycle.FIRST:
            assert self.table.fill is not None
            return f"text {evaluate(self.table.fill, before) - before['kv']}"
        if row.built_in:
            return ""
        assert state.forward is not None
        plan = self.table.forwards[state.forward]
        return _rows_text((segment.name, evaluate(segment.count, before)) for segment in plan.segments)

    def _line(self, cells: Sequence[str]) -> str:
        """Lay cells out in columns; a longer one than any that was foreseen pushes the rest to the right."""
        return "  ".join(cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True)).rstrip()


def _rows_text(counts: Iterable[tuple[str, int]]) -> str:
    """Count rows by segment; the segments of several groups, `head[0]`, `head[1]`, count as one."""
    by_name: dict[str, int] = {}
    for name, count in counts:
        base = name.partition("[")[0]
        by_name[base] = by_name.get(base, 0) + count
    return " + ".join(f"{name} {count}" for name, count in by_name.items() if count) or "no model"


def _widths(table: Table) -> list[int]:
    """Give the widest cell of each column, so that the lines of any run stand below each other."""
    number = "9" * DIGITS
    longest = {
        "event": list(table.events),
        "rows": [
            f"text {number}",
            *(
                _rows_text((part.name, part.max_count) for part in plan.segments)
                for plan in table.forwards.values()
            ),
        ],
        "results": [
            " ".join(f"{arg.name}={_largest(arg.high)}" for arg in event.args if arg.name != STOP)
            for event in table.events.values()
        ],
        "KV": [f"{number} -> {number}"],
        "transition": [f"{source} -> {row.target}" for row in table.rows for source in row.sources],
    }
    return [max(map(len, (name, *longest.get(name, ())))) for name in HEADER]


def _largest(bound: Expr) -> int:
    """Give the largest value of an argument where it is known, else one of three digits."""
    return bound.value if isinstance(bound, Const) else 999
