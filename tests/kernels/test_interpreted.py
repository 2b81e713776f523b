"""Runs the other files of this folder in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton has no package for this system")
def test_kernels_agree_with_their_readings() -> None:
    """A kernel that differs from its torch reading gives other tokens on a GPU than the checked machine does."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", Path(__file__).parent, "-q", "-p", "no:cacheprovider"],
        env={**plain, "TRITON_INTERPRET": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"\n{done.stdout[-20000:]}"
