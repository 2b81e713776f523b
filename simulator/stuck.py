"""A run that can make no progress: when it counts as one, and the sentence that says so."""

from __future__ import annotations

from fsm_spec.errors import UserError
from fsm_spec.policy import Policy, Pool
from fsm_spec.table import Table

# Iterations without a launch in a row that only admit and preempt: more is a circle, not work.
MOST_EMPTY_ITERATIONS = 1_000


def stuck(
    table: Table, policy: Policy, pool: Pool, *, now_ns: int, running: int, waiting: int, used_pages: int
) -> UserError:
    """Say what stands still, and what helps."""
    return UserError(
        f"{table.name} cannot make progress under the policy {policy.policy}: at {now_ns / 1e9:.3f} s {running}"
        f" running requests own {used_pages} of {pool.pages} pages and need more, and {waiting} requests wait behind"
        f" them; take --policy holdback or preempt, more --pages or fewer --max-running"
    )
