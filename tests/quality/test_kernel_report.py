"""The compile report of the Triton kernels: it runs without a GPU, and finds what is over budget."""

from __future__ import annotations

import importlib
import subprocess
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import yaml

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton has no package for this system")
TAKEN = {"registers": 40, "stack": 0, "spills": 0, "scalar_spills": 2, "shared": 1024, "narrow_loads": 1}
BUDGET = {"k: form": {"sm_90": {"registers": 40, "scalar_spills": 2, "shared": 1024, "narrow_loads": 1}}}


@pytest.fixture
def kernels(project: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the program behind scripts/kernel_report."""
    monkeypatch.syspath_prepend(str(project / "bench"))
    return importlib.import_module("kernels")


def test_kernels_compile_within_budget(project: Path) -> None:
    """A kernel that spills is slow on a machine that no test runs on; one with two products is compiled here."""
    done = subprocess.run(
        [project / "scripts" / "kernel_report", "--only", "chunk, bf16, 64", "--targets", "sm_90", "gfx942"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr), done.stdout
    assert "2 forms compiled, 0 over budget" in done.stdout


@pytest.mark.parametrize(
    ("took", "expected"),
    [
        ({}, []),
        ({"registers": 39, "shared": 0}, []),
        ({"registers": 41}, ["registers 41 > 40"]),
        ({"shared": 1025, "narrow_loads": 2}, ["shared 1025 > 1024", "narrow_loads 2 > 1"]),
        ({"stack": 8, "spills": 1}, ["stack 8", "spills 1"]),
    ],
)
def test_over_budget_is_found(kernels: ModuleType, took: dict[str, int], expected: list[str]) -> None:
    """A report that cannot fail would keep any budget."""
    assert expected == kernels.judge(kernels.Line("k: form", "sm_90", TAKEN | took, "", 0.1), BUDGET)


def test_what_has_no_budget_or_does_not_compile_is_found(kernels: ModuleType) -> None:
    """A new kernel without a budget would pass unseen, as would one that a target refuses."""
    assert ["no budget; write one with --accept"] == kernels.judge(
        kernels.Line("k: form", "sm_80", TAKEN, "", 0.1), BUDGET
    )
    broken = kernels.Line("k: form", "sm_90", {}, "out of registers", 0.1)
    assert ["does not compile: out of registers"] == kernels.judge(broken, BUDGET)


def test_every_form_has_a_budget_for_every_target(project: Path) -> None:
    """A kernel without a budget is found here, not only by the long run; a budget without a kernel says nothing."""
    from fsm_spec.kernels.triton.resources import TARGETS, forms  # noqa: PLC0415 -- where Triton is installed

    budgets = yaml.safe_load((project / "bench" / "kernel_budgets.yaml").read_text())
    listed = [(name, target) for name, _ in forms() for target in TARGETS]
    assert sorted((name, target) for name, kept in budgets.items() for target in kept) == sorted(listed)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--targets", "sm_91"], "no target sm_91; there are sm_80, sm_90, sm_100, gfx942"),
        (["--accept", "--budgets", "other.yaml"], "leave out --budgets"),
        (["--only", "nothing_like_this"], "no kernel's name holds nothing_like_this"),
    ],
)
def test_wrong_arguments_are_refused(
    kernels: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    """A misspelt target would compile nothing and pass."""
    monkeypatch.setattr("sys.argv", ["kernel_report", *arguments])
    with pytest.raises(SystemExit, match="2"):
        kernels.main()
    assert said in capsys.readouterr().err
