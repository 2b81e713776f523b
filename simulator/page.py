"""The HTML report: one file without network or scripts, with the charts of `chart.py` inline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from fsm_spec.errors import UserError
from fsm_spec.simulator.chart import Layer, range_chart, share_bar, short, time_chart
from fsm_spec.simulator.memory import gib
from fsm_spec.simulator.metrics import KV_KINDS, Summary, bound_shares
from fsm_spec.simulator.page_load import BOUNDS, PARTS, binding, by_load
from fsm_spec.simulator.report import (
    Scenario,
    duration,
    known_rows,
    latencies,
    percent,
    shared_settings,
    titles,
)
from fsm_spec.simulator.style import STYLE

MOST_DETAILED = 12  # runs with charts over time, each about 150 kB
QUANTILE_STYLES = {"p50": "m0", "p90": "m1", "p95": "m2", "p99": "m3"}


def write_page(path: Path, scenarios: Sequence[Scenario], title: str = "Simulation report") -> None:
    """Write the report to a file; raises UserError where that cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(scenarios, title), encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); give another place with --report"
        ) from error


def page(scenarios: Sequence[Scenario], title: str = "Simulation report") -> str:
    """Return the report of one or more scenarios as one HTML document; the same results give the same bytes."""
    shared = shared_settings(scenarios)
    parts = [f"<h1>{escape(title)}</h1>", _chips(shared)]
    if len(scenarios) > 1:
        parts.extend([by_load(scenarios), _comparison(scenarios)])
    if len(scenarios) > MOST_DETAILED:
        parts.append(_in_short(scenarios))
        return _document(parts, title)
    parts.extend(
        _scenario(scenario, name, shared, alone=len(scenarios) == 1)
        for scenario, name in zip(scenarios, titles(scenarios), strict=True)
    )
    return _document(parts, title)


def _in_short(scenarios: Sequence[Scenario]) -> str:
    """Return what binds in each of many scenarios, whose charts over time would make the page too large."""
    panels = "".join(
        f"<div><h3>{escape(name)}</h3>{binding(scenario)}</div>"
        for scenario, name in zip(scenarios, titles(scenarios), strict=True)
    )
    note = f"More than {MOST_DETAILED} runs: charts over time are left out; run one load for them."
    return f'<h2>What binds, by run</h2><p class="note">{note}</p><div class="grid2">{panels}</div>'


def _document(parts: Sequence[str], title: str) -> str:
    """Return the whole document."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def _chips(settings: dict[str, str]) -> str:
    """Return settings as labels."""
    chips = (f'<span class="chip"><b>{escape(k)}</b>{escape(v)}</span>' for k, v in settings.items())
    return f'<div class="chips">{"".join(chips)}</div>' if settings else ""


def _comparison(scenarios: Sequence[Scenario]) -> str:
    """Return the table of all scenarios with the best of each line and load marked, and their latencies."""
    names = titles(scenarios)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = []
    for row in known_rows(scenarios):
        cells = row.cells(scenarios)
        line = "".join(
            f'<td class="best">{text}</td>' if best else f"<td>{text}</td>" for text, best in cells
        )
        lines.append(f"<tr><th>{escape(row.name)}</th>{line}</tr>")
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    panels = []
    for index, (name, _) in enumerate(latencies(scenarios[0].summary)):
        rows = [
            (label, _quantiles(scenario.summary, index))
            for scenario, label in zip(scenarios, names, strict=True)
            if latencies(scenario.summary)[index][1].count
        ]
        if rows:
            panels.append(_panel(f"{name}, p50 to p99", _quantile_legend() + range_chart(*_in_unit(rows))))
    return f'<h2>Comparison</h2><div class="panel scroll">{table}</div><div class="grid3">{"".join(panels)}</div>'


def _quantiles(summary: Summary, index: int) -> dict[str, float]:
    """Return the quantiles of one latency in milliseconds."""
    latency = latencies(summary)[index][1]
    return {name: getattr(latency, name) for name in QUANTILE_STYLES}


def _in_unit(rows: list[tuple[str, dict[str, float]]]) -> tuple[list[tuple[str, dict[str, float]]], str]:
    """Return rows in milliseconds as they are, or in seconds where they are long."""
    if max(max(values.values()) for _, values in rows) < 1000:
        return rows, "ms"
    return [(label, {name: value / 1000 for name, value in values.items()}) for label, values in rows], "s"


def _quantile_legend() -> str:
    """Return the legend of the latency charts."""
    keys = (f'<span><i class="swatch {style}"></i>{name}</span>' for name, style in QUANTILE_STYLES.items())
    return f'<div class="legend">{"".join(keys)}</div>'


def _scenario(scenario: Scenario, name: str, shared: dict[str, str], *, alone: bool) -> str:
    """Return the part of one scenario under its name among the others."""
    own = {key: value for key, value in scenario.settings.items() if key not in shared}
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in scenario.notes)
    summary = scenario.summary
    counts = (
        f"{summary.finished:,} of {summary.requests:,} requests finished in {summary.duration_s:,.4g} simulated"
        f" seconds and {summary.rounds:,} rounds."
    )
    parts = [
        f"<h2>{escape(name)}</h2>",
        f'<p class="note">{counts}</p>',
        _chips(own),
        notes,
        _cards(summary),
        _latency_panel(summary) if alone else "",
        binding(scenario),
        _memory_panel(scenario.memory),
        f'<div class="grid2">{_charts(scenario)}</div>',
    ]
    if scenario.diagram_svg:
        # Only the drawing itself: a prologue in the middle of a page is no HTML.
        drawing = re.sub(r"^.*?(?=<svg)", "", scenario.diagram_svg, count=1, flags=re.DOTALL)
        parts.append(_panel("State machine of the algorithm", f'<div class="diagram">{drawing}</div>'))
    return "".join(parts)


def _cards(summary: Summary) -> str:
    """Return the headline numbers."""
    cards = [
        (
            "Output throughput",
            short(summary.throughput_tok_s),
            "tok/s",
            f"{summary.throughput_req_s:.2f} requests/s",
        ),
        _latency_card("TTFT", summary, 0),
        _latency_card("TPOT", summary, 1),
        _latency_card("End-to-end", summary, 2),
    ]
    if summary.acceptance_length is not None and summary.tokens_per_forward is not None:
        drafts = (
            percent(summary.accepted / summary.drafted) + " of drafts accepted"
            if summary.drafted
            else "no drafts"
        )
        cards.append(("Acceptance length", f"{summary.acceptance_length:.2f}", "tokens a round", drafts))
        cards.append(
            (
                "Tokens per forward",
                f"{summary.tokens_per_forward:.2f}",
                "",
                "every forward of the target counts",
            )
        )
    if summary.kv:
        kv = summary.kv
        peak = f"peak {percent(kv.peak_pages / kv.pages)} of {kv.pages:,} pages"
        cards.append(("KV pool in use", percent(kv.mean_pages / kv.pages), "mean", peak))
    cards.append(("Preemptions", f"{summary.preemptions:,}", "", "requests that gave their pages back"))
    return f'<div class="cards">{"".join(_card(*card) for card in cards)}</div>'


def _latency_card(name: str, summary: Summary, index: int) -> tuple[str, str, str, str]:
    """Return the median of a latency with its tail."""
    latency = latencies(summary)[index][1]
    if not latency.count:
        return name, "-", "", "no request got this far"
    value, unit = duration(latency.p50).split(" ")
    return name, value, f"{unit} median", f"p95 {duration(latency.p95)}, p99 {duration(latency.p99)}"


def _card(name: str, value: str, unit: str, more: str) -> str:
    """Return one headline number."""
    return (
        f'<div class="card"><div class="name">{escape(name)}</div><div class="value">{value}<small>{escape(unit)}'
        f'</small></div><div class="more">{escape(more)}</div></div>'
    )


def _panel(title: str, body: str) -> str:
    """Return a titled box."""
    return f'<div class="panel"><h3>{escape(title)}</h3>{body}</div>'


def _latency_panel(summary: Summary) -> str:
    """Return the percentiles as a table."""
    names = ("mean", "p50", "p90", "p95", "p99", "max")
    head = "".join(f"<th>{name}</th>" for name in names)
    lines = []
    for name, latency in latencies(summary):
        cells = (duration(getattr(latency, key)) if latency.count else "-" for key in names)
        lines.append(f"<tr><th>{name}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    rows = [
        (name, _quantiles(summary, i))
        for i, (name, latency) in enumerate(latencies(summary))
        if latency.count
    ]
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    strips = "".join(range_chart(*_in_unit([row])) for row in rows)
    left = f'<div class="scroll">{table}</div>'
    return _panel(
        "Latency percentiles", f'<div class="grid2">{left}<div>{_quantile_legend()}{strips}</div></div>'
    )


def _memory_panel(memory: dict[str, int]) -> str:
    """Return what takes the memory of an accelerator; empty where that is not known."""
    if not memory:
        return ""
    total = sum(memory.values())
    styles = dict(zip(memory, (*PARTS, *PARTS), strict=False))
    shares = [(f"{name} {gib(size)}", styles[name], size / total) for name, size in memory.items()]
    return _panel("Where the memory of an accelerator goes", share_bar(shares))


def _charts(scenario: Scenario) -> str:
    """Return the series over time."""
    line, kv = scenario.timeline, scenario.summary.kv
    edges = [edge / 1e9 for edge in line.edges_ns]
    tokens = [Layer("tokens", "main", line.rates("tokens"))]
    styles = {"waiting": "warn", "running": "second"}
    requests = [Layer(name, style, line.mean_levels(name)) for name, style in styles.items()]
    body = f"{time_chart(edges, tokens, 'tok/s')}<h3>Requests over time</h3>{time_chart(edges, requests, 'requests')}"
    panels = [_panel("Output throughput over time", body)]
    shares = bound_shares(line)
    if any(any(values) for values in shares.values()):
        layers = [
            Layer(name, style, [100 * value for value in shares[name]]) for name, style in BOUNDS.items()
        ]
        chart = time_chart(edges, layers, "% of the time of launches", stacked=True)
        panels.append(_panel("What binds, over time", chart))
    if kv:
        slots = kv.pages * kv.page_size
        layers = [Layer(kind, kind, line.mean_levels(kind)) for kind in KV_KINDS]
        chart = time_chart(edges, layers, "token slots", stacked=True, ceiling=("pool", float(slots)))
        text = (
            f"The pool holds {slots:,} token slots: {kv.pages:,} pages of {kv.page_size}. Of what requests reserve,"
            f" {percent(kv.unused_share)} holds nothing: ends of pages, and room for drafts to come."
        )
        for size, use in kv.tiers.items():
            text += f" Tier {size}: {percent(use['unused_share'])} of {short(use['mean_pages'])} pages."
        body = f'{chart}<p class="note">{text}</p>'
        ahead = [layer for layer in layers if layer.name != KV_KINDS[0] and any(layer.values)]
        if ahead:  # committed slots dwarf them
            chart = time_chart(edges, ahead, "token slots", stacked=True)
            body += f"<h3>KV of rows that are not committed</h3>{chart}"
        panels.insert(0, _panel("KV occupancy over time, by kind", body))
    return "".join(panels)
