"""The wheel and the editable installation give the same import names, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

# Built and installed once, not by each worker.
pytestmark = pytest.mark.xdist_group("wheel")

# Runs in another folder than the project's, or the project's folder would be imported instead.
LOCATE = "import fsm_spec, fsm_spec.{layer} as layer; print(fsm_spec.__file__); print(layer.__file__)"


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that must succeed, in another folder; return what it printed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done


def read_settings(project: Path) -> dict[str, Any]:
    """Return pyproject.toml."""
    return tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))


def shipped_files(project: Path, settings: dict[str, Any]) -> set[str]:
    """Return the paths in the wheel of all files that the source folders hold."""
    shipped = set()
    folders = settings["tool"]["setuptools"]["package-dir"]
    for package, folder in folders.items():
        inside = package.replace(".", "/")
        for path in (project / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".md":
                shipped.add(f"{inside}/{path.relative_to(project / folder).as_posix()}")
    return shipped


@pytest.fixture(scope="module")
def wheel(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources: a build leaves files that a later one would pick up."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(project / name, copy)
    for folder in read_settings(project)["tool"]["setuptools"]["package-dir"].values():
        shutil.copytree(project / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", "."], copy)
    (built,) = (copy / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel in a new environment that borrows the dependencies of this one; return its bin."""
    environment = tmp_path_factory.mktemp("environment")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    run([sys.executable, "-m", "venv", "--without-pip", str(environment)], elsewhere)
    python = environment / "bin" / "python"
    install = ["install", "--no-deps", "--no-index", "--quiet", str(wheel)]
    run([sys.executable, "-m", "pip", "--python", str(python), *install], elsewhere)
    # A folder named in a .pth file comes last on the path, and .pth files inside it are not read: this
    # environment's editable installation stays invisible.
    (site,) = (environment / "lib").glob("python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return environment / "bin"


def test_wheel_holds_all_files_of_the_packages(project: Path, wheel: Path) -> None:
    """A catalogue or a sub-package that pyproject.toml does not name is missing after installing."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("fsm_spec/")}
    assert shipped_files(project, read_settings(project)) == names
    assert {"fsm_spec/py.typed", "fsm_spec/specs/ar.yaml", "fsm_spec/specs/schema.json"} <= names


def test_wheel_takes_one_name(wheel: Path) -> None:
    """A wheel with a folder `kernels` at its top would overwrite another package of that name."""
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {"fsm_spec", "fsm_spec-{}.dist-info".format(wheel.name.split("-")[1])} == tops


def test_wheel_carries_its_licence(wheel: Path) -> None:
    """Apache-2.0 asks that each copy comes with its text."""
    licence = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("licenses/LICENSE")]
    assert 1 == len(licence)
    assert b"Apache License" in zipfile.ZipFile(wheel).read(licence[0])


@pytest.mark.parametrize("layer", ["specs", "kernels", "simulator", "executor"])
def test_wheel_is_imported_from_its_own_environment(installed: Path, tmp_path: Path, layer: str) -> None:
    """If the project's folder were imported, the tests below would say nothing of the wheel."""
    printed = run([str(installed / "python"), "-c", LOCATE.format(layer=layer)], tmp_path).stdout.split()
    (site,) = (installed.parent / "lib").glob("python*/site-packages")
    assert [str(site / "fsm_spec" / "__init__.py"), str(site / "fsm_spec" / layer / "__init__.py")] == printed


def test_wheel_runs_the_program_anywhere(installed: Path, tmp_path: Path) -> None:
    """A program that finds its specs only beside the sources is of no use once installed."""
    program = str(installed / "fsm-spec")
    helped = run([program, "--help"], tmp_path).stdout
    assert all(command in helped for command in ("check", "show", "simulate", "generate", "replay"))
    assert "ar" in run([program, "check", "ar"], tmp_path).stdout


@pytest.mark.parametrize("layer", ["specs", "kernels", "simulator", "executor"])
def test_editable_installation_reads_the_project(project: Path, tmp_path: Path, layer: str) -> None:
    """A copy instead of the folder would leave edits without effect."""
    printed = run([sys.executable, "-c", LOCATE.format(layer=layer)], tmp_path).stdout.split()
    assert [str(project / "fsm_spec" / "__init__.py"), str(project / layer / "__init__.py")] == printed


@pytest.mark.parametrize("layer", ["specs", "kernels", "simulator", "executor"])
def test_editable_installation_takes_one_name(tmp_path: Path, layer: str) -> None:
    """The project's folder on the path would hide installed packages called `kernels` or `executor`."""
    program = f"import importlib.util; print(importlib.util.find_spec({layer!r}))"
    assert "None\n" == run([sys.executable, "-c", program], tmp_path).stdout
