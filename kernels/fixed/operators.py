"""The operators of `kernels/operators.py` in fixed shapes, under the same keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fsm_spec.kernels.acceptance import ACCEPT_RULES, LOSSY_ACCEPT_RULES
from fsm_spec.kernels.capture import capture
from fsm_spec.kernels.fixed.acceptance import accept
from fsm_spec.kernels.fixed.sampling import sample
from fsm_spec.kernels.tree import prune

# The readings of `capture` and `prune` are of fixed shapes themselves.
FIXED_OPERATORS: dict[str, Callable[..., Any]] = {
    "sample": sample,
    "capture": capture,
    **{f"accept:{rule}": partial(accept, rule) for rule in (*ACCEPT_RULES, *LOSSY_ACCEPT_RULES)},
    "prune": prune,
}
