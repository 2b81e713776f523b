"""The status page in headless Chromium: a person sees requests walk, and switches the policy."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crew import crew, slow
from live_server import Running, Serve
from playwright.sync_api import Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium")
LONG: dict[str, Any] = {"prompt": "hello hello hello", "max_tokens": 900, "ignore_eos": True, "n": 5}
# A loaded machine draws late.
expect.set_options(timeout=30_000)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no program chromium on the path")


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """Return a page of a browser; errors of its scripts fail the test that sees them."""
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1180, "height": 1250})
        yield opened
        browser.close()


@pytest.fixture
def busy(serve: Serve) -> Iterator[Running]:
    """Return a server that asks for a key, and five choices that take a while."""
    with serve("ngram", pages=1500, keys=("secret",), params={"shortest": 1}) as running:
        running.http.headers["authorization"] = "Bearer secret"
        started = threading.Event()

        def ask() -> None:
            body = {**LONG, "stream": True}
            with running.http.stream("POST", "/v1/completions", json=body) as response:
                for _ in response.iter_bytes():
                    started.set()

        thread = threading.Thread(target=ask)
        thread.start()
        assert started.wait(30)
        yield running
        thread.join(120)


def test_a_person_sees_requests_walk_and_switches_the_policy(page: Page, busy: Running) -> None:
    """States, pages, acceptance and every live request are there; a chosen policy is in force."""
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(busy.url)
    expect(page.locator("#fault")).to_contain_text("API key")
    # No panel is a blank box.
    expect(page.locator("#cards")).to_have_text("This server asks for an API key.")
    expect(page.locator("#places")).to_have_text("This server asks for an API key.")
    page.fill("#key", "secret")
    page.click("#key-form button")
    expect(page.locator("#spec")).to_have_text("ngram")
    expect(page.locator("#live tr")).to_have_count(5)
    expect(page.locator("#live td.path").first).to_contain_text("propose → verify → propose")
    expect(page.locator(".states .busy b")).to_have_text("5")
    expect(page.locator("#pages-text")).to_contain_text("committed")
    expect(page.locator("#places i").first).to_be_visible()
    expect(page.locator("#places div").first).to_have_text(re.compile(r"[\d.]+ %1"))
    assert page.evaluate("document.querySelector('#places i').getBoundingClientRect().height") > 30
    expect(page.locator(".waiting")).to_have_count(0)
    expect(page.locator("#diagram svg")).to_be_visible()
    page.select_option("#policy", "reserve")
    expect(page.locator("#policy-answer")).to_have_text("reserve is in force")
    shown = os.environ.get("FSM_SPEC_SCREENSHOT")
    if shown:
        page.screenshot(path=shown, full_page=True)
    expect(page.locator("#nobody")).to_be_visible(timeout=120_000)
    expect(page.locator(".states .busy")).to_have_count(0)
    assert faults == []


def test_a_person_sees_replicas_come_and_go(page: Page, folder: Path) -> None:
    """Each replica has a line: whether it is up, what runs there, its pages, and which life it is in."""
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    with crew(folder, spec="ar") as found:
        slow(found.links)
        page.emulate_media(color_scheme="dark")
        page.goto(found.running.url)
        rows = page.locator("#replica-rows tr")
        expect(rows).to_have_count(2)
        expect(rows.locator(".up")).to_have_count(2)
        # Prompts that begin alike would all go to one replica.
        body = {**LONG, "prompt": [letter * 40 for letter in "abcd"], "n": 1, "stream": True}
        with found.running.http.stream("POST", "/v1/completions", json=body):
            expect(rows.nth(1).locator("td").nth(2)).to_have_text("2")
            expect(rows.nth(1).locator("td").nth(4)).to_have_text(re.compile(r"[1-9]\d* of 300"))
            expect(page.locator("#live tr")).to_have_count(4)
            assert {"0", "1"} == set(page.locator("#live td:nth-child(2)").all_text_contents())
            shown = os.environ.get("FSM_SPEC_SCREENSHOT")
            if shown:
                page.screenshot(path=shown.replace(".png", "_replicas.png"), full_page=True)
        found.kill(0)
        expect(rows.first.locator("td").last).to_have_text("2")
        expect(rows.locator(".up")).to_have_count(2)
    page.emulate_media(color_scheme="light")
    assert faults == []


def test_the_dashboard_reads_metrics_that_exist(project: Path, server: Running) -> None:
    """A panel of a name that nobody exports would stay empty for ever."""
    path = project / "executor" / "server" / "dashboard.json"
    board = json.loads(path.read_text(encoding="utf-8"))
    server.complete(prompt="hello hello hello", max_tokens=40, temperature=0, ignore_eos=True)
    server.post("/v1/completions")
    names = set(server.metrics())
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    assert len(asked) > 10
    for expression in asked:
        for name in re.findall(r"(?:vllm|fsm_spec):\w+", expression):
            assert name in names, expression
