"""What a prefix cache holds and what a newcomer finds in it: the rules, once for checker, simulator and executor.

Full pages of committed KV stay behind, under the text that they hold, until the pool needs them. A newcomer starts
behind the pages that it finds, and holds them together with whoever else does; nobody writes them again.
A page is counted with its oldest holder, so that the pages that requests are counted with add up to those held:
the scheduler then knows exactly what a preemption returns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from fsm_spec.life_cycle import CHUNK, FIRST
from fsm_spec.policy import fill_slots, plan
from fsm_spec.rules.draft_rows import BESIDE
from fsm_spec.step import evaluate
from fsm_spec.table import END

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from fsm_spec.engine import Engine
    from fsm_spec.policy import Plan
    from fsm_spec.step import Columns
    from fsm_spec.table import Table


class Prefixes(Protocol):
    """Know which pages hold which text; the executor's cache of pages does."""

    @property
    def changes(self) -> int:
        """Count the changes of who holds which page so far: what is known of `common` holds until the next one."""

    def find(self, request: int) -> Sequence[int]:
        """Give the pages that hold the front of a waiting request's text, in order."""

    def held(self, page: int) -> bool:
        """Tell whether a request holds a page."""

    def common(self, request: int) -> Sequence[int]:
        """Give the front pages of a request that have other holders as well."""

    def hold(self, request: int, pages: Sequence[int]) -> None:
        """Let a newcomer hold pages that it found, before any page is handed out."""


class Found(NamedTuple):
    """Hold what a waiting request found: `pages` that it may use, of which `held` are counted with another one."""

    pages: Sequence[int]
    held: int


def refusal(table: Table) -> str:
    """Say why KV of a table may not be found again, nothing where it may.

    A page is found by the text up to its end, so its KV must depend on nothing else: rows that are kept see no row
    behind them, and run base weights.
    """
    if table.prefill_block > 1:
        return "its kept rows see their whole block, so that KV depends on text behind it"
    for plan_ in table.forwards.values():
        if any(segment.kv != "scratch" and segment.adapter for segment in plan_.segments):
            return "its kept rows run with the adapter, so that KV is not the base model's"
    return ""


def lookahead(table: Table) -> int:
    """Give the tokens behind a slot that KV in it depends on: 1 where a draft model reads them beside its states."""
    return int(any(model.kind in BESIDE for model in table.models.values()))


def usable(table: Table, page_size: int, found: int, fill: int) -> int:
    """Give how many of `found` pages an admission may start behind, where prefill reaches `fill` slots.

    A row is left to run for its logits, and under a block contract whole blocks are found.
    """
    most, block = min(found, max(fill - 1, 0) // page_size), table.block or 1
    return next(pages for pages in range(most, -1, -1) if pages * page_size % block == 0)


def commits(table: Table, event: str) -> bool:
    """Tell whether an event may leave KV behind that nobody writes again."""
    return event in (CHUNK, FIRST) or (event in table.codes and not table.state(event).built_in)


def committed(table: Table, event: str, columns: Columns) -> NDArray[np.int32]:
    """Count the slots whose KV is committed in the caches of all models after such an event; int32 [requests].

    `columns` are those after it. A round that ends a request adds nothing: its last rows may not lie in order.
    """
    kv = columns["kv"]
    behind = np.full_like(kv, lookahead(table))
    if event not in (CHUNK, FIRST):
        for model in table.models.values():
            behind = np.maximum(behind, evaluate(table, model.behind, columns, np))
        behind = np.where(columns["state"] == table.codes[END], kv, behind)
    slots: NDArray[np.int32] = np.maximum(kv - behind, 0)
    return slots


def counted_before(fronts: Iterable[Sequence[Any]]) -> list[int]:
    """Give by request, oldest first, how many of its front pages an older one holds and is counted with."""
    seen: set[Any] = set()
    counts = []
    for pages in fronts:
        counts.append(next((place for place, page in enumerate(pages) if page not in seen), len(pages)))
        seen.update(pages)
    return counts


def look_up(engine: Engine, prefixes: Prefixes, queue: Sequence[int]) -> list[Found]:
    """Give what each request of the queue, oldest first, finds; those that no room is left for find nothing."""
    room = engine.policy.max_running - len(engine.live)
    pinned: set[int] = set()
    given = []
    for place, request in enumerate(queue):
        entry = engine.waiting[request]
        if place >= room or entry.limit <= entry.emitted:
            given.append(Found((), 0))
            continue
        pages = prefixes.find(request)
        fill = fill_slots(engine.table, entry.prompt, entry.emitted)
        pages = pages[: usable(engine.table, engine.pool.page_size, len(pages), fill)]
        given.append(Found(pages, sum(prefixes.held(page) or page in pinned for page in pages)))
        # Who stands before it in the queue is admitted before it, and holds what it found.
        pinned.update(pages)
    return given


def decide(engine: Engine, prefixes: Prefixes, columns: Columns | None = None) -> Plan:
    """Let the policy decide an iteration in which requests share pages; a plan counts all pages that each holds.

    `columns` are those of live requests where a round in flight will have moved them.
    """
    live, queue = engine.live, engine.waiting.head()
    found = look_up(engine, prefixes, queue)
    waiting = [
        engine.waiting[request]._replace(hit=len(each.pages), held=each.held)
        for request, each in zip(queue, found, strict=True)
    ]
    shared = engine.count_shared()
    if columns is None:
        columns = {name: values[live] for name, values in engine.columns.items()}
    decision = plan(
        engine.table, engine.policy, engine.pool, columns, engine.pages[live] - shared, waiting, shared
    )
    stays = np.ones(len(live), np.bool_)
    stays[list(decision.preempt)] = False
    shared = np.where(stays, shared, 0).astype(np.int32)
    admitted = found[: len(decision.admit)]
    return replace(
        decision,
        pages=decision.pages + shared,
        admit=tuple(take + each.held for take, each in zip(decision.admit, admitted, strict=True)),
        hits=tuple(len(each.pages) for each in admitted),
        shared=tuple(shared.tolist()) + tuple(each.held for each in admitted),
    )
