"""Parts of the HTML report about load and ceilings: who wins at which load, and what binds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from fsm_spec.simulator.chart import Line, load_chart, share_bar, short
from fsm_spec.simulator.report import Scenario

STYLES = ("main", "second", "third", "warn", "fourth")
BOUNDS = {"memory": "committed", "compute": "provisional", "latency": "scratch"}
PARTS = ("committed", "second", "provisional", "third", "warn", "fourth", "scratch")
MOST_PARTS = 6


def users_of(scenario: Scenario) -> float | None:
    """Return the load of a scenario: users of a closed loop, requests a second of an open one."""
    kind, _, value = scenario.settings.get("arrivals", "").partition(":")
    number = value.partition(":")[0]
    try:
        return float(number) if kind in ("closed", "poisson", "constant", "gamma", "weibull") else None
    except ValueError:
        return None


def by_load(scenarios: Sequence[Scenario]) -> str:
    """Return charts over the load, one line a spec, and sentences that say who wins where; empty for one load."""
    names = list(dict.fromkeys(scenario.name for scenario in scenarios))
    loads = sorted({load for scenario in scenarios if (load := users_of(scenario)) is not None})
    if len(loads) < 2 or len({scenario.settings["arrivals"].partition(":")[0] for scenario in scenarios}) > 1:
        return ""
    unit = "users" if scenarios[0].settings["arrivals"].startswith("closed") else "requests/s"
    labels = _labels(scenarios, names)

    def lines(read: Callable[[Scenario], float]) -> list[Line]:
        found = []
        for index, label in enumerate(labels):
            points = [(users_of(each) or 0.0, read(each)) for each in labels[label]]
            found.append(Line(label, STYLES[index % len(STYLES)], sorted(points)))
        return found

    speed = lines(lambda each: each.summary.throughput_tok_s)
    charts = [
        ("Output throughput", load_chart(speed, unit, "tok/s")),
        (
            "Speed of one user, first token included",
            load_chart(lines(lambda each: each.summary.user_tok_s or 0.0), unit, "tok/s"),
        ),
        (
            "Tokens a round",
            load_chart(lines(lambda each: each.summary.acceptance_length or 0.0), unit, "tokens"),
        ),
    ]
    if len(speed) > 1:
        base = dict(speed[0].points)
        gains = [
            Line(line.name, line.style, [(x, y / base[x]) for x, y in line.points if base.get(x)])
            for line in speed
        ]
        charts.append((f"Throughput relative to {speed[0].name}", load_chart(gains, unit, "times", mark=1.0)))
    panels = "".join(f'<div class="panel"><h3>{escape(title)}</h3>{chart}</div>' for title, chart in charts)
    fair = [line for line in speed if all(each.comparable for each in labels[line.name])]
    said = "".join(f'<p class="verdict">{escape(text)}</p>' for text in winners(fair, unit))
    return f'<h2 id="by-load">By load</h2>{said}<div class="grid2">{panels}</div>'


def _labels(scenarios: Sequence[Scenario], names: Sequence[str]) -> dict[str, list[Scenario]]:
    """Group the scenarios into lines: by spec, and by policy and parameters where one spec has several."""
    groups: dict[str, list[Scenario]] = {}
    for name in names:
        mine = [scenario for scenario in scenarios if scenario.name == name]
        policies = {(each.settings.get("policy"), each.settings.get("parameters")) for each in mine}
        for each in mine:
            more = each.settings.get("tiers") or each.settings.get("parameters", "")
            groups.setdefault(f"{name} ({more})" if len(policies) > 1 and more else name, []).append(each)
    return groups


def winners(lines: Sequence[Line], unit: str) -> list[str]:
    """Say which line is highest over which range of loads, and by how much over the next one."""
    if len(lines) < 2:
        return []
    spans: list[tuple[str, list[float], list[float]]] = []
    for load in sorted({x for line in lines for x, _ in line.points}):
        here = sorted(
            ((dict(line.points)[load], line.name) for line in lines if load in dict(line.points)),
            reverse=True,
        )
        if len(here) < 2:
            continue
        margin = here[0][0] / here[1][0] if here[1][0] else float("inf")
        if spans and spans[-1][0] == here[0][1]:
            spans[-1][1].append(load)
            spans[-1][2].append(margin)
        else:
            spans.append((here[0][1], [load], [margin]))
    said = []
    for name, loads, margins in spans:
        where = (
            f"at {short(loads[0])}" if len(loads) == 1 else f"from {short(loads[0])} to {short(loads[-1])}"
        )
        low, high = min(margins), max(margins)
        times = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
        said.append(f"{name} has the highest throughput {where} {unit}: {times} times the next one.")
    return said


def binding(scenario: Scenario) -> str:
    """Return bars of what the accelerator's time was bound by and what it was spent on; empty where unknown."""
    bill = scenario.bill
    if bill is None or not bill.part_share:
        return ""
    bounds = [(name, style, bill.bound_share.get(name, 0.0)) for name, style in BOUNDS.items()]
    largest = sorted(bill.part_share.items(), key=lambda pair: -pair[1])
    shown = largest[:MOST_PARTS]
    rest = sum(share for _, share in largest[MOST_PARTS:])
    parts = [(name, PARTS[index], share) for index, (name, share) in enumerate(shown)]
    if rest > 0:
        parts.append(("rest", PARTS[-1], rest))
    waits = f"The accelerator waits {100 * bill.idle_share:.0f} % of the time."
    return (
        "<h3>What binds: share of the accelerator&#x27;s time</h3>"
        f'{share_bar(bounds)}<h3 class="gap">What it is spent on</h3>{share_bar(parts)}'
        f'<p class="note">{waits}</p>'
    )
