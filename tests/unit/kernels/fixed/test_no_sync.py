"""No operator of fixed shapes waits for the host: each runs on fake CUDA tensors, which hold no values to wait for.

Its custom op, which gives shapes alone there, must give those of the fixed form.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from fake_device import device_only, shapes_of
from torch import Tensor

from fsm_spec.kernels.acceptance import ACCEPT_RULES, LOSSY_ACCEPT_RULES
from fsm_spec.kernels.fixed.acceptance import accept, accept_torch
from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.fixed.lookup import lookup, lookup_torch
from fsm_spec.kernels.fixed.operators import FIXED_OPERATORS
from fsm_spec.kernels.fixed.sampling import sample, sample_torch
from fsm_spec.kernels.fixed.sequential import sample_sequential
from fsm_spec.kernels.fixed.tree import candidates_torch, grow_best, grow_newest
from fsm_spec.kernels.fixed.unmask import fill, propose_torch, unmask
from fsm_spec.kernels.fixed.walk import match_torch, residual_torch, walk
from fsm_spec.kernels.randomness import Purpose
from fsm_spec.kernels.tree import Tree, prune
from fsm_spec.kernels.unmask import UNMASK_RULES
from fsm_spec.kernels.walk import WALK_RULES

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


def _unmask(rule: str) -> None:
    logits, tokens = torch.empty(N, R, V), ids(N, R)
    optional = {"quota": ids(N), "last": torch.empty(N, dtype=torch.bool), "first": ids(N)}
    found = propose_torch(logits, columns(), ids(N, R), 0)
    numbers: tuple[Any, ...] = (0.5, optional["quota"], 1.0, optional["last"], optional["first"], ids(N, 2))
    filled = fill(rule, tokens, ids(N), *found, *numbers)
    faked = unmask(
        rule,
        logits,
        tokens,
        ids(N),
        columns(),
        ids(N, R),
        ids(N),
        threshold=0.5,
        bound=1.0,
        stop_ids=ids(N, 2),
        exclude=0,
        **optional,
    )
    assert shapes_of(filled) == shapes_of(faked)


def tree() -> Tree:
    """Return fake trees of R nodes."""
    return Tree(ids(N, R), ids(N, R), ids(N, R), torch.empty(N, R), ids(N))


def _walk(rule: str) -> None:
    logits = torch.empty(N, R, V)
    walk_torch = match_torch if rule == "match" else residual_torch
    path, token = walk_torch(logits, tree(), columns(), ids(N, R), 2, 0)
    found = walk(rule, logits, tree(), columns(), ids(N, R), 2, exclude=0)
    assert shapes_of([path, token.unsqueeze(1)]) == shapes_of([found.path, found.next])


def _grow(rule: str) -> None:
    logits = torch.empty(N, 2, V)
    if rule == "best":
        grown = grow_best(logits, ids(N), columns(), 2, 5, exclude=0)
    else:
        grown, _ = grow_newest(logits, tree(), columns(), 2, exclude=0)
    found = candidates_torch(logits, columns().temperature, 2, 0)
    assert (N, 2, 2) == found[0].shape == found[1].shape
    prune(grown, 3)


def _lookup() -> None:
    texts, lengths = ids(N, 9), ids(N)
    assert shapes_of(lookup_torch(texts, lengths, 4, 1, 3)) == shapes_of(lookup(texts, lengths, 4, 1, 3))


def _sequential() -> None:
    logits = torch.empty(N, R, V)
    sample_sequential(
        logits, ids(N), lambda _, previous: logits[:, 0] + previous[:, None], columns(), ids(N, R)
    )


CALLS: dict[str, Callable[[], None]] = {
    **{f"sample {rule}": partial(_sample, rule) for rule in ("law", "argmax", "argmax_of_law")},
    **{f"accept:{rule}": partial(_accept, rule) for rule in (*ACCEPT_RULES, *LOSSY_ACCEPT_RULES)},
    **{f"unmask:{rule}": partial(_unmask, rule) for rule in UNMASK_RULES},
    **{f"walk:{rule}": partial(_walk, rule) for rule in WALK_RULES},
    "grow:best and prune": partial(_grow, "best"),
    "grow:level and prune": partial(_grow, "level"),
    "lookup": _lookup,
    "sample:markov": _sequential,
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
