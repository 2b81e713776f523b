"""The command `fsm-spec simulate`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from pyarrow import parquet  # type: ignore[import-untyped]
from typer.testing import CliRunner, Result

from fsm_spec.cli import application
from fsm_spec.errors import UserError
from fsm_spec.load import load
from fsm_spec.replay import replay
from fsm_spec.simulator.parquet import TIMES
from fsm_spec.simulator.sweep import by_spec

BASE = ["--model", "smollm2-135m", "--hardware", "H100"]
SMALL = [*BASE, "--arrivals", "poisson:50", "--input", "16", "--output", "8", "--requests", "12"]
UNO = ["simulate", "uno_linear", *SMALL, "--accept", "0.8,0.7,0.6", "--seed", "1"]


@cache
def app() -> typer.Typer:
    """Build the application once."""
    return application()


def run(*arguments: str) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(app(), arguments)


def value(*arguments: str) -> Any:  # noqa: ANN401 - JSON
    """Run with `--json` and read the one value."""
    result = run(*arguments, "--json")
    assert 0 == result.exit_code, result.output
    return json.loads(result.stdout)


def refusal(*arguments: str) -> str:
    """Run what must be refused, and give the sentence."""
    result = run(*arguments)
    assert 2 == result.exit_code, result.output
    assert "Traceback" not in result.output
    return result.stderr


def without_run(document: dict[str, Any]) -> str:
    """Write a result without what may vary."""
    return json.dumps({key: part for key, part in document.items() if key != "run"})


def test_json_holds_what_checks_rely_on() -> None:
    """Keys, and what may vary between two runs, stand where they were promised."""
    document = value(*UNO)
    promised = {
        "requests",
        "rounds",
        "tpot_ms",
        "ttft_ms",
        "throughput_tok_s",
        "acceptance_length",
        "preemptions",
        "kv",
    }
    assert promised <= set(document)
    assert {"loop_seconds", "compile_seconds", "peak_rss_mb"} <= set(document["run"])
    assert 12 == document["finished"]
    assert "/" not in without_run({**document, "over_time": {}})
    assert len(document["over_time"]["end_s"]) == len(document["over_time"]["committed"])


def test_same_seed_same_bytes() -> None:
    """Two runs of one seed differ under `run` alone; another seed gives another run."""
    first, again, other = value(*UNO), value(*UNO), value(*UNO[:-1], "2")
    assert without_run(first) == without_run(again)
    assert first["ttft_ms"] != other["ttft_ms"]


def test_tables_and_files(tmp_path: Path) -> None:
    """One run is shown in detail; its trace replays; its report is one page with the drawn states."""
    trace, page = tmp_path / "t.jsonl", tmp_path / "r.html"
    result = run(*UNO, "--trace", str(trace), "--report", str(page))
    assert 0 == result.exit_code
    assert "acceptance length" in result.stdout
    assert 12 == replay(trace).ended
    html = page.read_text(encoding="utf-8")
    assert "<svg" in html
    assert "verify" in html


def test_several_specs_and_concurrencies() -> None:
    """Options go to the specs they have an effect on; a list of concurrencies gives a line each."""
    many = [
        "simulate",
        "uno_linear",
        "ar",
        "ngram",
        *BASE,
        "--arrivals",
        "closed:1,2",
        "--input",
        "8",
        "--output",
        "8",
    ]
    many += ["--requests", "6", "--accept", "geometric:0.7", "--lookup", "0.5", "--set", "b=5"]
    result = run(*many)
    assert 0 == result.exit_code, result.output
    assert not [line for line in result.stdout.splitlines() if line.endswith(" ")]
    assert all(word in result.stdout for word in ("uno_linear", "ngram", "b=5", "users"))
    documents = value(*many)
    assert ["uno_linear", "uno_linear", "ar", "ar", "ngram", "ngram"] == [each["spec"] for each in documents]
    assert ["closed:1", "closed:2"] * 3 == [each["scenario"]["arrivals"] for each in documents]
    assert "accept" not in documents[2]["scenario"]
    priced = run(*many, "--slo", "ttft_p95=1s", "--slo", "tpot_p95=1us", "--price-per-gpu-hour", "3")
    assert all(word in priced.stdout for word in (" ms held", " ms broken", "goodput", "a million"))
    compared = run("simulate", "uno_linear", "ar", *SMALL, "--accept", "0.8,0.7,0.6")
    assert 0 == compared.exit_code
    assert "TTFT p95" in compared.stdout


def test_a_file_may_be_named_as_its_spec_calls_itself(tmp_path: Path) -> None:
    """Tables show that name; a value by both names is given twice."""
    path = tmp_path / "mine.yaml"
    path.write_text(load("ar").text.replace("spec: ar", "spec: mine", 1), encoding="utf-8")
    specs = ("ar", str(path))
    found = by_spec({"drafter": [f"{path}=9:3"]}, specs)
    assert found == by_spec({"drafter": ["mine=9:3"]}, specs) == {"drafter": {str(path): "9:3"}}
    with pytest.raises(UserError, match="has a value already"):
        by_spec({"drafter": ["mine=9:3", f"{path}=9:3"]}, specs)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["uno_linear", *SMALL, "--accept", "0.8,0.7"], ["2 rates", "3 drafts"]),
        (["uno_linear", *SMALL, "--accept", "0.8,0.7,0.6", "--set", "b=6"], ["3 rates", "5 drafts"]),
        (["uno_linear", *SMALL], ["uno_linear judges 3 drafts", "--accept"]),
        (["ar", *SMALL, "--accept", "0.5"], ["ar judges 0 drafts"]),
        (["ar", "uno_linear", *SMALL, "--accept", "0.5"], ["1 rate,", "uno_linear judges 3 drafts"]),
        (["ar"], ["--model, --hardware and --arrivals", "--hardware h100"]),
        (["ar", *BASE], ["simulate needs --arrivals;"]),
        (["ar", *SMALL, "--accept", "geometric:0.5"], ["no effect", "0 drafts"]),
        (["ar", "ar", *SMALL, "--accept", "geometric:0.5"], ["no effect"]),
        (["ngram", *SMALL, "--accept", "geometric:0.5"], ["--lookup"]),
        (["ngram", *SMALL, "--accept", "geometric:0.5", "--lookup", "2"], ["outside 0 to 1"]),
        (["ar", *SMALL, "--lookup", "0.5"], ["--lookup would have no effect"]),
        (["ar", *SMALL, "--adapter-rank", "8"], ["--adapter-rank would have no effect"]),
        (["ar", *SMALL, "--set", "b=4"], ["no parameter 'b'"]),
        (["uno_linear", "ar", *SMALL, "--set", "bb=4", "--accept", "0.8,0.7,0.6"], ['did you mean "b"']),
        (["uno_linear", *SMALL, "--set", "b=99", "--accept", "0.5"], ["2 to 16"]),
        (["ar", *SMALL, "--max-running", "0"], ["at least 1"]),
        (["ar", *SMALL, "--policy", "holdbak"], ['did you mean "holdback"']),
        (["ar", *SMALL, "--pages", "1", "--page-size", "4"], ["larger pool"]),
        (["ar", *SMALL, "--dtype", "fp7"], ["fp7"]),
        (["ar", *SMALL, "--tp", "7"], ["does not divide"]),
        (
            ["ar", *BASE, "--arrivals", "closed:1,1", "--input", "1", "--output", "1", "--requests", "1"],
            ["twice"],
        ),
        (
            ["ar", *BASE, "--arrivals", "closed:1,x", "--input", "1", "--output", "1", "--requests", "1"],
            ["closed:x"],
        ),
        (
            ["ar", *BASE, "--arrivals", "poisson:5", "--input", "9000", "--output", "9", "--requests", "1"],
            ["9009", "8192"],
        ),
        (["ar", *BASE, "--arrivals", "poisson:5", "--requests", "1"], ["--input and --output"]),
        (["arr", *SMALL], ["no spec", "arr"]),
    ],
)
def test_bad_input_gets_a_sentence(arguments: list[str], words: list[str]) -> None:
    """What is wrong, where, and the way out, never a traceback."""
    sentence = refusal("simulate", *arguments)
    assert all(word in sentence for word in words), sentence


def test_a_closed_loop_has_a_number_of_its_own() -> None:
    """Without `--requests` every user sends four, and the result says so."""
    document = value("simulate", "ar", *BASE, "--arrivals", "closed:3", "--input", "4", "--output", "2")
    assert (12, "12") == (document["finished"], document["scenario"]["requests"])


def test_all_faults_at_once() -> None:
    """Six mistakes give six sentences in one run, and one JSON value."""
    mistakes = [
        "--model",
        "nothing",
        "--hardware",
        "h1000",
        "--arrivals",
        "often",
        "--policy",
        "none",
        "--lookup",
        "1",
    ]
    sentence = refusal(
        "simulate", "uno_linear", *mistakes, "--accept", "0.5", "--input", "1", "--output", "1"
    )
    assert 6 == len(sentence.strip().splitlines())
    result = run("simulate", "uno_linear", *mistakes, "--json")
    assert {"error"} == set(json.loads(result.stdout))


def test_trace_arrivals(tmp_path: Path) -> None:
    """Times and lengths come from the file; a broken line is named by its number; lengths beside it are refused."""
    path = tmp_path / "azure.csv"
    lines = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:03.1,10,4",
        "2023-11-16 18:17:04.1,12,6",
    ]
    path.write_text("\n".join(lines) + "\n")
    document = value("simulate", "ar", *BASE, "--arrivals", f"trace:{path}")
    assert (2, 10) == (document["requests"], document["emitted_tokens"])
    assert "trace:azure.csv" == document["scenario"]["arrivals"]
    assert "no effect" in refusal("simulate", "ar", *BASE, "--arrivals", f"trace:{path}", "--input", "4")
    path.write_text("\n".join([*lines, "2023-11-16 18:17:05.1,many,6"]) + "\n")
    assert f"{path}:4:" in refusal("simulate", "ar", *BASE, "--arrivals", f"trace:{path}")


def test_one_trace_holds_one_run(tmp_path: Path) -> None:
    """Two runs cannot share a trace, and a place that cannot be written is named."""
    two = refusal("simulate", "ar", "ar", *SMALL, "--trace", str(tmp_path / "t"))
    assert "--trace holds one run" in two
    assert "cannot be written" in refusal("simulate", "ar", *SMALL, "--trace", str(tmp_path / "no" / "t"))


def test_parquet_holds_a_row_a_request(tmp_path: Path) -> None:
    """Each run has a file of its own; times that never came are null, and the same seed gives the same bytes."""
    folders = tmp_path / "first", tmp_path / "second"
    loops = [*BASE, "--arrivals", "closed:2", "--input", "16", "--output", "8", "--requests", "6"]
    for folder in folders:
        done = run("simulate", "ar", "isd", *loops, "--accept", "0.8,0.7,0.6", "--parquet", str(folder))
        assert 0 == done.exit_code, done.output
    names = sorted(path.name for path in folders[0].iterdir())
    assert ["ar-closed-2.parquet", "isd-closed-2.parquet"] == names
    assert [(folders[0] / name).read_bytes() for name in names] == [
        (folders[1] / name).read_bytes() for name in names
    ]
    table = parquet.read_table(folders[0] / "isd-closed-2.parquet")
    assert list(range(6)) == table["request"].to_pylist()
    assert [8] * 6 == table["emitted"].to_pylist()
    times = [table[name].to_pylist() for name in TIMES]
    assert all(list(moments) == sorted(moments) for moments in zip(*times, strict=True))
    assert "isd" == json.loads(table.schema.metadata[b"fsm-spec"])["spec"]
    (tmp_path / "file").touch()
    assert "give another place with --parquet" in refusal(
        "simulate", "ar", *loops, "--parquet", str(tmp_path / "file")
    )
