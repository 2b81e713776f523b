"""`fsm-spec serve` before it serves: what is refused at the start, in one sentence and before a model loads."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_server import SERVING, Running, Serve, in_thread
from typer.testing import CliRunner

from fsm_spec.cli import application
from fsm_spec.errors import UserError
from fsm_spec.executor.command import trace_file
from fsm_spec.executor.models.load import SafetensorsFolder
from fsm_spec.executor.server import command
from fsm_spec.executor.server.command import Serving, build, judge
from fsm_spec.load import load
from fsm_spec.replay import replay


@pytest.mark.parametrize(
    ("spec", "options", "sentence"),
    [
        ("six_mistakes.yaml", (), "six_mistakes.yaml:3:19: lossless.claim"),
        ("echo_slot.yaml", (), "is refuted: only verified rows are committed"),
        ("slots.yaml", (), "abstract model"),
        ("echo.yaml", ("--policy", "greedy"), "block each other"),
        ("echo.yaml", ("--policy", "nobody"), "no policy is called"),
        ("echo.yaml", ("--set", "k=99"), "k=99 is out of range"),
        ("echo.yaml", ("--draft", "x"), "write NAME=FOLDER, NAME=layers:N or NAME=random"),
        (
            "draft_lm",
            (),
            "give --draft draft=FOLDER, draft=layers:N (the target's first N layers) or draft=random",
        ),
        (
            "dflash",
            (),
            "dflash drafts with a context head called draft; give --draft draft=FOLDER or draft=random",
        ),
        ("draft_lm", ("--draft", "draft=layers:x"), "'x' is no number of layers; write layers:4"),
        (
            "dflash",
            ("--draft", "draft=layers:2"),
            "layers of the target are a language model, no context_head",
        ),
        ("echo.yaml", ("--log-format", "xml"), "give text or json"),
        ("echo.yaml", ("--model", "nowhere"), 'there is no model "nowhere"'),
        ("echo.yaml", ("--mask-id", "9999"), "mask id 9999 is out of range"),
        ("echo.yaml", ("--adapter", "nowhere"), "has no adapter_config.json"),
        ("echo.yaml", ("--draft", "draft=x"), "has no draft model of that name"),
    ],
)
def test_what_cannot_be_served_is_refused(
    project: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    spec: str,
    options: tuple[str, ...],
    sentence: str,
) -> None:
    """A broken or refuted spec, a policy that stands still, or a wrong option never has weights read."""
    monkeypatch.delattr(SafetensorsFolder, "__enter__")
    path = project / "docs" / "examples" / spec if spec.endswith(".yaml") else spec
    # Any port: tests run side by side, and of two servers on one port the second ends before all else.
    given = ["serve", str(path), "--model", str(folder), "--port", "0", *options]
    done = CliRunner().invoke(application(), given)
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_a_server_writes_a_trace(folder: Path, tmp_path: Path) -> None:
    """All requests of a server stand in its trace, which the spec allows; several replicas have no common one."""
    path = tmp_path / "trace.jsonl"
    run = Serving(**{**SERVING, "spec": "ngram", "model": str(folder), "pages": 200, "trace": path})
    with (
        trace_file(run.trace) as out,
        in_thread(build(run, {"names": ("tiny",)}, load("ngram"), trace=out)) as running,
    ):
        for prompt in ("hello", "hello you"):
            running.complete(prompt=prompt, max_tokens=9, temperature=0, ignore_eos=True)
    done = replay(path)
    assert ("ngram", 2, 18) == (done.spec, done.ended, done.emitted)


def test_a_refuted_spec_is_served_on_demand_only(project: Path, serve: Serve) -> None:
    """With --unproved it runs, and everybody can read the verdict."""
    loaded = load(str(project / "docs" / "examples" / "echo_slot.yaml"))
    with pytest.raises(UserError, match=r"see fsm-spec check mine\.yaml, or serve it with --unproved"):
        judge(loaded, {}, "mine.yaml", unproved=False)
    assert judge(loaded, {}, "mine.yaml", unproved=True) == "refuted"
    assert judge(load("ar"), {}, "ar", unproved=False) == "proved"
    with serve("ar") as running:
        assert running.http.get("/v1/fsm").json()["verdict"] == "proved"


def test_synthetic_acceptance_is_told_to_whoever_asks(serve: Serve, server: Running) -> None:
    """Rounds make the progress that is given, the lists of models say so, and a grammar is refused."""
    with serve("isd", synthetic_acceptance="geometric:1") as running:
        done = running.complete(prompt="hello", max_tokens=41, speculation_stats=True, ignore_eos=True)
        # A cold round for one token, then rounds of four.
        assert 11 == done["speculation"][0]["rounds"]
        given = {"acceptance": "geometric:1"}
        assert given == running.http.get("/v1/fsm").json()["synthetic"]
        assert given == running.http.get("/v1/models").json()["data"][0]["synthetic"]
        asked = {"prompt": "x", "response_format": {"type": "json_object"}}
        refused = running.http.post("/v1/completions", json=asked)
        assert (400, True) == (
            refused.status_code,
            "a grammar cannot be kept" in refused.json()["error"]["message"],
        )
    assert "synthetic" not in server.http.get("/v1/models").json()["data"][0]


def test_a_pool_takes_its_share_of_the_memory(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --pages it is a quarter of what is free, but no more than a bound: a page of this model has 1 KiB."""
    monkeypatch.setattr(command, "_MOST_KV", 2**20)
    with serve("ar", pages=None) as running:
        assert {"pages": 1024, "page_size": 4} == running.http.get("/v1/fsm").json()["pool"]


def test_the_fingerprint_changes_with_what_answers_depend_on(serve: Serve, server: Running) -> None:
    """Another parameter, number format or policy gives another fingerprint; the same start the same one."""

    def fingerprint(running: Running) -> str:
        return str(running.complete(prompt="a", max_tokens=1)["system_fingerprint"])

    found = {fingerprint(server)}
    with serve("ngram", params={"shortest": 1}, pages=400) as same:
        assert {fingerprint(same)} == found
    for options in ({}, {"dtype": "bfloat16"}, {"policy": "reserve"}, {"mask_id": 5}):
        with serve("ngram", pages=400, **options) as other:
            found.add(fingerprint(other))
    assert len(found) == 5
