"""The operators by the names that specs use, and their plain-Python readings, under the same keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fsm_spec.kernels.acceptance import ACCEPT_RULES, LOSSY_ACCEPT_RULES, accept
from fsm_spec.kernels.acceptance_plain import accept_plain
from fsm_spec.kernels.capture import capture, capture_plain
from fsm_spec.kernels.lookup import lookup, lookup_plain
from fsm_spec.kernels.sampling import sample, sample_plain
from fsm_spec.kernels.sequential import sample_sequential, sample_sequential_plain
from fsm_spec.kernels.tree import grow_best, grow_newest, prune
from fsm_spec.kernels.tree_plain import grow_best_plain, grow_newest_plain, prune_plain
from fsm_spec.kernels.unmask import UNMASK_RULES, unmask
from fsm_spec.kernels.unmask_plain import unmask_plain
from fsm_spec.kernels.walk import WALK_RULES, walk
from fsm_spec.kernels.walk_plain import walk_plain

Operator = Callable[..., Any]

# Operators over a batch of tensors.
OPERATORS: dict[str, Operator] = {
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

# The same for one row or request, over lists; draws go through `choose_one`.
PLAIN: dict[str, Operator] = {
    "sample": sample_plain,
    "sample:markov": sample_sequential_plain,
    "capture": capture_plain,
    **{f"accept:{rule}": partial(accept_plain, rule) for rule in (*ACCEPT_RULES, *LOSSY_ACCEPT_RULES)},
    **{f"unmask:{rule}": partial(unmask_plain, rule) for rule in UNMASK_RULES},
    "grow:best": grow_best_plain,
    "grow:level": grow_newest_plain,
    "prune": prune_plain,
    **{f"walk:{rule}": partial(walk_plain, rule) for rule in WALK_RULES},
    "lookup": lookup_plain,
}
