"""Results for a terminal: one scenario in detail, or several side by side; the HTML page is in `page.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fsm_spec.simulator.bill import Bill
from fsm_spec.simulator.chart import short
from fsm_spec.simulator.memory import GIB
from fsm_spec.simulator.metrics import KvUse, Latency, Summary
from fsm_spec.simulator.slo import Slo
from fsm_spec.simulator.terminal_table import flowed, plain_table, print_table, small_table
from fsm_spec.simulator.timeline import Timeline
from fsm_spec.wording import counted


@dataclass(frozen=True)
class Scenario:
    """Hold what a report shows of one run: its name, its settings in order, its results, and its drawn states."""

    name: str
    settings: dict[str, str]
    summary: Summary
    timeline: Timeline
    diagram_svg: str = ""
    notes: tuple[str, ...] = field(default=())
    bill: Bill | None = None
    memory: dict[str, int] = field(default_factory=dict)
    """Bytes of one accelerator by what takes them; empty where nothing is known."""
    dwell_s: dict[str, float] = field(default_factory=dict)
    """Seconds that all requests together spent in each state; empty where nothing is known."""
    slos: tuple[Slo, ...] = ()
    """Limits that the run is held to."""
    warnings: tuple[str, ...] = ()
    """Sentences about options that say less than the spec asks for."""
    measured: bool = False
    """Whether a server was measured; else the run is a simulation."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Requests of a measurement that failed, by cause."""
    comparable: bool = True
    """Whether its numbers may be the best of several: not where drafts were judged on random words."""


@dataclass(frozen=True)
class Row:
    """One line of a comparison: how to read and write a number, and which direction is better (0: neither).

    `of` is what it reads: the results, what a run cost (`bill`, where that is known) or the scenario itself.
    A line of another thing than results that no run knows is left out.
    """

    name: str
    read: Callable[[Any], float | None]
    write: Callable[[float], str]
    better: int = 0
    of: Literal["summary", "bill", "scenario"] = "summary"

    def value(self, scenario: Scenario) -> float | None:
        """Return the number of one scenario."""
        source = scenario if self.of == "scenario" else getattr(scenario, self.of)
        return self.read(source) if source is not None else None

    def cells(self, scenarios: Sequence[Scenario]) -> list[tuple[str, bool]]:
        """Return the text of each scenario and whether it is the best of several with the same arrivals."""
        values = [self.value(scenario) for scenario in scenarios]
        loads = [scenario.settings.get("arrivals") for scenario in scenarios]
        peers: dict[str | None, set[float]] = {}
        for value, load, scenario in zip(values, loads, scenarios, strict=True):
            if self.better and value is not None and scenario.comparable:
                peers.setdefault(load, set()).add(value)
        best = {
            load: max(among, key=lambda value: value * self.better)
            for load, among in peers.items()
            if len(among) > 1
        }
        return [
            (
                "-" if value is None else self.write(value),
                scenario.comparable and value is not None and value == best.get(load),
            )
            for value, load, scenario in zip(values, loads, scenarios, strict=True)
        ]


def duration(milliseconds: float) -> str:
    """Write a time with three digits in ms or s."""
    return f"{milliseconds / 1000:.3g} s" if milliseconds >= 1000 else f"{milliseconds:.3g} ms"


def percent(share: float) -> str:
    """Write a share."""
    return f"{100 * share:.1f} %"


def held(slo: Slo, summary: Summary) -> tuple[str, bool]:
    """Write what was measured beside the limit, as `34.8 ms of 500 ms: held`, and tell whether it was held."""
    value = slo.value_ms(summary)
    holds = value <= slo.limit_ms
    measured = duration(value) if value < float("inf") else "no request got this far,"
    return f"{measured} of {duration(slo.limit_ms)}: {'held' if holds else 'broken'}", holds


def _two(value: float) -> str:
    """Write a ratio."""
    return f"{value:.2f}"


def _three(value: float) -> str:
    """Write a price."""
    return f"{value:.3f}"


# Settings that tell runs of one spec apart, in the heads of columns.
TELLING = ("arrivals", "model", "hardware")

ROWS = (
    Row("output throughput, tok/s", lambda s: s.throughput_tok_s, short, 1),
    Row("requests/s", lambda s: s.throughput_req_s, _two, 1),
    Row("a user, tok/s (first token included)", lambda s: s.user_tok_s, short, 1),
    Row("TTFT p50", lambda s: s.ttft_ms.p50 if s.ttft_ms.count else None, duration, -1),
    Row("TTFT p95", lambda s: s.ttft_ms.p95 if s.ttft_ms.count else None, duration, -1),
    Row("TPOT p50", lambda s: s.tpot_ms.p50 if s.tpot_ms.count else None, duration, -1),
    Row("TPOT p95", lambda s: s.tpot_ms.p95 if s.tpot_ms.count else None, duration, -1),
    Row("end-to-end p50", lambda s: s.e2e_ms.p50 if s.e2e_ms.count else None, duration, -1),
    Row("end-to-end p99", lambda s: s.e2e_ms.p99 if s.e2e_ms.count else None, duration, -1),
    Row("acceptance length (tokens a round)", lambda s: s.acceptance_length, _two, 1),
    Row("tokens per forward", lambda s: s.tokens_per_forward, _two, 1),
    Row("drafts accepted", lambda s: s.accepted / s.drafted if s.drafted else None, percent),
    Row("preemptions", lambda s: float(s.preemptions), short, -1),
    Row("KV pool in use, mean", lambda s: s.kv.mean_pages / s.kv.pages if s.kv else None, percent),
    Row("KV pool in use, peak", lambda s: s.kv.peak_pages / s.kv.pages if s.kv else None, percent),
    Row("reserved KV slots that hold nothing", lambda s: s.kv.unused_share if s.kv else None, percent, -1),
    Row("goodput, requests/s", lambda b: b.goodput_req_s, _two, 1, of="bill"),
    Row(
        "between bursts, p50",
        lambda b: b.burst_ms.p50 if b.burst_ms.count else None,
        duration,
        -1,
        of="bill",
    ),
    Row("operations on drafts", lambda b: b.drafts_flops_share, percent, of="bill"),
    Row("operations on rejected drafts", lambda b: b.wasted_flops_share, percent, -1, of="bill"),
    Row("bytes for drafts", lambda b: b.drafts_bytes_share, percent, of="bill"),
    Row("bytes for rejected drafts", lambda b: b.wasted_bytes_share, percent, -1, of="bill"),
    Row("memory bandwidth used, of the peak", lambda b: b.bandwidth_utilisation, percent, of="bill"),
    Row("operations done, of the peak", lambda b: b.flops_utilisation, percent, of="bill"),
    Row("accelerator waits", lambda b: b.idle_share, percent, -1, of="bill"),
    Row("energy, J a token", lambda b: b.energy_j_token, _two, -1, of="bill"),
    Row("price of a million tokens", lambda b: b.price_per_million, _three, -1, of="bill"),
)


def known_rows(scenarios: Sequence[Scenario]) -> list[Row]:
    """Return the failures by cause, and the lines of every summary or that at least one scenario has a number for."""
    causes = dict.fromkeys(cause for scenario in scenarios for cause in scenario.failed)
    rows = (*(_failures(cause) for cause in causes), *ROWS)
    return [
        row for row in rows if row.of == "summary" or any(row.value(each) is not None for each in scenarios)
    ]


def _failures(cause: str) -> Row:
    """Return the line that counts the requests that failed for one cause; a simulation knows no such thing."""
    return Row(
        f"requests failed: {cause}",
        lambda scenario: float(scenario.failed.get(cause, 0)) if scenario.measured else None,
        lambda count: f"{count:,.0f}",
        -1,
        of="scenario",
    )


def print_report(console: Console, scenarios: Sequence[Scenario]) -> None:
    """Print one scenario in detail, or a comparison with the best of each line marked; notes follow."""
    if len(scenarios) == 1:
        _print_one(console, scenarios[0])
    else:
        console.print(flowed(shared_settings(scenarios), console.width), markup=False, highlight=False)
        # So many columns as fit beside each other, about twenty letters each.
        count = max(2, (console.width - 28) // 20)
        for first in range(0, len(scenarios), count):
            columns = range(first, min(first + count, len(scenarios)))
            print_table(console, comparison_table(scenarios, columns))
    for scenario in scenarios:
        limits = (f"{slo.title} {held(slo, scenario.summary)[0]}" for slo in scenario.slos)
        for note in (*scenario.notes, *limits):
            console.print(f"{scenario.name}: {note}", markup=False, highlight=False)


def print_warnings(console: Console, scenarios: Sequence[Scenario]) -> None:
    """Print each warning once, with the name of its scenario."""
    for line in dict.fromkeys(f"{each.name}: {warning}" for each in scenarios for warning in each.warnings):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def comparison_table(scenarios: Sequence[Scenario], columns: range | None = None) -> Table:
    """Return one column a scenario and one line a result, of all scenarios or of those in `columns`."""
    columns = range(len(scenarios)) if columns is None else columns
    shared = shared_settings(scenarios)
    table = plain_table()
    table.add_column("", min_width=20)
    rows = known_rows(scenarios)
    cells = [row.cells(scenarios) for row in rows]
    for index in columns:
        scenario = scenarios[index]
        own = [f"{key} {value}" for key, value in scenario.settings.items() if key not in shared]
        # A number is never cut; names and settings go over several lines.
        widest = max(len(line[index][0]) for line in cells)
        head = escape("\n".join((scenario.name, *own)))
        table.add_column(head, justify="right", min_width=widest, overflow="fold")
    for row, line in zip(rows, cells, strict=True):
        mine = (line[index] for index in columns)
        table.add_row(row.name, *(f"[bold green]{text}[/]" if best else text for text, best in mine))
    return table


def shared_settings(scenarios: Sequence[Scenario]) -> dict[str, str]:
    """Return the settings that all scenarios have in common, in the order of the first."""
    first = scenarios[0].settings
    return {
        key: value
        for key, value in first.items()
        if all(other.settings.get(key) == value for other in scenarios)
    }


def loads(scenarios: Sequence[Scenario]) -> list[str]:
    """Return what tells runs of one spec apart, as `8 users`: load, model and hardware; what all share is left out."""
    columns = [[scenario.settings.get(key, "") for scenario in scenarios] for key in TELLING]
    differing = [column for column in columns if len(set(column)) > 1]
    return [
        ", ".join(_users(each) for each in values if each) for values in zip(*differing, strict=True)
    ] or [""] * len(scenarios)


def titles(scenarios: Sequence[Scenario]) -> list[str]:
    """Return the name of each scenario, with what tells it apart: `isd, 8 users`."""
    return [
        f"{scenario.name}, {load}" if load else scenario.name
        for scenario, load in zip(scenarios, loads(scenarios), strict=True)
    ]


def _users(load: str) -> str:
    """Say how many users a closed loop has; other arrivals stay as they are."""
    users = load.removeprefix("closed:")
    return counted(int(users), "user") if load != users and users.isdigit() else load


def latencies(summary: Summary) -> list[tuple[str, Latency]]:
    """Return the latencies under their names."""
    return [("TTFT", summary.ttft_ms), ("TPOT", summary.tpot_ms), ("end-to-end", summary.e2e_ms)]


def _print_one(console: Console, scenario: Scenario) -> None:
    """Print settings, results, latencies and KV of one scenario."""
    summary = scenario.summary
    console.print(f"[bold]{escape(scenario.name)}[/]")
    console.print(flowed(scenario.settings, console.width), markup=False, highlight=False)
    console.print(
        f"{summary.finished:,} of {counted(summary.requests, 'request')} finished in {summary.duration_s:.4g}"
        f" {'' if scenario.measured else 'simulated '}seconds, {counted(summary.rounds, 'round')}",
        highlight=False,
    )
    results = plain_table()
    results.show_header = False
    results.add_column("")
    results.add_column("", justify="right")
    for row in known_rows([scenario]):
        if not row.name.startswith(("TTFT", "TPOT", "end-to-end")):
            results.add_row(row.name, row.cells([scenario])[0][0])
    print_table(console, results)
    table = small_table("latency", "mean", "p50", "p90", "p95", "p99", "max")
    for name, latency in latencies(summary):
        numbers = (latency.mean, latency.p50, latency.p90, latency.p95, latency.p99, latency.max)
        table.add_row(name, *(duration(number) if latency.count else "-" for number in numbers))
    print_table(console, table)
    if summary.kv:
        slots = small_table("KV slots", "mean", "peak")
        for kind, mean in summary.kv.mean_slots.items():
            slots.add_row(kind, short(mean), short(summary.kv.peak_slots[kind]))
        print_table(console, slots)
        if summary.kv.tiers:
            print_table(console, tier_table(summary.kv))
    if scenario.dwell_s:
        print_table(console, dwell_table(scenario.dwell_s))
    if scenario.memory:
        print_table(console, memory_table(scenario.memory))


def tier_table(kv: KvUse) -> Table:
    """Return what each tier held, and how much of it was empty."""
    table = small_table("tier", "KV pages, mean", "requests, mean", "reserved but empty")
    for size, use in kv.tiers.items():
        table.add_row(
            str(size), short(use["mean_pages"]), short(use["mean_running"]), percent(use["unused_share"])
        )
    return table


def dwell_table(dwell_s: dict[str, float]) -> Table:
    """Return in which states requests spent their time."""
    table = small_table("state", "request seconds", "share")
    total = sum(dwell_s.values()) or 1.0
    for name, seconds in dwell_s.items():
        table.add_row(name, f"{seconds:.4g}", percent(seconds / total))
    return table


def memory_table(memory: dict[str, int]) -> Table:
    """Return what takes the memory of one accelerator."""
    table = small_table("memory of an accelerator", "GiB")
    for name, size in memory.items():
        table.add_row(name, f"{size / GIB:.2f}")
    return table
