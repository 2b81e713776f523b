"""Type-check the project under its import names.

The folders stand side by side (`kernels/`) but are imported from one package (`fsm_spec.kernels`): see
pyproject.toml.
mypy finds modules by folder alone, so this lays a tree of links under build/typecheck/ in the shape of the
imports and has mypy read it; its messages are printed with the real paths.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
TREE = Path("build") / "typecheck"


def read_folders() -> dict[str, str]:
    """Return the folder of each mapped package: `{"fsm_spec.kernels": "kernels", ...}`."""
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    folders: dict[str, str] = settings["tool"]["setuptools"]["package-dir"]
    return folders


def link_tree(folders: dict[str, str]) -> dict[str, str]:
    """Bring the tree of links up to date; return the real folder of each linked package."""
    tree = PROJECT / TREE
    real: dict[str, str] = {}
    for package, folder in folders.items():
        target = tree.joinpath(*package.split("."))
        real[str(target.relative_to(PROJECT))] = folder
        inner = [other.rpartition(".")[2] for other in folders if other.startswith(f"{package}.")]
        if inner:  # it holds other packages: a folder of links
            target.mkdir(parents=True, exist_ok=True)
            entries = [entry for entry in (PROJECT / folder).iterdir() if entry.name != "__pycache__"]
            for stale in (
                # Running from the tree leaves compiled files of its own there.
                {path.name for path in target.iterdir() if path.name != "__pycache__"}
                - {path.name for path in entries}
                - {*inner}
            ):
                (target / stale).unlink(missing_ok=True)
            for entry in entries:
                link(target / entry.name, entry)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            link(target, PROJECT / folder)
    return real


def link(path: Path, target: Path) -> None:
    """Make `path` a link to `target`, unless it is one."""
    if not (path.is_symlink() and path.readlink() == target):
        path.unlink(missing_ok=True)
        path.symlink_to(target)


def rename_paths(text: str, real: dict[str, str]) -> str:
    """Replace the paths of links by those of the files they stand for, the longest path first."""
    for link in sorted(real, key=len, reverse=True):
        text = text.replace(f"{link}/", f"{real[link]}/")
    return text


def main() -> int:
    """Run mypy on packages, tests, benchmarks and scripts; return its exit code."""
    real = link_tree(read_folders())
    roots = [str(TREE / "fsm_spec")] + [
        name for name in ("tests", "bench", "scripts") if any((PROJECT / name).rglob("*.py"))
    ]
    command = [sys.executable, "-m", "mypy", *sys.argv[1:], *roots]
    done = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=False)
    print(rename_paths(done.stdout, real), end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
