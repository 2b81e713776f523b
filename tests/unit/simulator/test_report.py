"""Reports: tables that fit a terminal, and a page that needs no network."""

import dataclasses
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fsm_spec.errors import UserError
from fsm_spec.simulator.chart import Layer, range_chart, short, ticks, time_chart
from fsm_spec.simulator.metrics import AMOUNTS, LEVELS, KvUse, RequestLog, summarise
from fsm_spec.simulator.page import page, write_page
from fsm_spec.simulator.report import Row, Scenario, print_report, titles
from fsm_spec.simulator.slo import parse_slos
from fsm_spec.simulator.sweep import print_sweep
from fsm_spec.simulator.timeline import Timeline

VOID = {"meta", "br"}


def scenario(name: str, acceptance: str = "0.8", *, drafts: int = 1) -> Scenario:
    """Return a small scenario with two finished requests."""
    log = RequestLog(np.array([0, 5_000_000]), np.array([64, 64]))
    log.first_token_ns[:] = [20_000_000, 30_000_000]
    log.finish_ns[:] = [120_000_000, 1_330_000_000]
    log.emitted[:], log.prefill_emitted[:], log.rounds[:], log.forwards[:] = 11, 1, 5, 5
    log.drafted[:], log.accepted[:] = 5 * drafts, 5 * drafts
    line = Timeline(LEVELS, AMOUNTS, points=8)
    line.record(0, (2, 100, 2 * drafts, 0, 1, 1), (0, 0, 0, 0))
    line.record(1_000_000_000, (4, 200, 4 * drafts, 0, 2, 0), (22, 300, 500, 200))
    line.close(1_330_000_000)
    summary = summarise(log, 1_330_000_000, KvUse.of(line, pages=8, page_size=64))
    settings = {"model": "Llama <8B>", "hardware": "h100", "acceptance": acceptance}
    drawing = "<?xml version='1.0'?>\n<svg><text>verify</text></svg>"
    return Scenario(name, settings, summary, line, drawing, ("warm-up is included",))


def printed(scenarios: list[Scenario]) -> str:
    """Return what a terminal of 100 columns shows."""
    out = io.StringIO()
    print_report(Console(file=out, width=100, color_system=None), scenarios)
    return out.getvalue()


def test_one_scenario_in_the_terminal() -> None:
    """Settings, counts, latencies with both units and KV by kind are there."""
    text = printed([scenario("sketch[/]")])
    assert "sketch[/]" in text
    for words in (
        "2 of 2 requests finished",
        "p99",
        "130 ms",
        "1.32 s",
        "committed",
        "provisional",
        "31.2 %",
        "warm-up",
    ):
        assert words in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_a_comparison_in_the_terminal() -> None:
    """Shared settings are said once, what differs stands with the name."""
    text = printed([scenario("first[x]", "0.8"), scenario("second", "none", drafts=0)])
    assert 1 == text.count("Llama <8B>")
    assert "acceptance none" in text
    assert "first[x]" in text
    assert re.search(r"drafts accepted\W+100\.0 %\W+-", text)


def test_numbers_are_never_cut() -> None:
    """More scenarios than fit beside each other go into several tables, whole; the best is sought over all."""
    out = io.StringIO()
    many = [scenario(f"an_algorithm_of_a_long_name_{index}") for index in range(5)]
    print_report(Console(file=out, width=80, color_system=None), many)
    text = out.getvalue()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    assert 3 == text.count("TPOT p50")


def test_memory_states_and_tiers_have_tables() -> None:
    """What takes the memory, where requests spend their time, and what each tier leaves empty."""
    one = scenario("sketch")
    kv = one.summary.kv
    assert kv is not None
    tier = {"mean_pages": 3.0, "mean_running": 1.5, "unused_share": 0.25}
    more = replace(one.summary, kv=replace(kv, tiers={4: tier}))
    known = replace(one, summary=more, memory={"weights": 3 * 2**30}, dwell_s={"draft": 1.0, "verify": 3.0})
    text = printed([known])
    for pattern in (r"weights\W+3\.00", r"verify\W+3\W+75\.0 %", r"4\W+3\W+1\.5\W+25\.0 %"):
        assert re.search(pattern, text), pattern
    html = page([known])
    for words in ("What binds, over time", "memory of an accelerator goes", "Tier 4: 25.0 % of 3 pages"):
        assert words in html
    idle = Timeline(LEVELS, ("tokens",))
    idle.close(1_000_000)
    assert "What binds, over time" not in page([replace(one, timeline=idle)])


class Structure(HTMLParser):
    """Check that every tag is closed by its own, and collect what a page would load."""

    def __init__(self) -> None:
        """Start outside of all tags."""
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember the tag and what it refers to."""
        if tag not in VOID:
            self.open.append(tag)
        self.loads += [str(value) for name, value in attrs if name in {"src", "href"}]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Pass by tags that close themselves."""

    def handle_endtag(self, tag: str) -> None:
        """Match the tag that was opened last."""
        assert self.open.pop() == tag


@pytest.mark.parametrize("count", [1, 2])
def test_page_is_whole_and_loads_nothing(count: int) -> None:
    """The page is well-formed, self-contained, escaped, and the same for the same results."""
    scenarios = [scenario(f"spec {i}", f"0.{i}") for i in range(count)]
    text = page(scenarios)
    parser = Structure()
    parser.feed(text)
    assert [] == parser.open
    assert all(link.startswith("#") and f'id="{link[1:]}"' in text for link in parser.loads)
    assert (count > 1) == bool(parser.loads)
    assert "url(" not in text
    assert "<script" not in text
    assert "<?xml" not in text
    assert "Llama &lt;8B&gt;" in text
    assert (">Comparison</h2>" in text) == (count > 1)
    # One spec is drawn once, however many runs there are.
    assert 1 == text.count('class="diagram"')
    assert "KV of rows that are not committed" in text
    assert text == page(scenarios)


def test_page_of_a_run_without_results() -> None:
    """Nothing finished, nothing recorded: still a page."""
    line = Timeline(LEVELS, AMOUNTS)
    empty = Scenario("idle", {}, summarise(RequestLog(np.array([0]), np.array([1])), 0), line)
    text = page([empty])
    assert "Nothing happened." in text
    assert "no request got this far" in text
    assert "0 of 1 request finished" in printed([empty])


def test_page_is_written_or_refused(tmp_path: Path) -> None:
    """A place that cannot be written gets a sentence; folders are not made, as no other output makes them."""
    path = tmp_path / "report.html"
    write_page(path, [scenario("sketch")])
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(UserError, match="cannot be written"):
        write_page(tmp_path / "new" / "report.html", [scenario("sketch")])


def test_ticks_are_round_and_cover() -> None:
    """Axis marks are round numbers whose last one is not below the largest value."""
    assert [0, 20, 40, 60, 80, 100] == ticks(97)
    assert [0.0, 1.0] == ticks(0)
    assert all(ticks(high)[-1] >= high for high in (1e-9, 0.3, 7, 99.9, 12_345, 1e12))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.125, "0.125"),
        (1234.4, "1,234"),
        (12_500, "12.5k"),
        (999_999, "1000k"),
        (3.2e6, "3.2M"),
        (5e9, "5G"),
    ],
)
def test_short_numbers(value: float, text: str) -> None:
    """Three digits are enough for a label."""
    assert text == short(value)


def test_charts_hold_their_values() -> None:
    """A stacked chart ends at the sum of its layers; a far ceiling does not flatten it."""
    layers = [Layer("low", "a", [1, 2]), Layer("high", "b", [3, 0])]
    near = time_chart([1, 2], layers, "x", stacked=True, ceiling=("pool", 5))
    assert "low: 2 x\nhigh: 0 x" in near
    assert 'class="ceiling"' in near
    assert 'class="ceiling"' not in time_chart([1, 2], layers, "x", stacked=True, ceiling=("pool", 500))
    assert "p50: 3 ms" in range_chart([("TTFT", {"p50": 3.0, "p99": 4.0})], "ms")


def test_equal_marks_are_rings() -> None:
    """The mark of p50 comes last and smallest, so that an equal p99 does not hide it."""
    marks = re.findall(
        r'class="mark (m\d)"[^>]* r="(\d)"', range_chart([("TTFT", {"p50": 3, "p99": 3})], "ms")
    )
    assert [("m1", "5"), ("m0", "4")] == marks


def test_several_concurrencies_are_told_apart() -> None:
    """Names tell the users, in the page too, and a best is one among runs with the same users."""
    runs = []
    for index, (name, load) in enumerate([("a", "1"), ("a", "8"), ("b", "1"), ("b", "8")]):
        one = scenario(name)
        summary = dataclasses.replace(one.summary, preemptions=index)
        settings = one.settings | {"arrivals": f"closed:{load}"}
        runs.append(dataclasses.replace(one, settings=settings, summary=summary))
    assert ["a, 1 user", "a, 8 users", "b, 1 user", "b, 8 users"] == titles(runs)
    assert ["a", "b"] == titles(runs[::2])
    row = Row("preemptions", lambda summary: float(summary.preemptions), short, -1)
    assert [("0", True), ("1", True), ("2", False), ("3", False)] == row.cells(runs)
    text = page(runs)
    names, users = '<th colspan="2">a</th><th colspan="2">b</th>', "<th>1 user</th><th>8 users</th>"
    assert f"{names}</tr><tr>{users * 2}</tr>" in text
    assert all(f"<summary><b>{name}</b>" in text for name in titles(runs))


def test_limits_are_held_or_broken_in_the_page() -> None:
    """One run and several say what was measured of which limit, beside the goodput."""
    limits = tuple(parse_slos(["ttft_p95=500ms", "e2e_max=1s"]))
    one = replace(scenario("first"), slos=limits)
    for html in (page([one]), page([one, replace(one, name="second")])):
        for words in ("25 ms of 500 ms: held", "1.32 s of 1 s: broken", "TTFT p95", "end-to-end max"):
            assert words.replace("25 ms", "24.8 ms") in html, words
    assert "first: TTFT p95 24.8 ms of 500 ms: held" in printed([one])
    assert "Limits" not in page([scenario("first")])


def test_names_are_not_broken() -> None:
    """A table that is too wide with a long name stands closer together, and the name stays whole."""
    out = io.StringIO()
    one = scenario("linear_spec_threshold")
    one = replace(one, settings={**one.settings, "arrivals": "closed:8"})
    print_sweep(Console(file=out, width=80, color_system=None), [one])
    assert "linear_spec_threshold" in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 80
