"""The examples of a container image and a systemd unit fit the project: what they copy is there, their commands run."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fsm_spec.cli import application


@pytest.fixture
def deploy(project: Path) -> Path:
    """Return the folder of the examples."""
    return project / "docs" / "examples" / "deploy"


def test_the_image_gets_every_package_and_nothing_else(project: Path, deploy: Path) -> None:
    """A folder that is not copied, or that the builder is not sent, would end the build or the first import."""
    copied = [
        word
        for line in re.findall(r"^COPY (.*)$", (deploy / "Dockerfile").read_text(), re.MULTILINE)
        for word in line.split()[:-1]
    ]
    assert all((project / name).exists() for name in copied)
    settings = tomllib.loads((project / "pyproject.toml").read_text())
    folders = settings["tool"]["setuptools"]["package-dir"].values()
    assert set(folders) == {name for name in copied if (project / name).is_dir()}
    sent = (deploy / "Dockerfile.dockerignore").read_text().splitlines()
    assert set(copied) == {line[1:] for line in sent if line.startswith("!")}


def test_what_the_examples_start_is_a_command(deploy: Path) -> None:
    """Their options exist: the command gets as far as looking for its policy."""
    image = re.search(r"^CMD (.*)$", (deploy / "Dockerfile").read_text(), re.MULTILINE)
    unit = re.search(r"^ExecStart=\S+ serve (.*)$", (deploy / "fsm-spec.service").read_text(), re.MULTILINE)
    assert image
    assert unit
    for words in (json.loads(image[1]), shlex.split(unit[1])):
        done = CliRunner().invoke(application(), ["serve", *words, "--port", "0", "--policy", "nobody"])
        assert (done.exit_code, "no policy is called" in done.stderr) == (2, True), done.stderr
