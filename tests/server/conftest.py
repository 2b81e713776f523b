"""Servers of tiny random models, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from live_server import Running, Serve, in_process, make_model

from fsm_spec.executor.server import logs


@pytest.fixture(autouse=True)
def unlogged() -> Iterator[None]:
    """Take back where a command of this process wrote its log: the runner closes that stream behind it."""
    yield
    for logger in logs.LOGGERS:
        logger.handlers = []
        logger.propagate = True


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny random model whose chat template knows tools."""
    made = tmp_path_factory.mktemp("model") / "tiny"
    made.mkdir()
    make_model(made)
    return made


@pytest.fixture(scope="session")
def serve(folder: Path) -> Serve:
    """Return a context manager that runs a server of the tiny model under a spec; options as `Serving`, `Settings`."""

    def run(spec: str, model: Path = folder, **options: Any) -> AbstractContextManager[Running]:  # noqa: ANN401 -- options of any kind
        return in_process(model, spec, options)

    return run


@pytest.fixture(scope="session")
def server(serve: Serve) -> Iterator[Running]:
    """Return one server that many tests share; it is checked for leaks at the end."""
    with serve("ngram", params={"shortest": 1}, pages=400) as running:
        yield running
        running.settled()
