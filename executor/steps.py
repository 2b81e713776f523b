"""Rounds as a person reads them: state, rows, accepted drafts, KV before and after, transition, line of the spec.

Made from the records of a trace and the table alone, so that what is shown is what the trace holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fsm_spec import life_cycle
from fsm_spec.language.expression import evaluate
from fsm_spec.table import STOP, Row
from fsm_spec.tiers import Tiers

HEADER = ("request", "event", "rows", "results", "KV", "emitted", "transition", "line")
_WIDTHS = (7, 10, 18, 16, 12, 28, 24, 4)


class StepView:
    """Turn trace records into lines of a table; `show` turns the ids of emitted tokens into text."""

    def __init__(self, tiers: Tiers, show: Callable[[int, int, int], str]) -> None:
        self.tiers = tiers
        self.table = tiers.largest
        self.show = show
        self._columns: dict[int, dict[str, int]] = {}

    def header(self) -> str:
        """Give the table's first line."""
        return _line(HEADER)

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
        return _line(
            (
                str(request),
                record["event"],
                self._rows(row, before, record["args"]),
                " ".join(f"{name}={value}" for name, value in results.items()),
                f"{before['kv']} -> {after['kv']}",
                f"{emitted} {self.show(request, before['emitted'], after['emitted'])}".strip(),
                f"{self.table.states[before['state']].name} -> {self.table.states[after['state']].name}",
                str(row.line or ""),
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
        counts = [(segment.name, evaluate(segment.count, before)) for segment in plan.segments]
        return " + ".join(f"{name} {count}" for name, count in counts if count) or "no model"


def _line(cells: Sequence[str]) -> str:
    """Lay cells out in columns; a long one pushes the rest to the right rather than being cut."""
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()
