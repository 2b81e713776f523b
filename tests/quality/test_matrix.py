"""The table of specs and results says what tests found, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsm_spec.compile import compile_table
from fsm_spec.load import load

Program = Callable[..., tuple[int, str]]
TOY = """
import pytest

@pytest.mark.shows("valid")
@pytest.mark.parametrize("spec", ["ar", "ngram", "none_such"])
def test_one(spec):
    assert spec != "ngram"

@pytest.mark.shows("greedy-equal")
@pytest.mark.parametrize("name", ["ar"])
def test_two(name):
    pytest.skip("no model")

def test_three():
    pass
"""


@pytest.fixture
def matrix(project: Path) -> Program:
    """Return a function that runs scripts/matrix.py; it gives the exit code and what was said."""

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, str(project / "scripts" / "matrix.py"), *arguments]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def rows(text: str) -> dict[str, list[str]]:
    """Read the cells of a page by spec."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells[1:] for cells in lines}


def test_the_page_is_what_the_command_writes(matrix: Program) -> None:
    """A table edited by hand, or older than its specs, would claim what no test has shown."""
    assert (0, "") == matrix("--check")


def test_cells_come_from_results(matrix: Program, tmp_path: Path) -> None:
    """Failures show, skipped and missing tests and tables of another digest are `not run`, and no claim is invented."""
    digests = {name: compile_table(load(name).spec).digest for name in ("ar", "isd", "sdar")}
    results: dict[str, Any] = {
        "ar": {
            "valid": {"table": digests["ar"], "passed": 2},
            "checked": {"table": "of another time", "passed": 2},
            "run": {"table": digests["ar"], "skipped": 1},
        },
        "isd": {"run": {"table": digests["isd"], "passed": 5, "failed": 1}},
        "sdar": {"greedy-equal": {"table": digests["sdar"], "passed": 1}},
    }
    file, page = tmp_path / "results.json", tmp_path / "matrix.md"
    file.write_text(json.dumps(results), encoding="utf-8")
    given = ("--results", str(file), "--page", str(page))
    assert (1, "matrix.md is out of date; run scripts/matrix.py\n") == matrix("--check", *given)
    assert (0, "matrix.md written\n") == matrix(*given)
    found = rows(page.read_text(encoding="utf-8"))
    missing = "not run"
    assert ["sampling", "passed (2)", missing, missing, missing, missing, missing, missing] == found["ar"]
    assert ["sampling", missing, missing, missing, "FAILED", missing, missing, missing] == found["isd"]
    assert ["no", missing, missing, missing, missing, "not claimed", "not claimed", missing] == found["sdar"]
    assert {cell for cells in found.values() for cell in cells[1:]} <= {
        "passed (2)", "FAILED", "not run", "not claimed",
    }  # fmt: skip


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "workers"])
def test_results_are_counted_by_spec(workers: list[str], project: Path, tmp_path: Path) -> None:
    """Passed, failed and skipped tests are told apart; other specs' and kinds' older results stay."""
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"ar": {"checked": {"table": "t", "passed": 1}}}), encoding="utf-8")
    (tmp_path / "conftest.py").write_text((project / "tests" / "conftest.py").read_text(encoding="utf-8"))
    (tmp_path / "test_toy.py").write_text(TOY, encoding="utf-8")
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--matrix", str(file)]
    done = subprocess.run([*command, *workers], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 3 passed, 1 skipped" in done.stdout
    digests = {name: compile_table(load(name).spec).digest for name in ("ar", "ngram")}
    assert {
        "ar": {
            "checked": {"table": "t", "passed": 1},
            "greedy-equal": {"table": digests["ar"], "skipped": 1},
            "valid": {"table": digests["ar"], "passed": 1},
        },
        "ngram": {"valid": {"table": digests["ngram"], "failed": 1}},
    } == json.loads(file.read_text(encoding="utf-8"))
