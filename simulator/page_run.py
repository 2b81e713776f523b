"""Parts of the HTML report about one run: headline numbers, latencies, what binds, memory, and series over time."""

from __future__ import annotations

import re
from html import escape

from fsm_spec.plan import KINDS
from fsm_spec.simulator.chart import Layer, range_chart, share_bar, short, time_chart
from fsm_spec.simulator.memory import gib
from fsm_spec.simulator.metrics import Summary, bound_shares
from fsm_spec.simulator.page_load import BOUNDS, PARTS, binding
from fsm_spec.simulator.report import Scenario, duration, held, latencies, percent
from fsm_spec.wording import counted

QUANTILE_STYLES = {"p50": "m0", "p90": "m1", "p95": "m2", "p99": "m3"}


def run(scenario: Scenario, shared: dict[str, str], *, alone: bool) -> str:
    """Return what is shown of one run: its own settings, notes, numbers and charts; `alone` adds percentiles."""
    own = {key: value for key, value in scenario.settings.items() if key not in shared}
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in (*scenario.warnings, *scenario.notes))
    summary = scenario.summary
    counts = (
        f"{summary.finished:,} of {counted(summary.requests, 'request')} finished in {summary.duration_s:,.4g}"
        f" {'' if scenario.measured else 'simulated '}seconds and {counted(summary.rounds, 'round')}."
    )
    parts = [
        f'<p class="note">{counts}</p>',
        chips(own),
        notes,
        _limits(scenario),
        _cards(summary),
        _latency_panel(summary) if alone else "",
        f'<div class="grid2">{_charts(scenario)}</div>',
    ]
    return "".join(parts)


def _limits(scenario: Scenario) -> str:
    """Return each limit with what was measured, and the goodput; empty without limits."""
    if not scenario.slos:
        return ""
    lines = [(slo.title, *held(slo, scenario.summary)) for slo in scenario.slos]
    rows = [f"<tr><th>{escape(title)}</th>{cell(text, best=holds)}</tr>" for title, text, holds in lines]
    good = scenario.bill.goodput_req_s if scenario.bill is not None else None
    if good is not None:
        rows.append(f"<tr><th>goodput: requests/s within every limit</th><td>{good:.2f}</td></tr>")
    return panel("Limits", f'<div class="scroll"><table><tbody>{"".join(rows)}</tbody></table></div>')


def headline(summary: Summary) -> str:
    """Return the few numbers that stand beside a run's name."""
    words = [f"{short(summary.throughput_tok_s)} tok/s"]
    words += [f"{name} {duration(latency.p50)}" for name, latency in latencies(summary)[:2] if latency.count]
    if summary.acceptance_length is not None:
        words.append(f"{summary.acceptance_length:.2f} tokens a round")
    return " · ".join(words)


def diagram(scenario: Scenario) -> str:
    """Return the drawing itself: a prologue in the middle of a page is no HTML."""
    drawing = re.sub(r"^.*?(?=<svg)", "", scenario.diagram_svg, count=1, flags=re.DOTALL)
    return f'<div class="diagram">{drawing}</div>'


def chips(settings: dict[str, str]) -> str:
    """Return settings as labels."""
    chips = (f'<span class="chip"><b>{escape(k)}</b>{escape(v)}</span>' for k, v in settings.items())
    return f'<div class="chips">{"".join(chips)}</div>' if settings else ""


def panel(title: str, body: str) -> str:
    """Return a titled box."""
    return f'<div class="panel"><h3>{escape(title)}</h3>{body}</div>'


def cell(text: str, best: bool) -> str:  # noqa: FBT001 - the two parts of a cell
    """Return a cell of a table, marked where it is the best or holds."""
    return f'<td class="best">{escape(text)}</td>' if best else f"<td>{escape(text)}</td>"


def quantile_legend() -> str:
    """Return the legend of the latency charts."""
    keys = (f'<span><i class="swatch {style}"></i>{name}</span>' for name, style in QUANTILE_STYLES.items())
    return f'<div class="legend">{"".join(keys)}</div>'


def quantiles(summary: Summary, index: int) -> dict[str, float]:
    """Return the quantiles of one latency in milliseconds."""
    latency = latencies(summary)[index][1]
    return {name: getattr(latency, name) for name in QUANTILE_STYLES}


def in_unit(rows: list[tuple[str, dict[str, float]]]) -> tuple[list[tuple[str, dict[str, float]]], str]:
    """Return rows in milliseconds as they are, or in seconds where they are long."""
    if max(max(values.values()) for _, values in rows) < 1000:
        return rows, "ms"
    return [(label, {name: value / 1000 for name, value in values.items()}) for label, values in rows], "s"


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


def _latency_panel(summary: Summary) -> str:
    """Return the percentiles as a table."""
    names = ("mean", "p50", "p90", "p95", "p99", "max")
    head = "".join(f"<th>{name}</th>" for name in names)
    lines = []
    for name, latency in latencies(summary):
        cells = (duration(getattr(latency, key)) if latency.count else "-" for key in names)
        lines.append(f"<tr><th>{name}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    rows = [
        (name, quantiles(summary, i)) for i, (name, latency) in enumerate(latencies(summary)) if latency.count
    ]
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    strips = "".join(range_chart(*in_unit([row])) for row in rows)
    left = f'<div class="scroll">{table}</div>'
    return panel(
        "Latency percentiles", f'<div class="grid2">{left}<div>{quantile_legend()}{strips}</div></div>'
    )


def _charts(scenario: Scenario) -> str:
    """Return what binds and what fills the memory, and the series over time."""
    shares = binding(scenario) + _memory(scenario.memory)
    first = [f'<div class="panel">{shares}</div>'] if shares else []
    return "".join(
        [*first, *_bounds_over_time(scenario), *_kv_over_time(scenario), _load_over_time(scenario)]
    )


def _memory(memory: dict[str, int]) -> str:
    """Return what takes the memory of an accelerator; empty where that is not known."""
    if not memory:
        return ""
    total = sum(memory.values())
    styles = dict(zip(memory, (*PARTS, *PARTS), strict=False))
    shares = [(f"{name} {gib(size)}", styles[name], size / total) for name, size in memory.items()]
    return f'<h3 class="gap">Where the memory of an accelerator goes</h3>{share_bar(shares)}'


def _edges_s(scenario: Scenario) -> list[float]:
    return [edge / 1e9 for edge in scenario.timeline.edges_ns]


def _bounds_over_time(scenario: Scenario) -> list[str]:
    """Return a panel of what launches were bound by; none where nothing is known."""
    shares = bound_shares(scenario.timeline)
    if not any(any(values) for values in shares.values()):
        return []
    layers = [Layer(name, style, [100 * value for value in shares[name]]) for name, style in BOUNDS.items()]
    chart = time_chart(_edges_s(scenario), layers, "% of the time of launches", stacked=True)
    return [panel("What binds, over time", chart)]


def _load_over_time(scenario: Scenario) -> str:
    """Return a panel of tokens a second, and of requests that run and wait."""
    line, edges = scenario.timeline, _edges_s(scenario)
    tokens = [Layer("tokens", "main", line.rates("tokens"))]
    styles = {"waiting": "warn", "running": "second"}
    requests = [Layer(name, style, line.mean_levels(name)) for name, style in styles.items()]
    speed = time_chart(edges, tokens, "tok/s")
    return panel(
        "Output throughput over time",
        f'{speed}<h3 class="gap">Requests over time</h3>{time_chart(edges, requests, "requests")}',
    )


def _kv_over_time(scenario: Scenario) -> list[str]:
    """Return a panel of the pool by kind of slot, and of the slots that are not committed, which those dwarf."""
    kv, line, edges = scenario.summary.kv, scenario.timeline, _edges_s(scenario)
    if kv is None:
        return []
    slots = kv.pages * kv.page_size
    layers = [Layer(kind, kind, line.mean_levels(kind)) for kind in KINDS]
    chart = time_chart(edges, layers, "token slots", stacked=True, ceiling=("pool", float(slots)))
    text = (
        f"The pool holds {slots:,} token slots: {kv.pages:,} pages of {kv.page_size}. Of what requests reserve,"
        f" {percent(kv.unused_share)} holds nothing: ends of pages, and room for drafts to come."
    )
    for size, use in kv.tiers.items():
        text += f" Tier {size}: {percent(use['unused_share'])} of {short(use['mean_pages'])} pages."
    body = f'{chart}<p class="note">{text}</p>'
    ahead = [layer for layer in layers if layer.name != KINDS[0] and any(layer.values)]
    if ahead:
        chart = time_chart(edges, ahead, "token slots", stacked=True)
        body += f'<h3 class="gap">KV of rows that are not committed</h3>{chart}'
    return [panel("KV occupancy over time, by kind", body)]
