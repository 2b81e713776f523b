"""Settings of all tests; fixtures that more than one folder needs live here, others with their tests."""

from __future__ import annotations

import os
from pathlib import Path

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
