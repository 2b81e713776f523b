"""`fsm-spec bench serve` against a server that runs: what it reports is what the server did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from live_server import Running
from typer.testing import CliRunner

from fsm_spec.cli import application
from fsm_spec.simulator.measure import error_sentence
from fsm_spec.simulator.report import known_rows
from fsm_spec.simulator.result_file import read_results

LOAD = ("--input", "12", "--output", "9")


def bench(*options: str) -> tuple[int, str, str]:
    """Run the command -> (exit code, stdout, stderr)."""
    done = CliRunner().invoke(application(), ["bench", "serve", *options])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("arrivals", ["closed:3", "poisson:40"])
def test_results_have_the_form_of_a_simulation(server: Running, tmp_path: Path, arrivals: str) -> None:
    """Counts are the server's, times add up, and the report shows it beside another run."""
    before = server.settled()
    given = (
        "--url",
        server.url,
        "--arrivals",
        arrivals,
        "--requests",
        "8",
        *LOAD,
        "--slo",
        "e2e:100000",
        "--slo",
        "ttft_p95=1us",
    )
    code, said, _ = bench(*given, "--json")
    assert code == 0
    found = json.loads(said)
    after = server.settled()
    moved = {
        name: int(after[name] - before.get(name, 0))
        for name in ("vllm:prompt_tokens_total", "fsm_spec:rounds_total")
    }
    assert (8, 8, 72) == (found["requests"], found["finished"], found["emitted_tokens"])
    assert moved["vllm:prompt_tokens_total"] == 8 * 12
    assert moved["fsm_spec:rounds_total"] == found["rounds"]
    assert found["acceptance_length"] == pytest.approx((72 - 8) / found["rounds"], abs=1e-5)
    assert (found["spec"], found["scenario"]["arrivals"]) == ("ngram", arrivals)
    assert {"kept": 0, "of": 8} == {name: found["goodput"][name] for name in ("kept", "of")}
    assert found["ttft_ms"]["p50"] <= found["e2e_ms"]["p50"]
    assert 72 == pytest.approx(integral(found["over_time"]), rel=0.01)
    file = tmp_path / "one.json"
    file.write_text(said)
    page = tmp_path / "page.html"
    code, said, _ = bench(*given[:-2])
    assert code == 0
    assert "8 of 8 requests finished in" in said
    assert "simulated" not in said
    code, said, _ = bench(*given[:-2], "--beside", str(file), "--report", str(page))
    assert code == 0
    assert said.count("measured") >= 2
    assert page.read_text().count("ngram, measured") >= 2


def integral(series: dict[str, list[float]]) -> float:
    """Add up a series of tokens a second."""
    edges = [0.0, *series["end_s"]]
    return sum(
        rate * (end - start) for rate, start, end in zip(series["tokens_s"], edges, edges[1:], strict=False)
    )


def test_data_sets_and_chats(server: Running, tmp_path: Path) -> None:
    """A data set brings its own prompts and limits."""
    rows = [
        {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3},
        {"prompt": "world", "max_tokens": 5},
    ]
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = (
        "--url",
        server.url,
        "--arrivals",
        "closed:2",
        "--requests",
        "4",
        "--dataset",
        str(path),
        "--chat",
        "--json",
    )
    code, said, _ = bench(*given)
    assert (code, json.loads(said)["emitted_tokens"]) == (0, 16)


def test_random_words_win_nothing(server: Running, tmp_path: Path) -> None:
    """Where drafts were judged on random words, output and results say so, and no line marks them as the best."""
    said = {}
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"prompt": "hello hello hello hello"}\n')
    given = (
        "--url",
        server.url,
        "--arrivals",
        "closed:2",
        "--requests",
        "2",
        "--input",
        "9",
        "--output",
        "60",
    )
    of_texts = ("--dataset", str(texts))
    for name, more in [("words", ()), ("texts", of_texts)]:
        code, found, _ = bench(*given, *more, "--json")
        assert code == 0
        (tmp_path / f"{name}.json").write_text(found)
        said[name] = json.loads(found)
    assert said["words"]["drafts"]["drafted"] > 0 < said["texts"]["drafts"]["drafted"]
    assert (False, True) == (said["words"]["comparable"], said["texts"]["comparable"])
    assert "--dataset" in said["words"]["warnings"][0]
    assert [] == said["texts"]["warnings"]
    words, texts_run = (read_results(tmp_path / f"{name}.json")[0] for name in said)
    assert [words.name, words.measured] == ["ngram, measured", True]
    marked = [row.cells([words, texts_run, texts_run]) for row in known_rows([words])]
    assert not any(cells[0][1] for cells in marked)
    code, shown, _ = bench(*given, *of_texts, "--beside", str(tmp_path / "words.json"))
    assert (0, 1) == (code, shown.count("random words, on which"))


def test_failed_requests_show_and_end_with_1(server: Running, tmp_path: Path) -> None:
    """A script that reads the exit code alone knows that the numbers are of some requests only."""
    path = tmp_path / "set.jsonl"
    path.write_text(
        '{"prompt": "one", "max_tokens": 3}\n'
        '{"prompt": "two", "max_tokens": 100000}\n'
        '{"prompt": "three", "max_tokens": 100000}\n'
    )
    given = ("--url", server.url, "--arrivals", "closed:1", "--requests", "3", "--dataset", str(path))
    code, said, _ = bench(*given)
    assert code == 1
    assert "1 of 3 requests finished" in said
    assert ["requests", "failed:", "status", "400", "2"] in [line.split() for line in said.splitlines()]
    assert "2 requests failed, status 400: max_tokens" in said
    code, said, _ = bench(*given, "--json")
    assert (1, {"status 400": 2}) == (code, json.loads(said)["run"]["failed"])


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"error": {"message": "too\n long", "code": 1}}, "too long"),
        ({"detail": "no such route"}, "no such route"),
        ({"detail": [{"msg": "x"}]}, '[{"msg": "x"}]'),
        ({"error": "busy"}, "busy"),
        ("x" * 400, "x" * 300 + " ..."),
    ],
)
def test_errors_of_any_server_are_read(body: object, sentence: str) -> None:
    """The sentence of an error body is found in OpenAI's form, FastAPI's and any other."""
    assert sentence == error_sentence(body)


def test_mistakes_get_one_sentence(server: Running, tmp_path: Path) -> None:
    """No traceback, whatever is wrong with server, data set, limits or results."""
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": 1}\n')
    of_server = ("--url", server.url.removeprefix("http://"), *LOAD)
    for options, sentence in [
        (("--url", "http://127.0.0.1:9", *LOAD), "cannot be reached"),
        (("--url", server.url, "--arrivals", "closed:2"), "--input"),
        (("--url", server.url, *LOAD, "--slo", "fast"), "write ttft_p95=500ms"),
        (("--url", server.url, "--dataset", str(broken)), "broken.jsonl:1"),
        (("--url", server.url, *LOAD, "--beside", str(broken)), "holds no results"),
        (
            (*of_server, "--model", "other", "--requests", "1"),
            "1 request failed, status 404: model 'other' is not",
        ),
        ((*of_server, "--requests", "1", "--output", "100000"), "1 request failed, status 400: max_tokens"),
        (("--url", "ftp://127.0.0.1", *LOAD), "is no address of a server; write http://HOST:PORT"),
        (("--url", "http://:x", *LOAD), "is no address of a server; write http://HOST:PORT"),
    ]:
        code, _, errors = bench(*options)
        assert (code, errors.count("\n")) == (2, 1), errors
        assert sentence in errors
