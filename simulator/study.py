"""Studies: many scenarios from a base and lists of values, run in parallel, with results as tables. For notebooks too.

from fsm_spec.simulator.study import Study

study = Study(
    {"model": "qwen3-8b", "hardware": "h200", "input": "1024", "output": "256"},
    over={"spec": ["ar", "uno_linear"], "arrivals": ["closed:1", "closed:8", "closed:64"]},
    accept={"uno_linear": "geometric:0.7"},
)
study.run().pandas()                                        # or .table() for pyarrow
study.front(("throughput_tok_s_gpu", 1), ("tpot_ms_p50", -1))
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.load import load
from fsm_spec.simulator.outcome_options import needs
from fsm_spec.simulator.point import Result
from fsm_spec.simulator.scenario import Scenario
from fsm_spec.simulator.search import front
from fsm_spec.simulator.slo import parse_slos
from fsm_spec.simulator.workers import Workers
from fsm_spec.writing import writing

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

PARAM = "set."  # prefix of a parameter of a spec among the names of `over`
Value = TypeVar("Value")


class Study:
    """Hold scenarios that differ in a few fields, and their results once run.

    `base` holds fields of `Scenario`; `over` lists of values by field, or by `set.NAME` for a parameter of a spec.
    `accept` and the fields in `named`, such as `drafter`, are values by spec name.
    """

    def __init__(
        self,
        base: Mapping[str, Any],
        *,
        over: Mapping[str, Sequence[Any]] | None = None,
        accept: Mapping[str, str] | None = None,
        named: Mapping[str, Mapping[str, str]] | None = None,
        slos: Sequence[str] = (),
        workers: Workers | None = None,
    ) -> None:
        """Lay out the points; raises UserError for unknown fields and values of the wrong type."""
        self.over = dict(over or {})
        self.slos = parse_slos(slos)
        self.workers = workers or Workers()
        self.points = list(_points(base, self.over, {"accept": accept or {}, **(named or {})}))
        self.rows: list[Result] = []

    def run(self) -> Study:
        """Run what has not been run; a point that fails has an `error` and loses no other."""
        results = self.workers.run([scenario for _, scenario in self.points], self.slos)
        self.rows = [{**values, **result} for (values, _), result in zip(self.points, results, strict=True)]
        return self

    @property
    def failed(self) -> list[Result]:
        """Return the rows of points that failed."""
        return [row for row in self.rows if row["error"]]

    def front(self, *better: tuple[str, int]) -> list[Result]:
        """Return the rows that none beats, for (column, 1 where more is better, else -1)."""
        return front(self.rows, better)

    def best(self, column: str, *, most: bool = True) -> Result:
        """Return the row with the largest (or smallest) value of a column; raises UserError if every point failed."""
        rows = [row for row in self.rows if not row["error"]]
        if not rows:
            raise UserError(
                f"no point of the study succeeded: {self.failed[0]['error'] if self.rows else 'run it'}"
            )
        return max(rows, key=lambda row: row[column] if most else -row[column])

    def table(self) -> pa.Table:
        """Return the results as a pyarrow table, one row a point."""
        import pyarrow as pa  # noqa: PLC0415 - only tables need it

        return pa.Table.from_pylist(
            [{name: _plain(row.get(name)) for name in self.columns} for row in self.rows]
        )

    def pandas(self) -> Any:  # noqa: ANN401 - pandas is not a dependency
        """Return the results as a pandas DataFrame; pandas must be installed."""
        return self.table().to_pandas()

    @property
    def columns(self) -> list[str]:
        """Return the names of all results, those that vary first."""
        names: dict[str, None] = dict.fromkeys(name for row in self.rows for name in row)
        return list(names)

    def write_csv(self, path: Path) -> None:
        """Write the results as CSV; raises UserError where that cannot be."""
        with writing(path), path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows({name: _plain(value) for name, value in row.items()} for row in self.rows)

    def write_parquet(self, path: Path) -> None:
        """Write the results as Parquet; raises UserError where that cannot be."""
        from pyarrow import parquet  # noqa: PLC0415 - as above

        with writing(path):
            parquet.write_table(self.table(), path)

    def _repr_html_(self) -> str:
        """Show a table in a notebook."""
        names = self.columns
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(str(_plain(row.get(name))))}</td>" for name in names) + "</tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _plain(value: Any) -> Any:  # noqa: ANN401 - a cell
    """Turn lists of a cell into text."""
    return "; ".join(map(str, value)) if isinstance(value, list) else value


def _points(
    base: Mapping[str, Any], over: Mapping[str, Sequence[Any]], named: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[dict[str, Any], Scenario]]:
    """Yield the values that vary, and the scenario, of every point, the first name of `over` outermost."""
    seen: set[str] = set()
    for values in itertools.product(*over.values()):
        varied = dict(zip(over, values, strict=True))
        fields = {**base, **{name: value for name, value in varied.items() if not name.startswith(PARAM)}}
        spec = str(fields.get("spec", ""))
        known = load(spec).spec if spec else None
        params = {
            **dict(fields.get("params", {})),
            **{name.removeprefix(PARAM): value for name, value in varied.items() if name.startswith(PARAM)},
        }
        fields["params"] = {name: value for name, value in params.items() if known and name in known.params}
        for name in over:
            if name.startswith(PARAM) and known is not None and name.removeprefix(PARAM) not in known.params:
                varied[name] = None
        if (point := repr((varied, fields["params"]))) in seen:
            continue  # a parameter that this spec does not have
        seen.add(point)
        for option, by_spec in named.items():
            if spec in by_spec:
                fields[option] = by_spec[spec]
        if known is not None:
            fields = _affecting(fields, needs(compile_table(known, fields["params"])))
            varied["spec"] = known.spec  # rows are labelled by the spec's name, whatever its file is called
        try:
            yield varied, Scenario(**fields)
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(
                f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}; mend that field of the study"
            ) from error


def _affecting(fields: Mapping[str, Any], wanted: Mapping[str, bool]) -> dict[str, Any]:
    """Leave out the options that have no effect on this spec, as `simulate` does for several specs."""
    return {name: value for name, value in fields.items() if wanted.get(name, True)}
