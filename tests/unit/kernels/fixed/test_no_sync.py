"""No operator of fixed shapes waits for the host: each runs on fake CUDA tensors, which hold no values to wait for.

Its custom op, which gives shapes alone there, must give those of the fixed form.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from fake_device import device_only, shapes_of
from torch import Tensor

from fsm_spec.kernels.acceptance import ACCEPT_RULES, LOSSY_ACCEPT_RULES
from fsm_spec.kernels.fixed.acceptance import accept, accept_torch
from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.fixed.operators import FIXED_OPERATORS
from fsm_spec.kernels.fixed.sampling import sample, sample_torch
from fsm_spec.kernels.randomness import Purpose

N, R, V = 3, 4, 300


def columns() -> SamplingColumns:
    """Return fake parameters."""
    real, whole = torch.empty(N, dtype=torch.float64), torch.empty(N, dtype=torch.int64)
    return SamplingColumns(real, whole, real, real, whole)


def ids(*shape: int) -> Tensor:
    """Return fake integers."""
    return torch.empty(shape, dtype=torch.int64)


def _sample(rule: str) -> None:
    logits = torch.empty(N, R, V)
    tokens, laws = sample_torch(logits, columns(), ids(N, R), 1, rule, exclude=0, want_law=True)
    faked, fake_laws = sample(logits, columns(), ids(N, R), Purpose.TARGET, rule, exclude=0, want_law=True)  # type: ignore[arg-type]
    assert shapes_of([tokens, laws]) == shapes_of([faked, fake_laws])


def _accept(rule: str) -> None:
    logits, drafts, q = torch.empty(N, R, V), ids(N, R - 1), torch.empty(N, R - 1, V)
    for law in (q, None):
        found = accept_torch(rule, logits, drafts, ids(N), columns(), ids(N, R), law, 2, 0.5, 0)
        faked = accept(
            rule, logits, drafts, ids(N), columns(), ids(N, R), q=law, top=2, threshold=0.5, exclude=0
        )
        assert shapes_of(found) == shapes_of(faked)


CALLS: dict[str, Callable[[], None]] = {
    **{f"sample {rule}": partial(_sample, rule) for rule in ("law", "argmax", "argmax_of_law")},
    **{f"accept:{rule}": partial(_accept, rule) for rule in (*ACCEPT_RULES, *LOSSY_ACCEPT_RULES)},
    "capture": lambda: FIXED_OPERATORS["capture"](torch.empty(N, R, 8), ids(N, 2)),
}


@pytest.mark.parametrize("call", CALLS)
def test_stays_on_the_device(call: str) -> None:
    """A wait inside a round would cost more than the round and could not be captured in a graph."""
    with device_only():
        CALLS[call]()


@pytest.mark.parametrize(
    "wait",
    [
        lambda t: t.item(),
        lambda t: t.tolist(),
        lambda t: t.cpu(),
        lambda t: t[t > 0],
        lambda t: t.nonzero(),
        lambda t: 1 if t.sum() > 0 else 0,
        list,
    ],
)
def test_waits_are_seen(wait: Callable[[Tensor], object]) -> None:
    """A test that lets a wait pass proves nothing."""
    with device_only():
        numbers = torch.empty(1)
        with pytest.raises(Exception, match=r"."):
            wait(numbers)
