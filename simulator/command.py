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

from fsm_spec.drawing.state_drawing import svg
from fsm_spec.errors import UserError
from fsm_spec.screen import Screen
from fsm_spec.simulator import report
from fsm_spec.simulator.bill import Bill, bill, without_warm_up
from fsm_spec.simulator.cluster import Cluster, ClusterResults
from fsm_spec.simulator.faults import Faults
from fsm_spec.simulator.memory import GIB
from fsm_spec.simulator.metrics import RequestLog, bound_shares
from fsm_spec.simulator.money import price_fault
from fsm_spec.simulator.page import write_page
from fsm_spec.simulator.perfetto import write_perfetto
from fsm_spec.simulator.preparation import prepare
from fsm_spec.simulator.prepared import Prepared
from fsm_spec.simulator.rounds import RoundLog
from fsm_spec.simulator.search import interval
from fsm_spec.simulator.simulation import Results
from fsm_spec.simulator.sketch import ACCURACY
from fsm_spec.simulator.slo import Slo
from fsm_spec.simulator.sweep import compare, print_sweep, sweep_arrivals
from fsm_spec.simulator.timeline import Timeline
from fsm_spec.simulator.workers import Workers
from fsm_spec.trace import TraceWriter, header
from fsm_spec.wording import counted
from fsm_spec.writing import writing

MIB = 2**20
# Results that get an interval over seeds.
CONFIDENT = ("throughput_tok_s", "ttft_ms_p50", "ttft_ms_p95", "tpot_ms_p50", "tpot_ms_p95", "e2e_ms_p50")


@dataclass(frozen=True)
class Wanted:
    """Hold what is wanted of the runs beside their results: files, limits, a price, more seeds, a warm-up."""

    trace: Path | None = None
    page: Path | None = None
    perfetto: Path | None = None
    rows: Path | None = None
    slos: tuple[Slo, ...] = ()
    price: float | None = None
    seeds: int = 1
    warm_up_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what means nothing; raises UserError with a line a fault."""
        faults = Faults()
        if wrong := price_fault(self.price):
            faults.note(wrong)
        if not self.warm_up_s >= 0:
            faults.note(f"--warm-up {self.warm_up_s:g} is negative; give seconds")
        faults.raise_any()

    def places(self) -> dict[str, str]:
        """Return where files are."""
        files = {
            "trace": self.trace,
            "report": self.page,
            "perfetto": self.perfetto,
            "parquet": self.rows,
        }
        return {name: str(path) for name, path in files.items() if path is not None}


@dataclass(frozen=True)
class Run:
    """Hold a finished run and what its process took."""

    prepared: Prepared
    results: Results
    loop_seconds: float
    compile_seconds: float
    bill: Bill
    confidence: dict[str, tuple[float, float, float]]
    rounds: RoundLog | None = None
    slos: tuple[Slo, ...] = ()

    def settings(self) -> dict[str, str]:
        """Give what was simulated, and the limits that it is held to."""
        limits = {"slo": ", ".join(slo.describe() for slo in self.slos)} if self.slos else {}
        return {**self.prepared.settings(), **limits}

    def to_dict(self, places: dict[str, str]) -> dict[str, Any]:
        """Give the result as JSON values; all that may vary between two runs of one seed stands under `run`."""
        prepared, results = self.prepared, self.results
        return {
            "spec": prepared.table.name,
            "digest": prepared.table.digest,
            "params": dict(prepared.table.params),
            "scenario": self.settings(),
            **results.summary.to_dict(),
            "percentile_error": 0.0 if results.exact else ACCURACY,
            "iterations": results.iterations,
            "launches": results.launches,
            "recomputed_slots": results.recomputed_slots,
            "usage": results.usage.to_dict(),
            "memory_gib": {name: round(size / GIB, 4) for name, size in prepared.memory.parts.items()},
            "bill": self.bill.to_dict(),
            **({"cluster": results.to_dict()} if isinstance(results, ClusterResults) else {}),
            "confidence": {name: [round(end, 6) for end in ends] for name, ends in self.confidence.items()},
            "verdicts": list(results.verdicts),
            "warnings": list(prepared.warnings),
            "over_time": over_time(results.timeline),
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
    named: Mapping[str, Mapping[str, str]],
    wanted: Wanted,
    as_json: bool,
    faults: Faults,
) -> None:
    """Simulate every spec under every concurrency, and print and write the results; raises UserError.

    `base` holds the fields of `Scenario` that all share, `named` those that differ, by spec; `faults` are those that
    were found before.
    """
    loads = faults.take(lambda: sweep_arrivals(arrivals))
    scenarios = faults.take(lambda: compare(specs, loads or [arrivals], base, named)) or []
    prepared = [each for each in (faults.take(partial(prepare, scenario)) for scenario in scenarios) if each]
    faults.raise_any()
    for option, path in (("--trace", wanted.trace), ("--perfetto", wanted.perfetto)):
        if path is not None and len(prepared) > 1:
            raise UserError(
                f"{option} holds one run, and {len(prepared)} are asked for; give one spec and one concurrency"
            )
    runs = _run_all(prepared, wanted)
    reported = [_reported(run, wanted) for run in runs]
    if wanted.page is not None:
        write_page(wanted.page, reported)
    if wanted.perfetto is not None:
        write_perfetto(wanted.perfetto, runs[0].results, runs[0].prepared.table.name, runs[0].rounds)
    places = wanted.places()
    if as_json:
        values = [run.to_dict(places) for run in runs]
        sys.stdout.write(json.dumps(values[0] if len(values) == 1 else values, indent=1) + "\n")
        return
    show(lambda console: _print(console, reported, sweep=len(runs) > len(specs), places=places))


def _print(
    console: Console, scenarios: Sequence[report.Scenario], *, sweep: bool, places: Mapping[str, str]
) -> None:
    """Print the results, and where files are."""
    if sweep:
        print_sweep(console, scenarios)
    else:
        report.print_report(console, scenarios)
    report.print_warnings(console, scenarios)
    for name, place in places.items():
        console.print(f"{name} in {place}", markup=False, highlight=False, soft_wrap=True)


def show(draw: Callable[[Console], None]) -> None:
    """Print on standard output; a file or pipe gets no blanks at the ends of lines."""
    console = Screen()
    if console.is_terminal:
        draw(console)
        return
    with console.capture() as capture:
        draw(console)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def over_time(line: Timeline) -> dict[str, list[float]]:
    """Give the series of a run: means of each level, emitted tokens a second, and shares of time by what binds."""
    found = {"end_s": [round(edge / 1e9, 6) for edge in line.edges_ns]}
    found |= {name: [round(value, 3) for value in line.mean_levels(name)] for name in line.levels}
    if "tokens" in line.amounts:
        found["tokens_s"] = [round(value, 3) for value in line.rates("tokens")]
    shares = bound_shares(line).items()
    return found | {f"{name}_share": [round(value, 4) for value in values] for name, values in shares}


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


def _run_all(prepared: Sequence[Prepared], wanted: Wanted) -> list[Run]:
    """Run the scenarios one after the other, with a progress bar on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    runs = []
    taken: set[str] = set()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        for each in prepared:
            task = bar.add_task(f"{each.table.name} {each.scenario.arrivals}", total=len(each.requests))
            if not each.alone:
                runs.append(_cluster_run(each, wanted, partial(_advance, bar, task)))
                continue
            with _writer(each, wanted.trace) as writer, _rows(each, wanted.rows, taken) as take:
                start = time.perf_counter()
                rounds = RoundLog() if wanted.perfetto is not None else None
                simulation = each.simulation(trace=writer, rounds=rounds)
                simulation.compile()
                compiled = time.perf_counter()
                results = simulation.run(partial(_advance, bar, task), take)
                seconds = time.perf_counter() - compiled, compiled - start
            if wanted.warm_up_s:
                results = without_warm_up(results, wanted.warm_up_s)
            by_clock = not each.requests.concurrency
            found = bill(results, each.cost, wanted.slos, wanted.price, by_clock=by_clock)
            runs.append(Run(each, results, *seconds, found, _confidence(each, wanted), rounds, wanted.slos))
    return runs


def _cluster_run(prepared: Prepared, wanted: Wanted, progress: Callable[[int], None]) -> Run:
    """Run several replicas; what is written of one replica's steps cannot be had."""
    for option, path in (("--trace", wanted.trace), ("--parquet", wanted.rows)):
        if path is not None:
            raise UserError(
                f"{option} holds the run of one replica; leave it out, or the options of a cluster"
            )
    start = time.perf_counter()
    results: Results = Cluster(prepared, prepared.cluster).run(progress)
    seconds = time.perf_counter() - start
    assert isinstance(results, ClusterResults)
    paid_s = results.paid_s
    if wanted.warm_up_s:
        results = without_warm_up(results, wanted.warm_up_s)
    found = bill(results, prepared.cost, wanted.slos, wanted.price, paid_s)
    return Run(prepared, results, seconds, 0.0, found, _confidence(prepared, wanted), slos=wanted.slos)


def _confidence(prepared: Prepared, wanted: Wanted) -> dict[str, tuple[float, float, float]]:
    """Give mean and 95 % interval of the main results over seeds, all cores at work; nothing for one seed."""
    if wanted.seeds == 1:
        return {}
    scenario = prepared.scenario
    points = [scenario.model_copy(update={"seed": scenario.seed + more}) for more in range(wanted.seeds)]
    with Workers() as workers:
        found = [each for each in workers.run(points, wanted.slos) if not each["error"]]
    names = (*CONFIDENT, *(slo.name for slo in wanted.slos))
    return {name: interval([each[name] for each in found]) for name in names} if found else {}


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
    with writing(path, "--trace"):
        file = path.open("w", encoding="utf-8")
    with file:
        yield TraceWriter(file, head)


def _reported(run: Run, wanted: Wanted) -> report.Scenario:
    """Give what the report shows of a run."""
    prepared, results = run.prepared, run.results
    notes = [*results.verdicts]
    if isinstance(results, ClusterResults):
        notes.append(
            f"{counted(results.most_replicas, 'replica')} at most, {results.paid_s:.4g} replica seconds;"
            f" {counted(results.hit_tokens, 'prompt token')} found in caches, {counted(results.moved, 'request')} moved"
        )
    if wanted.warm_up_s:
        notes.append(
            f"latencies and throughput leave out requests that arrived in the first {wanted.warm_up_s:g} s"
        )
    for name, (mean, low, high) in run.confidence.items():
        notes.append(f"{name} over {wanted.seeds} seeds: {mean:.5g}, 95 % interval {low:.5g} to {high:.5g}")
    return report.Scenario(
        prepared.table.name,
        run.settings(),
        results.summary,
        results.timeline,
        svg(prepared.table),
        tuple(notes),
        run.bill,
        prepared.memory.parts,
        {name: ns / 1e9 for name, ns in results.usage.dwell_ns.items() if ns},
        slos=run.slos,
        warnings=prepared.warnings,
    )
