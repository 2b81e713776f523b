"""The HTML report: one file without network or scripts; a run is in `page_run.py`, charts are in `chart.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from fsm_spec.simulator.chart import range_chart
from fsm_spec.simulator.page_load import binding, by_load
from fsm_spec.simulator.page_run import (
    cell,
    chips,
    diagram,
    headline,
    in_unit,
    panel,
    quantile_legend,
    quantiles,
    run,
)
from fsm_spec.simulator.report import Scenario, held, known_rows, latencies, loads, shared_settings, titles
from fsm_spec.simulator.style import STYLE
from fsm_spec.writing import writing

MOST_DETAILED = 12  # runs with charts over time, each about 150 kB
PANEL_WIDTH = 350  # of one of three panels beside each other


def write_page(path: Path, scenarios: Sequence[Scenario], title: str = "Simulation report") -> None:
    """Write the report to a file; raises UserError where that cannot be written."""
    with writing(path, "--report"):
        path.write_text(page(scenarios, title), encoding="utf-8")


def page(scenarios: Sequence[Scenario], title: str = "Simulation report") -> str:
    """Return the report of one or more scenarios as one HTML document; the same results give the same bytes."""
    shared = shared_settings(scenarios)
    head = f"<h1>{escape(title)}</h1>{chips(shared)}"
    if len(scenarios) == 1:
        only = scenarios[0]
        drawing = panel("State machine of the algorithm", diagram(only)) if only.diagram_svg else ""
        return _document(
            [head, f"<h2>{escape(only.name)}</h2>", run(only, shared, alone=True), drawing], title
        )
    runs = _in_short if len(scenarios) > MOST_DETAILED else _runs
    parts = [by_load(scenarios), _comparison(scenarios), _diagrams(scenarios), runs(scenarios)]
    return _document([head, _contents(parts), *parts], title)


def _contents(parts: Sequence[str]) -> str:
    """Return links to the headings that have a place of their own."""
    links = (
        f'<a href="#{place}">{words}</a>'
        for part in parts
        for place, words in re.findall(r'<h2 id="([^"]+)">([^<]+)</h2>', part)
    )
    return f"<nav>{''.join(links)}</nav>"


def _diagrams(scenarios: Sequence[Scenario]) -> str:
    """Return the state machine of each spec once, folded."""
    drawn = {scenario.diagram_svg: scenario for scenario in scenarios if scenario.diagram_svg}
    folded = "".join(
        f"<details><summary><b>{escape(scenario.name)}</b></summary>"
        f'<div class="body">{diagram(scenario)}</div></details>'
        for scenario in drawn.values()
    )
    return f'<h2 id="machines">State machines</h2>{folded}' if folded else ""


def _runs(scenarios: Sequence[Scenario]) -> str:
    """Return every run under its name, folded."""
    shared = shared_settings(scenarios)
    folded = "".join(
        f'<details><summary><b>{escape(name)}</b> <span class="note">{headline(scenario.summary)}</span></summary>'
        f'<div class="body">{run(scenario, shared, alone=False)}</div></details>'
        for scenario, name in zip(scenarios, titles(scenarios), strict=True)
    )
    return f'<h2 id="runs">Runs</h2>{folded}'


def _in_short(scenarios: Sequence[Scenario]) -> str:
    """Return what binds in each of many scenarios, whose charts over time would make the page too large."""
    panels = "".join(
        panel(name, binding(scenario)) for scenario, name in zip(scenarios, titles(scenarios), strict=True)
    )
    note = f"More than {MOST_DETAILED} runs: charts over time are left out; run one load for them."
    return f'<h2 id="runs">What binds, by run</h2><p class="note">{note}</p><div class="grid2">{panels}</div>'


def _document(parts: Sequence[str], title: str) -> str:
    """Return the whole document."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def _comparison(scenarios: Sequence[Scenario]) -> str:
    """Return the table of all scenarios with the best of each line and load marked, and their latencies."""
    lines = []
    for index, slo in enumerate(scenarios[0].slos):
        kept = [held(scenario.slos[index], scenario.summary) for scenario in scenarios]
        line = "".join(cell(*each) for each in kept)
        lines.append(f"<tr><th>limit on {escape(slo.title)}</th>{line}</tr>")
    for row in known_rows(scenarios):
        line = "".join(cell(*each) for each in row.cells(scenarios))
        lines.append(f"<tr><th>{escape(row.name)}</th>{line}</tr>")
    table = f"<table>{_columns(scenarios)}<tbody>{''.join(lines)}</tbody></table>"
    panels = []
    for index, (name, _) in enumerate(latencies(scenarios[0].summary)):
        rows = [
            (label, quantiles(scenario.summary, index))
            for scenario, label in zip(scenarios, titles(scenarios), strict=True)
            if latencies(scenario.summary)[index][1].count
        ]
        if rows:
            panels.append(
                panel(f"{name}, p50 to p99", quantile_legend() + range_chart(*in_unit(rows), PANEL_WIDTH))
            )
    return (
        f'<h2 id="comparison">Comparison</h2><div class="panel"><div class="scroll">{table}</div></div>'
        f'<div class="grid3">{"".join(panels)}</div>'
    )


def _columns(scenarios: Sequence[Scenario]) -> str:
    """Return the head of the comparison: names, and below them loads, models and hardware where these differ."""
    load = loads(scenarios)
    if not any(load):
        heads = "".join(f"<th>{escape(scenario.name)}</th>" for scenario in scenarios)
        return f"<thead><tr><th></th>{heads}</tr></thead>"
    spans = ((name, len(list(same))) for name, same in groupby(scenario.name for scenario in scenarios))
    names = "".join(f'<th colspan="{count}">{escape(name)}</th>' for name, count in spans)
    below = "".join(f"<th>{escape(each)}</th>" for each in load)
    return f'<thead><tr><th rowspan="2"></th>{names}</tr><tr>{below}</tr></thead>'
