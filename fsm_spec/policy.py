"""The scheduler's decisions as pure functions: who is admitted, who prefills how much, who runs, who gives pages back.

The checker composes `plan`, the simulator and the executor call it: one scheduler, two clocks. It reads columns, page
counts and the table, never tokens, carries or time, so that its choices cannot depend on what is being judged.
The decisions over plain values are in `decision.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fsm_spec.budget import Rate, table_rate
from fsm_spec.decision import ADMISSIONS, BLOCKED, PREEMPTED, RUNS, WAITS, decide
from fsm_spec.errors import PoolExhausted, UserError
from fsm_spec.language.expression import evaluate
from fsm_spec.step import evaluate as evaluate_columns
from fsm_spec.table import PREFILL
from fsm_spec.tiers import Tier, tiers_of
from fsm_spec.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fsm_spec.step import Columns
    from fsm_spec.table import Table


# Waiting requests looked at in one iteration; the queue behind them waits for the next.
QUEUE_SEEN: Final = 64


class Prefill(BaseModel):
    """Say how prompts are cut into chunks and whether these ride with decode rows."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    tokens: Annotated[int, Field(ge=1, strict=True)] = 2048
    mixed: Annotated[bool, Field(strict=True)] = True


class VerifyBudget(BaseModel):
    """Say how many steps a second the target runs by the rows of a launch: what verifying one more draft costs.

    The operator `budget` grants drafts by it (`budget.py`), and without it as many as there are.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    rows: tuple[Annotated[int, Field(ge=1, strict=True)], ...]
    steps_per_second: tuple[Annotated[int, Field(ge=1, strict=True)], ...]

    @model_validator(mode="after")
    def _paired(self) -> Self:
        """Hold both to one ascending table."""
        table_rate(self.rows, self.steps_per_second)
        return self

    def describe(self) -> str:
        """Say the costs in a line."""
        steps = zip(self.rows, self.steps_per_second, strict=True)
        return ", ".join(f"{rate}/s at {rows}" for rows, rate in steps) + " rows"

    @property
    def rate(self) -> Rate:
        """Give the steps a second of a launch by its rows."""
        return table_rate(self.rows, self.steps_per_second)


class Policy(BaseModel):
    """Hold a scheduling policy.

    `reserve` admits only if the longest case of every admitted request fits together; `holdback` keeps room for one
    round's growth beside the newcomer and preempts the youngest under pressure; `preempt` admits what fits now;
    `greedy` does so too but never preempts (for study: it deadlocks).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    policy: str = "holdback"
    admit: Literal["reserve", "holdback", "preempt", "greedy"] = "holdback"
    prefill: Prefill = Prefill()
    max_running: Annotated[int, Field(ge=1, strict=True)] = 256
    # Rounds by which the host's view is late (overlapped scheduling): pages are taken ahead for what it cannot see.
    lag: Annotated[int, Field(ge=0, le=1, strict=True)] = 0
    # A parameter whose size is chosen once a round by the number of running requests.
    tier: Tier | None = None
    # What verifying costs, for specs whose operator `budget` grants drafts by it.
    budget: VerifyBudget | None = None

    @property
    def rate(self) -> Rate | None:
        """Give the steps a second that verify budgets weigh, by the rows of a launch; None trims nothing."""
        return None if self.budget is None else self.budget.rate

    def require_live(self) -> None:
        """Raise UserError for a policy under which requests can block each other for ever."""
        if self.admit == "greedy":
            raise UserError(
                "the policy greedy lets requests block each other; use holdback, reserve or preempt"
            )


ALONE: Final = Policy()


class Pool(NamedTuple):
    """Size the KV pool: `pages` pages of `page_size` slots."""

    pages: int
    page_size: int

    def pages_of(self, slots: Any) -> Any:
        """Give the pages that hold so many slots (rounded up); works on integers and arrays."""
        return -(-slots // self.page_size)


class Waiting(NamedTuple):
    """Describe a waiting request by what its columns will be.

    `hit` pages of its text are there already; `held` of them have a holder, with whom they are counted.
    """

    prompt: int
    limit: int
    emitted: int
    hit: int = 0
    held: int = 0


@dataclass(frozen=True)
class Plan:
    """Hold one iteration's decisions; indices count the live requests (oldest first) or the waiting ones.

    `preempt`: live requests that give all pages back. `pages`: pages every live request owns from now on.
    `run`: live requests whose round runs. `chunks`: (live index, tokens) prefilled. `admit`: pages of each of the
    first waiting requests admitted; `admit_chunks`: tokens of their first chunk. `blocked`: live requests that wait
    for pages (greedy only). `tier`: the size under which the rounds run; None without tiers. Where requests share
    pages (`prefix_cache.py`), `hits` are the pages that each admitted request starts behind, and `shared` the pages of
    each live and then each admitted request that an older one is counted with as well.
    """

    preempt: tuple[int, ...]
    pages: NDArray[np.int32]
    run: NDArray[np.int64]
    chunks: tuple[tuple[int, int], ...]
    admit: tuple[int, ...]
    admit_chunks: tuple[int, ...]
    blocked: tuple[int, ...] = ()
    tier: int | None = None
    hits: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()


def fill_slots(table: Table, prompt: int, emitted: int) -> int:
    """Give the committed slots that prefill must reach for a request with so many emitted tokens."""
    assert table.fill is not None
    return evaluate(table.fill, {"prompt": prompt, "emitted": emitted})


def longest_pages(table: Table, pool: Pool, prompt: int, limit: int, policy: Policy = ALONE) -> int:
    """Give the most pages a request can ever own: its last round, with the largest headroom of any tier."""
    last = fill_slots(table, prompt, max(limit - 1, 0))
    return int(pool.pages_of(last + (most_headroom(table, policy) if limit > 0 else 0)))


def refuse_budget(table: Table, policy: Policy) -> None:
    """Raise UserError for a verify budget that no operator of the spec would read."""
    if policy.budget is None or any(
        op.op == "budget" for plan in table.forwards.values() for op in plan.operators
    ):
        return
    raise UserError(
        f"the policy {policy.policy} has a verify budget, and {table.spec.spec} has no operator budget that would "
        f"grant drafts by it; take a policy without one"
    )


def refuse_impossible(table: Table, pool: Pool, prompt: int, limit: int, policy: Policy = ALONE) -> None:
    """Raise PoolExhausted for a request that even an empty pool cannot carry to its limit."""
    need = longest_pages(table, pool, prompt, limit, policy)
    if need > pool.pages:
        raise PoolExhausted(
            f"a prompt of {counted(prompt, 'token')} with up to {limit} new ones can need {counted(need, 'page')}"
            f" of {counted(pool.page_size, 'slot')}, but the pool has {pool.pages};"
            " give a larger pool, a shorter prompt or a lower limit"
        )


def headroom(table: Table, policy: Policy = ALONE) -> NDArray[np.int32]:
    """Give by state code the slots above the `kv` that the scheduler sees which a round starting there needs.

    With a host lag of one round, `kv` and state are those before the round in flight: it may commit its most, under
    any tier, and the next one may start anywhere; and what it writes stays owned until it is over.
    """
    key = ("headroom", policy.lag, policy.tier)
    if key not in table.cache:
        tiers = tiers_of(table, policy)
        late = policy.lag * max(tiers.peak, table.peak + tiers.advance)
        table.cache[key] = np.array(
            [(late or state.peak) if state.round else 0 for state in table.states], np.int32
        )
    array: NDArray[np.int32] = table.cache[key]
    return array


def most_headroom(table: Table, policy: Policy = ALONE) -> int:
    """Give the most slots above `kv` that a round needs under any tier that the policy can reach."""
    return max(int(headroom(each, policy).max()) for each in tiers_of(table, policy).tables)


def rounds(table: Table) -> NDArray[np.bool_]:
    """Tell by state code whether a state is a round state."""
    array: NDArray[np.bool_] = table.cached(
        "rounds", lambda: np.array([s.round for s in table.states], np.bool_)
    )
    return array


def block_rows(table: Table) -> NDArray[np.int32]:
    """Give by state code the rows that one round of a request can add to a launch, for the token budget."""

    def widest() -> NDArray[np.int32]:
        rows = max((plan.rows for plan in table.forwards.values()), default=0)
        return np.array([rows if state.round else 0 for state in table.states], np.int32)

    array: NDArray[np.int32] = table.cached("block_rows", widest)
    return array


def plan(
    table: Table,
    policy: Policy,
    pool: Pool,
    columns: Columns,
    pages: NDArray[np.int32],
    waiting: Sequence[Waiting],
    shared: NDArray[np.int32] | int = 0,
) -> Plan:
    """Decide one iteration.

    `columns`: the live (admitted) requests, oldest first, int32 [n]; `pages`: pages each owns, int32 [n];
    `waiting`: the head of the queue, oldest first. Ties never arise: the order of arrival is total.
    Where the policy has tiers, `table` is that of any size: the plan chooses the size of the coming rounds.
    `shared`: pages in front of each request that an older one holds as well; they are counted with that one, and
    `pages` are those counted with itself, so that their sum is what the pool has handed out.
    """
    state = columns["state"]
    running = rounds(table)[state]
    tiers = tiers_of(table, policy)
    table = tiers.table(int(running.sum())) if policy.tier else table
    grown: NDArray[np.int32] = pool.pages_of(columns["kv"] + headroom(table, policy)[state]) - shared
    if not waiting and running.all() and grown.sum() <= pool.pages:
        # Nobody waits, prefills or lacks a page: everyone runs, as `decide` would say more slowly.
        return Plan((), grown, np.arange(len(state)), (), (), (), tier=tiers.size(table))
    need = np.where(running, grown, pages).astype(np.int32)
    left = np.where(state == table.codes[PREFILL], _fill(table, columns) - columns["kv"], 0)
    promised = 0
    if policy.admit == "reserve" and waiting:
        promised = _promised(table, pool, columns, policy) - int(np.sum(shared))
    queue = [_queued(table, pool, request, policy) for request in waiting]
    live = len(state)
    owned, actions, tokens, admit_tokens = [0] * live, [WAITS] * live, [0] * live, [0] * len(queue)
    admitted = decide(
        ADMISSIONS.index(policy.admit),
        policy.prefill.mixed,
        policy.prefill.tokens,
        policy.max_running,
        pool.pages,
        pool.pages_of(most_headroom(table, policy)),
        promised,
        running.tolist(),
        pages.tolist(),
        need.tolist(),
        left.tolist(),
        block_rows(table)[state].tolist(),
        queue,
        owned,
        actions,
        tokens,
        admit_tokens,
    )
    return Plan(
        preempt=tuple(index for index, action in enumerate(actions) if action == PREEMPTED),
        pages=np.array(owned, np.int32),
        run=np.array([index for index, action in enumerate(actions) if action == RUNS], np.int64),
        chunks=tuple((index, count) for index, count in enumerate(tokens) if count),
        admit=tuple(take for take, _, _ in queue[:admitted]),
        admit_chunks=tuple(admit_tokens[:admitted]),
        blocked=tuple(index for index, action in enumerate(actions) if action == BLOCKED),
        tier=tiers.size(table),
    )


def _fill(table: Table, columns: Columns) -> NDArray[np.int32]:
    assert table.fill is not None
    slots: NDArray[np.int32] = evaluate_columns(table, table.fill, columns, np)
    return slots


def _queued(table: Table, pool: Pool, request: Waiting, policy: Policy) -> tuple[int, int, int]:
    """Give the pages a waiting request takes at admission, its longest case in pages, and the tokens it prefills."""
    if request.limit <= request.emitted:
        # Nothing to do: it is admitted to its end and holds nothing.
        return 0, 0, 0
    fill = fill_slots(table, request.prompt, request.emitted)
    longest = longest_pages(table, pool, request.prompt, request.limit, policy)
    return (
        int(pool.pages_of(fill)) - request.held,
        longest - request.held,
        fill - request.hit * pool.page_size,
    )


def _promised(table: Table, pool: Pool, columns: Columns, policy: Policy) -> int:
    """Sum the longest cases of the live requests, in pages."""
    last = np.maximum(columns["limit"] - 1, 0).astype(np.int32)
    return int(pool.pages_of(_fill(table, {**columns, "emitted": last}) + most_headroom(table, policy)).sum())
