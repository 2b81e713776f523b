"""The backends of attention: what each lacks here, and that all that run here agree."""

from __future__ import annotations

from importlib.machinery import ModuleSpec

import pytest
import torch
from attention_cases import Shape, build

from fsm_spec.kernels import backends
from fsm_spec.kernels.backends import AUTO, BACKENDS, FLASHINFER, TORCH, TRITON, missing, page_fault


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Give the set of packages that are found, for a test to fill."""
    found: set[str] = set()
    monkeypatch.setattr(backends, "find_spec", lambda name: ModuleSpec(name, None) if name in found else None)
    return found


def test_what_is_missing_is_named(installed: set[str]) -> None:
    """Someone who reads only the sentence has to know what to install, or that there is no GPU."""
    assert (
        "needs a GPU, and this run is on the CPU; it needs the package triton, which is not installed"
        == missing(TRITON, "cpu", 16)
    )
    assert "needs the package flashinfer-python, which is not installed" == missing(FLASHINFER, "cuda", 16)
    assert "needs the package triton, which is not installed" == missing(AUTO, "cuda", 16)
    installed |= {"triton", "flashinfer"}
    assert "needs a GPU, and this run is on the CPU" == missing(FLASHINFER, "cpu", 16)
    assert [None] * 4 == [missing(name, "cuda", 16) for name in BACKENDS]
    assert [None, None] == [missing(name, "cpu", 24) for name in (AUTO, TORCH)]


def test_page_sizes_of_the_kernel(installed: set[str]) -> None:
    """A page size that a kernel cannot take is refused before anything is loaded, with sizes that it takes."""
    installed.add("triton")
    fault = "takes pages of a power of two of slots, not 24; give --page-size 16 or 32"
    assert (fault, fault, None) == (
        missing(AUTO, "cuda", 24),
        missing(TRITON, "cuda", 24),
        missing(TORCH, "cuda", 24),
    )
    assert [None] * 4 == [page_fault(size) for size in (1, 2, 16, 4096)]


@pytest.mark.parametrize("name", BACKENDS)
def test_available_backends_agree(name: str) -> None:
    """A choice of backend must not choose the tokens; the kernels behind these names are tested in `tests/kernels`."""
    lacks = missing(name, "cpu", 4)
    if lacks is not None:
        pytest.skip(f"{name} {lacks}")
    for kind in ("causal", "bidirectional", "groups", "tree", "random"):
        case = build(Shape((3, 0, 1), (19, 5, 0), 3, 1, 4, 2, 3, 16, kind, 11))
        found = BACKENDS[name](*case.arguments)
        torch.testing.assert_close(found[case.live].double(), case.expected[case.live], rtol=1e-5, atol=1e-5)
