"""The report by load: who wins where, what binds, and that a browser shows the page."""

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fsm_spec.simulator.bill import bill
from fsm_spec.simulator.chart import Line, load_chart, share_bar
from fsm_spec.simulator.page import MOST_DETAILED, page, write_page
from fsm_spec.simulator.page_load import binding, by_load, winners
from fsm_spec.simulator.preparation import prepare
from fsm_spec.simulator.report import Scenario as Shown
from fsm_spec.simulator.scenario import Scenario


@pytest.fixture(scope="module")
def shown() -> list[Shown]:
    """Run two specs under two loads."""
    found = []
    for spec, accept in (("ar", None), ("uno_linear", "1,1,1")):
        for users in (1, 4):
            scenario = Scenario(
                spec=spec,
                model="smollm2-135m",
                hardware="h100",
                arrivals=f"closed:{users}",
                input="32",
                output="25",
                requests=8,
                accept=accept,
            )
            prepared = prepare(scenario)
            results = prepared.simulation().run()
            found.append(
                Shown(
                    prepared.table.name,
                    prepared.settings(),
                    results.summary,
                    results.timeline,
                    bill=bill(results, prepared.cost),
                )
            )
    return found


def test_winners_are_said_by_range_of_loads() -> None:
    """A crossing splits the range; margins are those over the next line."""
    lines = [
        Line("a", "main", [(1, 10.0), (8, 20.0), (64, 20.0)]),
        Line("b", "second", [(1, 5.0), (8, 16.0), (64, 30.0)]),
    ]
    assert [
        "a has the highest throughput from 1 to 8 users: 1.25 to 2.00 times the next one.",
        "b has the highest throughput at 64 users: 1.50 times the next one.",
    ] == winners(lines, "users")
    assert [] == winners(lines[:1], "users")


def test_charts_by_load_hold_every_point(shown: list[Shown]) -> None:
    """One line a spec, one dot a load, and the sentence of the winner; a single load has no such part."""
    text = by_load(shown)
    assert 4 * 4 == text.count("<circle")
    assert "uno_linear has the highest throughput from 1 to 4 users" in text
    assert "" == by_load(shown[:1])
    assert "Nothing happened" in load_chart([], "users", "tok/s")


def test_what_binds_adds_up(shown: list[Shown]) -> None:
    """Bars of bounds and of parts reach from end to end."""
    assert "What binds" in binding(shown[0])
    bar = share_bar([("a", "main", 0.25), ("b", "second", 0.75)])
    assert "a 25 %" in bar
    assert 'x="130.0"' in bar


def test_many_runs_leave_out_charts_over_time(shown: list[Shown]) -> None:
    """The page of a long sweep stays small; its overview stays whole."""
    many = shown * (MOST_DETAILED // len(shown) + 1)
    text = page(many)
    assert "charts over time are left out" in text
    assert "KV occupancy over time" in page(shown)
    assert "KV occupancy over time" not in text


def test_a_browser_shows_the_page(shown: list[Shown], tmp_path: Path) -> None:
    """Chromium lays the page out and finds every part; without one, only its structure is checked."""
    path = tmp_path / "report.html"
    write_page(path, shown)
    browser = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if browser is None:
        HTMLParser().feed(path.read_text(encoding="utf-8"))
        pytest.skip("no Chromium is installed: only the structure of the page was checked")
    command = [
        browser,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    done = subprocess.run(
        [*command, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.count("<svg") == path.read_text(encoding="utf-8").count("<svg")
    assert "By load" in done.stdout
    shot = tmp_path / "report.png"
    subprocess.run(
        [*command, "--window-size=1200,1600", f"--screenshot={shot}", path.as_uri()],
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert shot.stat().st_size > 20_000
