"""The operators of `kernels/operators.py` in fixed shapes, under the same keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fsm_spec.kernels.acceptance import ACCEPT_RULES, LOSSY_ACCEPT_RULES
from fsm_spec.kernels.capture import capture
from fsm_spec.kernels.fixed.acceptance import accept
from fsm_spec.kernels.fixed.lookup import lookup
from fsm_spec.kernels.fixed.sampling import sample
from fsm_spec.kernels.fixed.sequential import sample_sequential
from fsm_spec.kernels.fixed.tree import grow_best, grow_newest
from fsm_spec.kernels.fixed.unmask import unmask
from fsm_spec.kernels.fixed.walk import walk
from fsm_spec.kernels.tree import prune
from fsm_spec.kernels.unmask import UNMASK_RULES
from fsm_spec.kernels.walk import WALK_RULES

# The readings of `capture` and `prune` are of fixed shapes themselves.
FIXED_OPERATORS: dict[str, Callable[..., Any]] = {
    "sample": sample,
    "sample:markov": sample_sequential,
    "capture": capture,
    **{f"accept:{rule}": partial(accept, rule) for rule in (*ACCEPT_RULES, *LOSSY_ACCEPT_RULES)},
    **{f"unmask:{rule}": partial(unmask, rule) for rule in UNMASK_RULES},
    "grow:best": grow_best,
    "grow:level": grow_newest,
    "prune": prune,
    **{f"walk:{rule}": partial(walk, rule) for rule in WALK_RULES},
    "lookup": lookup,
}
