"""Why requests are stuck: what each of them waits for, and what the pool has left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsm_spec import life_cycle
from fsm_spec.checker.composition import ABSENT, Composition, Held, State
from fsm_spec.checker.interleaving import Interleaving
from fsm_spec.policy import fill_slots, headroom, longest_pages
from fsm_spec.table import PREFILL, WAIT
from fsm_spec.wording import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from fsm_spec.table import Table


def stuck_reasons(
    composed: Composition | Interleaving, state: State, looping: Collection[int] = ()
) -> Iterator[str]:
    """Say for every request that has not ended where it is, what it holds and what it lacks; then the pool.

    `looping` are the requests that move on a cycle, if the state is on one.
    """
    free = composed.pool.pages - composed.in_common(state) - sum(entry.pages for entry in state if entry)
    for request, entry in enumerate(state):
        if entry is None or not entry.columns or entry == ABSENT:
            continue
        where = f"request {request} is in {composed.automaton.state_of(entry.columns)}"
        held = f" with {_pages(entry.pages)}" if entry.pages else ""
        if looping:
            reason = "it moves, but gets nowhere" if request in looping else "nothing moves it meanwhile"
        else:
            reason = _reason(composed, state, entry, free)
        reason = hopeless(composed, entry) or reason
        yield f"{where}{held}: {reason}" if reason else f"{where}{held}"
    yield f"{_pages(free)} of {composed.pool.pages} {'is' if free == 1 else 'are'} free"


def _reason(composed: Composition | Interleaving, state: State, entry: Held, free: int) -> str:
    if isinstance(composed, Composition):
        return _scheduled(composed, _table(composed, state), entry, free)
    live = sum(composed.lives(each.columns) for each in state if each and each.columns)
    return "; ".join(_lacking(composed, entry, live, free)) or _waiting(composed, entry)


def _table(composed: Composition, state: State) -> Table:
    """Give the table under which the next round would run."""
    running = sum(composed.table.states[entry.visible[0]].round for entry in state if entry and entry.columns)
    return composed.tiers.table(running)


def _scheduled(composed: Composition, table: Table, entry: Held, free: int) -> str:
    pool = composed.pool
    named = composed.automaton.columns(entry.visible)
    state = table.states[entry.visible[0]]
    if state.name == WAIT:
        take = int(pool.pages_of(fill_slots(table, named["prompt"], named["emitted"])))
        return f"admission takes {_pages(take)}, and policy {composed.policy.policy} does not admit it"
    if state.name == PREFILL:
        return ""
    need = int(pool.pages_of(named["kv"] + headroom(table, composed.policy)[entry.visible[0]])) - entry.shared
    return f"its round needs {_pages(need - entry.pages)} more" if need - entry.pages > free else ""


def _lacking(composed: Interleaving, entry: Held, live: int, free: int) -> Iterator[str]:
    """Name the events that wait for pages; nothing for a request that waits or can go on."""
    events = [
        (name, way)
        for name, way in composed.events(entry.columns)
        if name not in (life_cycle.ADMIT, life_cycle.PREEMPT, life_cycle.ABORT)
        and composed.chosen(entry.columns, way, live)
    ]
    if not events and composed.lives(entry.columns):
        yield "no event leaves this state"
    needs = {name: composed.grows(entry.columns, name, way) for name, way in events}
    for name, need in needs.items():
        if need > max(free, 0):
            yield f"{name} needs {_pages(need)} more"


def _waiting(composed: Interleaving, entry: Held) -> str:
    if composed.lives(entry.columns):
        return ""
    return f"policy {composed.policy.policy} does not admit it"


def hopeless(composed: Composition | Interleaving, entry: Held | None) -> str:
    """Tell of a request that no empty pool could hold; nothing of one that a pool can."""
    if isinstance(composed, Interleaving):
        need = composed.longest
    else:
        assert entry is not None
        named = composed.automaton.columns(entry.columns)
        need = longest_pages(composed.table, composed.pool, named["prompt"], named["limit"], composed.policy)
    pages = composed.pool.pages
    if need <= pages:
        return ""
    return f"cannot make progress: it may need {_pages(need)}, and the pool has {pages} even when empty"


def _pages(count: int) -> str:
    return counted(count, "page")
