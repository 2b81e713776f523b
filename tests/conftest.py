"""Settings of all tests; fixtures that more than one folder needs live here, others with their tests.

`--matrix FILE` writes which shipped spec passed which kind of test, as `scripts/matrix.py` reads it: a test marked
`shows(kind)` counts for the spec it is parametrised by.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, settings

# Set before torch and numpy are imported: two workers on two cores, one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# No deadline: a shared machine pauses tests at will.
# In CI the same examples run each time, so that a red run is about the change; elsewhere new ones are tried.
settings.register_profile(
    "default", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(scope="session")
def project() -> Path:
    """Return the project's root folder."""
    return Path(__file__).resolve().parent.parent


class Matrix:
    """Count outcomes of tests by spec and kind, on the process that collects the reports of all workers.

    The file keeps what earlier runs found of other specs and kinds, each under the digest of the table it ran with.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[str, dict[str, dict[str, int]]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once: its call, or the setup in which it failed or was skipped."""
        if report.when == "teardown" or (report.when == "setup" and report.passed):
            return
        for name, value in report.user_properties:
            if name != SHOWS:
                continue
            kind, spec = cast("tuple[str, str]", value)
            counts = self.outcomes.setdefault(spec, {}).setdefault(kind, {})
            counts[report.outcome] = counts.get(report.outcome, 0) + 1

    def pytest_sessionfinish(self) -> None:
        """Write what was counted."""
        # Numpy comes with these; it reads the settings below when it is imported.
        from fsm_spec.compile import compile_table  # noqa: PLC0415
        from fsm_spec.load import load, shipped  # noqa: PLC0415

        found = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        for spec in self.outcomes.keys() & shipped().keys():
            digest = compile_table(load(spec).spec).digest
            for kind, counts in self.outcomes[spec].items():
                found.setdefault(spec, {})[kind] = {"table": digest, **counts}
        text = json.dumps(found, indent=1, sort_keys=True)
        self.path.write_text(text + "\n", encoding="utf-8")


SHOWS = "shows"
PARAMETERS = ("spec", "name")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the file of outcomes."""
    parser.addoption("--matrix", type=Path, default=None, help="write outcomes by spec and kind of test here")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; count on the controlling process only."""
    config.addinivalue_line(
        "markers", "shows(kind): passing says this of the spec the test is parametrised by"
    )
    path = config.getoption("--matrix")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Matrix(path))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Say in the reports of a test what it shows, and of which spec."""
    item.user_properties += [(SHOWS, shown) for shown in shown_by(item)]


def shown_by(item: pytest.Item) -> Iterator[tuple[str, str]]:
    """Give (kind, spec) for each marker of a test; nothing for tests of no one spec."""
    values = getattr(item, "callspec").params if hasattr(item, "callspec") else {}  # noqa: B009 -- not of pytest.Item
    spec = next((values[name] for name in PARAMETERS if name in values), None)
    if spec is not None:
        for mark in item.iter_markers(SHOWS):
            yield mark.args[0], spec
