"""The scheduler's decisions as pure functions: who is admitted, who prefills how much, who runs, who gives pages back.

The checker composes `plan`, the simulator and the executor call it: one scheduler, two clocks. It reads columns, page
counts and the table, never tokens, carries or time, so that its choices cannot depend on what is being judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fsm_spec import source
from fsm_spec.errors import PoolExhausted, UserError
from fsm_spec.expression import evaluate
from fsm_spec.step import evaluate as evaluate_columns
from fsm_spec.table import PREFILL
from fsm_spec.words import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fsm_spec.step import Columns
    from fsm_spec.table import Table


ADMISSIONS: Final = ("reserve", "holdback", "preempt", "greedy")
# Waiting requests looked at in one iteration; the queue behind them waits for the next.
QUEUE_SEEN: Final = 64


class Prefill(BaseModel):
    """Say how prompts are cut into chunks and whether these ride with decode rows."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    tokens: Annotated[int, Field(ge=1, strict=True)] = 2048
    mixed: Annotated[bool, Field(strict=True)] = True


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


class Pool(NamedTuple):
    """Size the KV pool: `pages` pages of `page_size` slots."""

    pages: int
    page_size: int

    def pages_of(self, slots: Any) -> Any:
        """Give the pages that hold so many slots (rounded up); works on integers and arrays."""
        return -(-slots // self.page_size)


class Waiting(NamedTuple):
    """Describe a waiting request by what its columns will be."""

    prompt: int
    limit: int
    emitted: int


@dataclass(frozen=True)
class Plan:
    """Hold one iteration's decisions; indices count the live requests (oldest first) or the waiting ones.

    `preempt`: live requests that give all pages back. `pages`: pages every live request owns from now on.
    `run`: live requests whose round runs. `chunks`: (live index, tokens) prefilled. `admit`: pages of each of the
    first waiting requests admitted; `admit_chunks`: tokens of their first chunk. `blocked`: live requests that wait
    for pages (greedy only).
    """

    preempt: tuple[int, ...]
    pages: NDArray[np.int32]
    run: NDArray[np.int64]
    chunks: tuple[tuple[int, int], ...]
    admit: tuple[int, ...]
    admit_chunks: tuple[int, ...]
    blocked: tuple[int, ...] = ()


def shipped_policies() -> dict[str, Path]:
    """List the policy files that come with the package, by name."""
    folder = Path(str(resources.files("fsm_spec.specs"))) / "policies"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load_policy(name_or_path: str) -> Policy:
    """Give a policy by its admission rule or shipped name, or read it from a YAML file; raises UserError."""
    if name_or_path in ADMISSIONS:
        return Policy.model_validate({"policy": name_or_path, "admit": name_or_path})
    path = shipped_policies().get(name_or_path.casefold(), Path(name_or_path))
    if not path.is_file():
        known = [*ADMISSIONS, *shipped_policies()]
        raise UserError(f"no policy is called {name_or_path!r} and no such file exists{nearest(name_or_path, known)}")
    data = source.compose(source.read(path, str(path)), str(path)).data
    try:
        return Policy.model_validate(data)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise UserError(f"{path}: {where}: {fault['msg'].lower()}") from None


def fill_slots(table: Table, prompt: int, emitted: int) -> int:
    """Give the committed slots that prefill must reach for a request with so many emitted tokens."""
    assert table.fill is not None
    return evaluate(table.fill, {"prompt": prompt, "emitted": emitted})


def longest_pages(table: Table, pool: Pool, prompt: int, limit: int) -> int:
    """Give the most pages a request can ever own: its last round, with the largest peak."""
    last = fill_slots(table, prompt, max(limit - 1, 0))
    return int(pool.pages_of(last + (table.peak if limit > 0 else 0)))


def refuse_impossible(table: Table, pool: Pool, prompt: int, limit: int) -> None:
    """Raise PoolExhausted for a request that even an empty pool cannot carry to its limit."""
    need = longest_pages(table, pool, prompt, limit)
    if need > pool.pages:
        raise PoolExhausted(
            f"a prompt of {prompt} tokens with up to {limit} new ones can need {need} pages of {pool.page_size} slots, "
            f"but the pool has {pool.pages}; give a larger pool, a shorter prompt or a lower limit"
        )


def peaks(table: Table) -> NDArray[np.int32]:
    """Give the peak by state code: slots above `kv` that a round starting there needs."""
    array: NDArray[np.int32] = table.cached("peaks", lambda: np.array([s.peak for s in table.states], np.int32))
    return array


def rounds(table: Table) -> NDArray[np.bool_]:
    """Tell by state code whether a state is a round state."""
    array: NDArray[np.bool_] = table.cached("rounds", lambda: np.array([s.round for s in table.states], np.bool_))
    return array


def block_rows(table: Table) -> NDArray[np.int32]:
    """Give by state code the rows that one round of a request can add to a launch, for the token budget."""

    def widest() -> NDArray[np.int32]:
        rows = max((plan.rows for plan in table.forwards.values()), default=0)
        return np.array([rows if state.round else 0 for state in table.states], np.int32)

    array: NDArray[np.int32] = table.cached("block_rows", widest)
    return array


def plan(
    table: Table, policy: Policy, pool: Pool, columns: Columns, pages: NDArray[np.int32], waiting: Sequence[Waiting]
) -> Plan:
    """Decide one iteration.

    `columns`: the live (admitted) requests, oldest first, int32 [n]; `pages`: pages each owns, int32 [n];
    `waiting`: the head of the queue, oldest first. Ties never arise: the order of arrival is total.
    """
    state = columns["state"]
    running = rounds(table)[state]
    need = pages.copy()
    need[running] = pool.pages_of(columns["kv"][running] + peaks(table)[state[running]])
    preempt, blocked, owned = _fit(policy, pool, pages, need, running)
    stays = np.ones(len(state), np.bool_)
    stays[list(preempt)] = False
    runs = running & stays
    runs[list(blocked)] = False
    budget = policy.prefill.tokens
    chunks, budget = _chunks(table, columns, stays, budget - (int(block_rows(table)[state[runs]].sum()) if policy.prefill.mixed else 0))
    admit: tuple[int, ...] = ()
    admit_chunks: tuple[int, ...] = ()
    # A newcomer beside a preemption would take the pages that were just given back.
    if not preempt and not blocked:
        admit, admit_chunks = _admit(table, policy, pool, columns, owned, waiting, budget)
    if not policy.prefill.mixed and (chunks or any(admit_chunks)):
        runs[:] = False
        owned = np.where(running & stays, pages, owned)
    return Plan(preempt, owned, np.flatnonzero(runs), chunks, admit, admit_chunks, blocked)


def _fit(
    policy: Policy, pool: Pool, pages: NDArray[np.int32], need: NDArray[np.int32], running: NDArray[np.bool_]
) -> tuple[tuple[int, ...], tuple[int, ...], NDArray[np.int32]]:
    """Give each running request the pages its round needs, oldest first; the youngest give theirs back."""
    # Pages above a round's need return before any are taken.
    owned = np.minimum(pages, need)
    free = pool.pages - int(owned.sum())
    if int((need - owned).sum()) <= free:
        return (), (), need
    preempt: list[int] = []
    blocked: list[int] = []
    youngest = len(need) - 1
    for index in range(len(need)):
        if index > youngest:
            break
        wants = int(need[index] - owned[index])
        while wants > free and policy.admit != "greedy" and youngest >= index:
            free += int(owned[youngest])
            owned[youngest] = 0
            preempt.append(youngest)
            youngest -= 1
        if youngest < index:
            break
        if wants > free:
            blocked.append(index)
            continue
        owned[index] += wants
        free -= wants
    return tuple(preempt), tuple(i for i in blocked if running[i]), owned


def _chunks(
    table: Table, columns: Columns, stays: NDArray[np.bool_], budget: int
) -> tuple[tuple[tuple[int, int], ...], int]:
    """Cut the prompts of admitted requests into this iteration's chunks, oldest first, within the token budget."""
    chunks: list[tuple[int, int]] = []
    prefilling = np.flatnonzero((columns["state"] == table.codes[PREFILL]) & stays)
    if len(prefilling) and table.fill is not None:
        left = evaluate_columns(table, table.fill, columns, np) - columns["kv"]
        for index in prefilling.tolist():
            tokens = min(int(left[index]), budget)
            if tokens < 1:
                break
            chunks.append((index, tokens))
            budget -= tokens
    return tuple(chunks), budget


def _admit(
    table: Table,
    policy: Policy,
    pool: Pool,
    columns: Columns,
    owned: NDArray[np.int32],
    waiting: Sequence[Waiting],
    budget: int,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Admit from the head of the queue while the policy allows; nobody overtakes."""
    admitted: list[int] = []
    chunks: list[int] = []
    live, used = len(owned), int(owned.sum())
    promised = _promised(table, pool, columns) if policy.admit == "reserve" and waiting else 0
    grow = pool.pages_of(table.peak)
    for request in waiting:
        if live >= policy.max_running:
            break
        if request.limit <= request.emitted:
            # Nothing to do: it is admitted to its end and holds nothing.
            admitted.append(0)
            chunks.append(0)
            continue
        fill = fill_slots(table, request.prompt, request.emitted)
        take = int(pool.pages_of(fill))
        if policy.admit == "reserve":
            promised += longest_pages(table, pool, request.prompt, request.limit)
            allowed = promised <= pool.pages
        else:
            room = grow if policy.admit == "holdback" and live > 0 else 0
            allowed = used + take + room <= pool.pages
        if not allowed:
            break
        tokens = max(0, min(fill, budget))
        budget -= tokens
        used += take
        live += 1
        admitted.append(take)
        chunks.append(tokens)
    return tuple(admitted), tuple(chunks)


def _promised(table: Table, pool: Pool, columns: Columns) -> int:
    """Sum the longest cases of the live requests, in pages."""
    if not len(columns["state"]):
        return 0
    assert table.fill is not None
    last = np.maximum(columns["limit"] - 1, 0).astype(np.int32)
    slots = evaluate_columns(table, table.fill, {**columns, "emitted": last}, np) + table.peak
    return int(pool.pages_of(slots).sum())
