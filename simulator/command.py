"""Run scenarios for the command line: progress bar, tables, JSON, trace and the HTML report."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fsm_spec.drawing import svg
from fsm_spec.errors import UserError
from fsm_spec.screen import Screen
from fsm_spec.simulator import report
from fsm_spec.simulator.metrics import RequestLog
from fsm_spec.simulator.page import write_page
from fsm_spec.simulator.scenario import Prepared, prepare
from fsm_spec.simulator.simulation import Results
from fsm_spec.simulator.sketch import ACCURACY
from fsm_spec.simulator.sweep import compare, sweep_arrivals, sweep_table
from fsm_spec.simulator.timeline import Timeline
from fsm_spec.trace import TraceWriter, header

MIB = 2**20


@dataclass(frozen=True)
class Run:
    """Hold a finished run and what its process took."""

    prepared: Prepared
    results: Results
    loop_seconds: float
    compile_seconds: float

    def to_dict(self, places: dict[str, str]) -> dict[str, Any]:
        """Give the result as JSON values; all that may vary between two runs of one seed stands under `run`."""
        prepared, results = self.prepared, self.results
        return {
            "spec": prepared.table.name,
            "digest": prepared.table.digest,
            "params": dict(prepared.table.params),
            "scenario": prepared.settings(),
            **results.summary.to_dict(),
            "percentile_error": 0.0 if results.exact else ACCURACY,
            "iterations": results.iterations,
            "launches": results.launches,
            "recomputed_slots": results.recomputed_slots,
            "usage": results.usage.to_dict(),
            "verdicts": list(results.verdicts),
            "over_time": over_time(results),
            "run": {
                "loop_seconds": round(self.loop_seconds, 3),
                "compile_seconds": round(self.compile_seconds, 3),
                "peak_rss_mb": peak_rss_mb(),
                "machine": platform.machine(),
                "python": platform.python_version(),
                "spec_file": prepared.loaded.file,
                **places,
            },
        }


def execute(
    specs: Sequence[str],
    arrivals: str,
    base: Mapping[str, Any],
    *,
    trace: Path | None,
    page: Path | None,
    rows: Path | None,
    as_json: bool,
) -> None:
    """Simulate every spec under every concurrency, and print and write the results; raises UserError.

    `base` holds the fields of `Scenario` that all share.
    """
    prepared = [prepare(scenario) for scenario in compare(specs, sweep_arrivals(arrivals), base)]
    if trace is not None and len(prepared) > 1:
        raise UserError(
            f"--trace holds one run, and {len(prepared)} are asked for; give one spec and one concurrency"
        )
    runs = _run_all(prepared, trace, rows)
    written = (("trace", trace), ("report", page), ("parquet", rows))
    places = {name: str(path) for name, path in written if path is not None}
    scenarios = [_reported(run) for run in runs]
    if page is not None:
        write_page(page, scenarios)
    if as_json:
        values = [run.to_dict(places) for run in runs]
        sys.stdout.write(json.dumps(values[0] if len(values) == 1 else values, indent=1) + "\n")
        return
    _show(lambda console: _print(console, scenarios, sweep=len(runs) > len(specs), places=places))


def _print(
    console: Console, scenarios: Sequence[report.Scenario], *, sweep: bool, places: Mapping[str, str]
) -> None:
    """Print the results, and where files are."""
    if sweep:
        console.print(sweep_table(scenarios))
    else:
        report.print_report(console, scenarios)
    for name, place in places.items():
        console.print(f"{name} in {place}", highlight=False, soft_wrap=True)


def _show(draw: Callable[[Console], None]) -> None:
    """Print on standard output; a file or pipe gets no blanks at the ends of lines."""
    console = Screen()
    if console.is_terminal:
        draw(console)
        return
    with console.capture() as capture:
        draw(console)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def over_time(results: Results) -> dict[str, list[float]]:
    """Give the series of a run: means of each level and emitted tokens a second, up to the given ends."""
    return series(results.timeline)


def series(line: Timeline) -> dict[str, list[float]]:
    """Give a timeline as JSON values."""
    found = {"end_s": [round(edge / 1e9, 6) for edge in line.edges_ns]}
    found |= {name: [round(value, 3) for value in line.mean_levels(name)] for name in line.levels}
    return found | {f"{name}_s": [round(value, 3) for value in line.rates(name)] for name in line.amounts}


def peak_rss_mb() -> float | None:
    """Give the most memory this process had, in MiB; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (MIB if platform.system() == "Darwin" else 1024), 1)


def _advance(bar: Progress, task: TaskID, finished: int) -> None:
    bar.update(task, completed=finished)


def _run_all(prepared: Sequence[Prepared], trace: Path | None, rows: Path | None) -> list[Run]:
    """Run the scenarios one after the other, with a progress bar on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    runs = []
    taken: set[str] = set()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        for each in prepared:
            task = bar.add_task(f"{each.table.name} {each.scenario.arrivals}", total=len(each.requests))
            with _writer(each, trace) as writer, _rows(each, rows, taken) as take:
                start = time.perf_counter()
                simulation = each.simulation(trace=writer)
                simulation.compile()
                compiled = time.perf_counter()
                results = simulation.run(partial(_advance, bar, task), take)
                runs.append(Run(each, results, time.perf_counter() - compiled, compiled - start))
    return runs


@contextmanager
def _rows(
    prepared: Prepared, folder: Path | None, taken: set[str]
) -> Iterator[Callable[[RequestLog], None] | None]:
    """Open the file of a run's rows."""
    if folder is None:
        yield None
        return
    from fsm_spec.simulator.parquet import file_name, row_file  # takes a tenth of a second

    table = prepared.table
    about = {"spec": table.name, "digest": table.digest, "scenario": prepared.settings()}
    path = folder / file_name(table.name, prepared.scenario.arrivals, taken)
    with row_file(path, about) as file:
        yield file.write


@contextmanager
def _writer(prepared: Prepared, path: Path | None) -> Iterator[TraceWriter | None]:
    """Open the trace file, header written; raises UserError where that cannot be."""
    if path is None:
        yield None
        return
    head = header(prepared.table, prepared.policy, prepared.pool, prepared.loaded.text, "simulator")
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); give another place with --trace"
        ) from error
    with file:
        yield TraceWriter(file, head)


def _reported(run: Run) -> report.Scenario:
    """Give what the report shows of a run."""
    prepared, results = run.prepared, run.results
    return report.Scenario(
        prepared.table.name,
        prepared.settings(),
        results.summary,
        results.timeline,
        svg(prepared.table),
        results.verdicts,
    )
