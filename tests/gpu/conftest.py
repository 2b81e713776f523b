"""Tests that only a GPU can run; elsewhere each is skipped and says what is missing.

`scripts/gpu_check` runs them, with the benchmarks of the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
# Triton's code for bfloat16 asks for Ampere.
LEAST_CAPABILITY = (8, 0)


@cache
def lacking() -> str | None:
    """Say what keeps these tests from running here; None where they run."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"needs a GPU; this torch {torch.__version__} is built for the CPU alone"
    if not torch.cuda.is_available():
        return "needs a GPU; torch finds none (nvidia-smi and CUDA_VISIBLE_DEVICES say why)"
    if torch.version.cuda is not None and torch.cuda.get_device_capability() < LEAST_CAPABILITY:
        name = torch.cuda.get_device_name()
        return f"needs compute capability 8.0 (Ampere) or later; {name} has less"
    if find_spec("triton") is None:
        return "needs Triton; pip install triton"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot run here."""
    reason = lacking()
    for item in items:
        if reason is not None and HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_report_collectionfinish(items: list[pytest.Item]) -> str:
    """Say how many tests a GPU is missing for, also where tests are only listed."""
    own = sum(HERE in item.path.parents for item in items)
    reason = lacking()
    return f"tests/gpu: {own} tests" + ("" if reason is None else f", all skipped: {reason}")


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Give the GPU."""
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(autouse=True)
def _poisoned_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave NaN in the memory that a test's outputs are made of, and let any wait for the device fail."""
    device = request.getfixturevalue("device")
    blocks = [torch.full((size,), torch.nan, device=device) for size in (1 << 8, 1 << 14, 1 << 20, 1 << 24)]
    del blocks
    yield
    torch.cuda.set_sync_debug_mode("default")
