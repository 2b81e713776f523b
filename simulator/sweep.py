"""Several concurrencies in one command: `closed:1,4,16`, and their results as one table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fsm_spec.errors import UserError
from fsm_spec.simulator.chart import short
from fsm_spec.simulator.report import Scenario, duration, shared_settings
from fsm_spec.simulator.workload import parse_arrivals


def sweep_arrivals(text: str) -> list[str]:
    """Split a list of concurrencies into arrivals; other arrivals stay one. Raises UserError for bad or doubled ones."""
    kind, _, values = text.strip().partition(":")
    if kind != "closed" or "," not in values:
        return [text]
    result = [f"closed:{value.strip()}" for value in values.split(",")]
    for index, each in enumerate(result):
        parse_arrivals(each)
        if each in result[:index]:
            raise UserError(f'--arrivals "{text}": {each} stands there twice; give each concurrency once')
    return result


def sweep_table(scenarios: Sequence[Scenario]) -> Table:
    """Return one line a run: concurrency, throughput of all and of one user, latencies, acceptance, KV."""
    shared = {key: value for key, value in shared_settings(scenarios).items() if key != "arrivals"}
    table = Table(title="  ".join(f"{key} {value}" for key, value in shared.items()), title_justify="left")
    names = (
        "spec",
        "arrivals",
        "tok/s",
        "tok/s a user",
        "TTFT p50",
        "TPOT p50",
        "acceptance",
        "tokens/forward",
        "KV peak",
    )
    for name in names:
        table.add_column(name, justify="left" if name in {"spec", "arrivals"} else "right")
    before = ""
    for scenario in scenarios:
        if before and scenario.name != before:
            table.add_section()
        before = scenario.name
        table.add_row(*_cells(scenario))
    return table


def _cells(scenario: Scenario) -> tuple[str, ...]:
    summary = scenario.summary
    tpot = summary.tpot_ms.p50
    return (
        scenario.name,
        scenario.settings["arrivals"],
        short(summary.throughput_tok_s),
        short(1000 / tpot) if tpot else "-",
        duration(summary.ttft_ms.p50) if summary.ttft_ms.count else "-",
        duration(tpot) if summary.tpot_ms.count else "-",
        "-" if summary.acceptance_length is None else f"{summary.acceptance_length:.2f}",
        "-" if summary.tokens_per_forward is None else f"{summary.tokens_per_forward:.2f}",
        f"{100 * summary.kv.peak_pages / summary.kv.pages:.0f} %" if summary.kv else "-",
    )
