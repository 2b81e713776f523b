"""`serve --replicas` under Ray Serve: processes, a killed one, draining; skipped where the layer is not installed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import httpx
import pytest
from live_server import Running, process
from typer.testing import CliRunner

from fsm_spec.cli import application

LONG = {"ignore_eos": True}


def test_without_ray_a_sentence_names_the_layer(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has not installed it learns how, before anything is loaded."""
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    spec = project / "docs" / "examples" / "echo.yaml"
    options = ["--port", "0", "--replicas", "2", "--model", "nowhere"]
    done = CliRunner().invoke(application(), ["serve", str(spec), *options])
    assert done.exit_code == 2
    assert "--replicas needs Ray Serve" in done.stderr
    assert "fsm-spec[ray]" in done.stderr
    assert done.stderr.count("\n") == 1


def replicas(running: Running) -> list[dict[str, int]]:
    """Read what `/v1/fsm` says of the replicas."""
    found: list[dict[str, int]] = running.http.get("/v1/fsm").json()["replicas"]
    return found


def test_a_killed_replica_and_a_drain(folder: Path, tmp_path: Path) -> None:
    """A killed process ends its own streams only and is replaced; SIGTERM lets streams end; no process is left."""
    pytest.importorskip("ray.serve", reason="Ray Serve is a layer of its own: pip install fsm-spec[ray]")
    options = ("--pages", "300", "--page-size", "4", "--drain", "300", "--replicas", "2")
    log = tmp_path / "log"
    body = {"prompt": "hello", "max_tokens": 500, "stream": True, "n": 2, **LONG}
    with process(folder, log, "ar", *options) as running:
        first = replicas(running)
        prompts = [letter * 40 for letter in "abcd"]
        found = [running.complete(prompt=prompt, max_tokens=2, temperature=0) for prompt in prompts * 2]
        assert found[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 36
        with running.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            assert [1, 1] == [each["running"] for each in replicas(running)]
            os.kill(first[0]["process"], signal.SIGKILL)
            last = [line for line in lines if line][-2]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "replica_lost"
        assert running.complete(prompt="hello", max_tokens=3)["choices"]
        until = time.monotonic() + 120
        while not (all(each["up"] for each in replicas(running)) and replicas(running)[0]["losses"]):
            assert time.monotonic() < until
            time.sleep(0.1)
        assert replicas(running)[0]["process"] != first[0]["process"]
        with running.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            assert running.process is not None
            running.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert "error" not in rest[-2]
        left = [first[1]["process"], *(each["process"] for each in first[:1])]
        assert running.process.wait(180) == 0
    for each in left:
        with pytest.raises(ProcessLookupError):
            os.kill(each, 0)


def test_what_a_replica_refuses_ends_the_start(folder: Path, tmp_path: Path) -> None:
    """Its sentence is the command's, with no traceback, and no process stays."""
    pytest.importorskip("ray.serve", reason="Ray Serve is a layer of its own: pip install fsm-spec[ray]")
    log = tmp_path / "log"
    with (
        pytest.raises(AssertionError, match="the server ended"),
        process(folder, log, "ngram", "--replicas", "2", "--mask-id", "99999"),
    ):
        raise httpx.ReadError("it must not start")
    said = log.read_text()
    assert "mask id 99999 is out of range" in said
    assert "Traceback" not in said
