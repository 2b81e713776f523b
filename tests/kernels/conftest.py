"""Tests of the Triton kernels run in Triton's interpreter, in a process of their own.

Triton decides when it is imported whether kernels are interpreted or compiled, and other tests compile them; so the
ordinary run collects `test_interpreted.py` alone, which runs the other files here in a child with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from interpreter import look_once

RUNNER = "test_interpreted.py"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_others = [path.name for path in Path(__file__).parent.glob("test_*.py") if path.name != RUNNER]
# Of numpy, below the interpreter: dead rows hold NaN, and bounds of loops are arrays of one element.
INTERPRETER_WARNINGS = ("All-NaN slice", "invalid value", "Conversion of an array with ndim > 0")
collect_ignore = [RUNNER] if INTERPRETED else _others


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what was named on the command line of an ordinary run; let the interpreter compute with NaN."""
    for item in items:
        if item.path.parent != Path(__file__).parent or item.path.name == RUNNER:
            continue
        if not INTERPRETED:
            item.add_marker(pytest.mark.skip(reason="runs with TRITON_INTERPRET=1 in the environment"))
        for warning in INTERPRETER_WARNINGS:
            item.add_marker(pytest.mark.filterwarnings(f"ignore:{warning}"))


if INTERPRETED:
    look_once()


@pytest.fixture(scope="session", autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """Fill all new memory with NaN and the greatest integers, so that what a kernel leaves unwritten shows."""
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_deterministic_debug_mode("default")
