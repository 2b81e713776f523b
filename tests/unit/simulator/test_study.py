"""Studies and the command plan: points, parallel runs that resume, failures that lose nothing, tables."""

import json
import re
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fsm_spec.cli import application
from fsm_spec.errors import UserError
from fsm_spec.simulator import workers as workers_module
from fsm_spec.simulator.scenario import Scenario
from fsm_spec.simulator.study import Study
from fsm_spec.simulator.workers import Workers

BASE = {"model": "smollm2-135m", "hardware": "h100", "input": "64", "output": "8"}


def small(**more: Any) -> Study:  # noqa: ANN401 - options of a study
    """Return a study of two specs and two loads, in this process."""
    return Study(
        BASE,
        over={"spec": ["ar", "uno_linear"], "set.b": [2, 4], "arrivals": ["closed:1", "closed:2"]},
        accept={"uno_linear": "geometric:0.5"},
        workers=Workers(1),
        **more,
    )


def test_a_study_runs_every_point_once() -> None:
    """A parameter that a spec does not have makes no points of its own; tables hold what varies and what came out."""
    study = small(slos=["ttft_p95=1s"]).run()
    assert 2 + 4 == len(study.rows)
    assert not study.failed
    assert {"ar", "uno_linear"} == {row["spec"] for row in study.rows}
    assert 1.0 == study.best("acceptance_length", most=False)["acceptance_length"]
    assert all(row["goodput_req_s"] > 0 for row in study.rows)
    table = study.table()
    assert 6 == table.num_rows
    assert "set.b" in table.column_names
    assert study._repr_html_().startswith("<table>")


def test_a_failed_point_loses_no_other_and_runs_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An impossible point has its sentence; a second run reads what was done and runs nothing."""
    over: dict[str, list[Any]] = {"spec": ["ar"], "arrivals": ["closed:1"], "pages": [1, 64]}
    file = tmp_path / "results.jsonl"
    study = Study(BASE, over=over, workers=Workers(1, resume=file)).run()
    assert 1 == len(study.failed)
    assert "can need" in study.failed[0]["error"]
    with file.open("a", encoding="utf-8") as lines:
        lines.write('{"key": "cut o')

    def refuse(scenario: Scenario, slos: object) -> dict[str, Any]:
        raise AssertionError(scenario, slos)

    monkeypatch.setattr(workers_module, "evaluate", refuse)
    assert study.rows == Study(BASE, over=over, workers=Workers(1, resume=file)).run().rows


def test_results_do_not_depend_on_the_number_of_workers() -> None:
    """Two processes give what one gives, in the same order."""
    one = small().run().rows
    two = Workers(2)
    try:
        study = small()
        study.workers = two
        assert one == study.run().rows
    finally:
        two.close()


def test_an_interrupt_ends_the_processes() -> None:
    """Ctrl-C waits for no point that is running, and leaves no process behind."""
    study = small()
    processes: list[BaseProcess] = []
    study.workers = Workers(2)

    def interrupted() -> None:
        with study.workers as workers:
            study.run()
            assert workers._pool is not None
            processes.extend(workers._pool._processes.values())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    # The pool's own thread waits for the same processes: whoever comes second hears of the end a moment later.
    deadline = time.monotonic() + 20
    while any(process.is_alive() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [False, False] == [process.is_alive() for process in processes]


def test_a_ray_cluster_gives_what_this_machine_gives(tmp_path: Path) -> None:
    """Tasks on Ray give the same bytes, failed points included, and what was done is not run again."""
    pytest.importorskip("ray", reason="Ray is a layer of its own: pip install fsm-spec[ray]")
    over: dict[str, list[Any]] = {"spec": ["ar"], "arrivals": ["closed:1", "closed:2"], "pages": [1, 64]}
    file = tmp_path / "results.jsonl"
    here = Study(BASE, over=over, workers=Workers(1)).run()
    there = Study(BASE, over=over, workers=Workers(ray="auto", resume=file)).run()
    assert json.dumps(here.rows) == json.dumps(there.rows)
    assert 2 == len(there.failed)
    assert there.rows == Study(BASE, over=over, workers=Workers(1, resume=file)).run().rows


def test_without_ray_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing layer is named with the command that installs it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    said = plan("ar", "--goal", "pareto", "--users", "1", "--ray", "auto")["error"]
    assert "--ray needs Ray, which is not installed; run pip install fsm-spec[ray]" in said


def test_bad_fields_get_a_sentence() -> None:
    """Unknown fields and a missing cluster are refused."""
    with pytest.raises(UserError, match="colour"):
        Study({**BASE, "spec": "ar", "arrivals": "closed:1", "colour": 1})
    with pytest.raises(UserError, match="no point of the study succeeded"):
        Study(
            {**BASE, "model": "none"}, over={"spec": ["ar"], "arrivals": ["closed:1"]}, workers=Workers(1)
        ).run().best("x")


def plan(*arguments: str) -> Any:  # noqa: ANN401 - JSON
    """Run the command and read its JSON."""
    common = (
        "--model",
        "smollm2-135m",
        "--hardware",
        "h100",
        "--input",
        "64",
        "--output",
        "16",
        "--workers",
        "1",
    )
    result = CliRunner().invoke(application(), ["plan", *arguments, *common, "--json"])
    return json.loads(result.stdout)


def test_plan_finds_rates_and_replicas() -> None:
    """More replicas are needed for more load than one carries."""
    limits = ("--slo", "ttft_p95=5ms", "--seeds", "2", "--requests", "200", "--precision", "0.3")
    best = plan("ar", "--goal", "max-rate", *limits)["results"][0]
    assert 0 < best["max_rate_req_s"] < best["broken_at_req_s"]
    assert (200, 0, False) == (best["requests"], best["warm_up_requests"], "checked" in best)
    rate = str(3 * best["broken_at_req_s"])
    priced = ("--price-per-gpu-hour", "2")
    document = plan("ar", "--goal", "min-gpus", "--rate", rate, *limits, *priced)
    found = document["results"][0]
    assert 3 <= found["replicas"] <= 8
    assert 2 * found["gpus"] == found["price_per_hour"]
    assert round(2e6 / 3600 / found["throughput_tok_s_gpu"], 6) == found["price_per_million_tokens"]
    asked = {"goal": "min-gpus", "spec": "ar", "limits": "ttft_p95=5ms", "seeds": "2", "policy": "holdback"}
    assert asked.items() <= document["settings"].items()
    assert {"model", "hardware", "pool", "input", "output", "arrivals", "rate"} <= document["settings"].keys()


def test_settings_say_where_values_differ() -> None:
    """What all share is said once, what differs by spec stands with the spec, and what varies is left to its list."""
    grid = ("ar", "uno_linear", "--goal", "pareto", "--users", "1", "--accept", "uno_linear=geometric:0.6")
    settings = plan(*grid, "--vary", "b=2,4")["settings"]
    assert ("geometric:0.6 (uno_linear)", "b=2,4", "closed:1") == (
        settings["accept"],
        settings["varied"],
        settings["arrivals"],
    )
    assert "parameters" not in settings
    assert re.fullmatch(r"[\d,]+ pages of 64 \(ar\), [\d,]+ pages of 64 \(uno_linear\)", settings["pool"])


def test_plan_picks_tiers_and_a_front(tmp_path: Path) -> None:
    """Every number of users has its best block; points stand in a file, with their price."""
    grid = ("uno_linear", "--vary", "b=2,4", "--users", "1,4", "--accept", "geometric:0.6")
    found = plan(*grid, "--goal", "tiers")
    assert {2, 4} >= {tier["b"] for tier in found["tiers"]["uno_linear"]}
    assert 4 == found["tiers"]["uno_linear"][-1]["up_to"]
    file = tmp_path / "points.csv"
    priced = plan(*grid, "--goal", "pareto", "--price-per-gpu-hour", "2", "--csv", str(file))
    assert priced["front"]
    assert all(row["price_per_million_tokens"] > 0 for row in priced["front"])
    assert 5 == len(file.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ar", "--goal", "max-rate"), "needs limits"),
        (("ar", "--goal", "min-gpus", "--slo", "ttft_p95=1s"), "needs the load"),
        (("ar", "--goal", "pareto", "--rate", "5"), "--rate would have no effect"),
        (("ar", "--goal", "tiers"), "needs one --vary"),
        (("ar", "--goal", "pareto", "--users", "x"), '--users: "x" is no whole number'),
        (("ar", "--goal", "pareto", "--accept", "isd=0.5"), "isd is not among ar"),
        (("ar", "--goal", "max-rate", "--slo", "ttft_p95=1s", "--arrivals", "closed"), "no kind of arrivals"),
        (("ar", "--goal", "max-rate", "--slo", "ttft_p95=1s", "--arrivals", "trace:x"), "--input file:FILE"),
        (
            ("ar", "--goal", "max-rate", "--slo", "ttft_p95=1us", "--seeds", "1", "--requests", "3"),
            "no load meets",
        ),
    ],
)
def test_bad_plans_get_a_sentence(arguments: tuple[str, ...], words: str) -> None:
    """What does not fit the goal is refused before any work, what cannot be met after it."""
    assert words in plan(*arguments)["error"]
