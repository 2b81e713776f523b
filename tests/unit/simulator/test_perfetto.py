"""The Perfetto file: spans nest, rounds stand in the decoding of their request, launches in their iteration."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fsm_spec.cli import application
from fsm_spec.simulator import rounds
from fsm_spec.simulator.perfetto import ITERATIONS, REQUESTS

RUN = "simulate isd --model smollm2-135m --hardware h100 --arrivals poisson:900 --input 40 --output 30 --requests 12"
RUN += " --accept 0.8,0.7,0.6 --policy preempt --pages 22 --page-size 8 --json"


def run(*more: str) -> dict[str, Any]:
    """Run the command and read its JSON."""
    result = CliRunner().invoke(application(), [*RUN.split(), *more])
    assert 0 == result.exit_code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return {key: value for key, value in found.items() if key != "run"}


def spans(path: Path) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Give the spans of each track, in the order of the file, which a viewer nests by."""
    tracks = defaultdict(list)
    for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def test_rounds_stand_in_their_requests_and_iterations(tmp_path: Path) -> None:
    """Every emitted token is in one round or chunk, spans nest without overlaps, and the results are the same."""
    path = tmp_path / "p.json"
    document = run("--perfetto", str(path))
    assert document == run()
    assert document["preemptions"] > 0
    tracks = spans(path)
    for track in tracks.values():
        ends: list[float] = []
        for event in sorted(track, key=lambda each: (each["ts"], -each["dur"])):
            while ends and ends[-1] <= event["ts"] + 1e-6:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1] + 1e-3
            ends.append(event["ts"] + event["dur"])
    emitted = 0
    for request in range(12):
        inside = tracks[REQUESTS, request][3:]
        names = {event["name"] for event in inside}
        assert {"cold", "verify"} <= names
        emitted += sum(event["args"]["emitted"] for event in inside)
    assert emitted == document["emitted_tokens"]
    launches = [event for event in tracks[ITERATIONS, 0] if not event["name"].startswith("iteration")]
    assert len(launches) == document["launches"]
    assert any("verify x" in event["name"] and "prefill" in event["name"] for event in launches)
    assert all(one["ts"] <= other["ts"] for one, other in pairwise(launches))


def test_a_long_run_is_cut_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number of slices rounds are left out, and the title of their group says from when on."""
    monkeypatch.setattr(rounds, "MOST_SLICES", 20)
    path = tmp_path / "p.json"
    run("--perfetto", str(path))
    text = path.read_text(encoding="utf-8")
    assert "s on are left out" in text
    assert len(spans(path)[ITERATIONS, 0]) < 40
