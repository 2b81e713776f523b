"""Bounds of a check: what is searched, which requests are composed within them, and how a report tells them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from fsm_spec.checker import properties
from fsm_spec.checker.automaton import Automaton, automaton_of
from fsm_spec.checker.composition import Composition
from fsm_spec.checker.exploration import Limits
from fsm_spec.checker.interleaving import Interleaving
from fsm_spec.checker.shared_prefix import SharedPrefix
from fsm_spec.checker.single_events import SingleEvents
from fsm_spec.errors import UserError
from fsm_spec.policy import Policy, Pool, block_rows, longest_pages, refuse_budget
from fsm_spec.policy_file import load_policy
from fsm_spec.tiers import tiers_of

if TYPE_CHECKING:
    from fsm_spec.table import Table

Moves = Literal["rounds", "action"]

POLICIES: Final = ("reserve", "holdback")
# The smallest number of requests at which one can hold another back from a third.
REQUESTS: Final = 3
# Two slots a page: the smallest size at which a page can be partly used.
PAGE_SIZE: Final = 2
PROMPTS: Final = (1, 2)
# Some ten seconds of search on one core, and a gigabyte.
MOST_STATES: Final = 10_000_000
MEGABYTE: Final = 1 << 20


@dataclass(frozen=True)
class Bounds:
    """Say what is searched; what is None is chosen: see `compositions`.

    `page_size` is read for specs with forwards; an abstract model has been compiled for a page size of its own.
    `abort`: requests may be given up at any point; None: where the spec has forwards. `chunks`: prompts are cut beside
    running requests (a policy file's own token budget always counts). `lag`: rounds by which the host's view is late
    (0 or 1; None: what the policy says). `interleave`: requests move by the scheduler's rounds, or one action at a time
    (None: by rounds where the spec has forwards). `prefix`: requests find pages of their prompts in a prefix cache.
    `max_states` and `max_memory` (megabytes; None:
    half of the machine's) end each search; `stop_first` ends all at the first property that breaks. `properties` are
    those that are decided, by name; all where none is named.
    """

    requests: int | None = None
    pages: int | None = None
    page_size: int = PAGE_SIZE
    policies: tuple[str, ...] = POLICIES
    symmetry: bool = True
    abort: bool | None = None
    chunks: bool = False
    lag: int | None = None
    interleave: Moves | None = None
    prefix: bool = False
    max_states: int = MOST_STATES
    max_memory: int | None = None
    stop_first: bool = False
    properties: tuple[str, ...] = ()

    def refuse_senseless(self) -> None:
        """Raise UserError for bounds within which there is nothing to search."""
        for name in ("requests", "pages", "page_size", "max_states", "max_memory"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name.replace('_', ' ')} must be at least 1, not {value}")
        if self.lag not in (None, 0, 1):
            raise UserError(
                f"the lag is {self.lag}; a host is 0 rounds late, or 1 with overlapped scheduling"
            )
        if not self.policies:
            raise UserError("no policy is named; name reserve and holdback, for example")

    def limits(self, chosen: frozenset[str]) -> Limits:
        """Give where a search ends that is to decide these properties."""
        megabytes = self.max_memory or _memory() // (2 * MEGABYTE)
        return Limits(self.max_states, megabytes * MEGABYTE, chosen if self.stop_first else frozenset())


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def limits_of(table: Table, requests: int) -> tuple[int, ...]:
    """Choose the limits of emitted tokens: up to one past two full rounds; for more requests only the telling ones."""
    most = 2 * max(state.advance for state in table.states) + 2
    return tuple(range(most + 1)) if requests == 1 else tuple(sorted({0, 2, most}))


def prompts_of(bounds: Bounds) -> tuple[int, ...]:
    """Choose the prompts: two short ones; with a prefix cache such that fill a page, and one token more."""
    return (bounds.page_size, bounds.page_size + 1) if bounds.prefix else PROMPTS


def sizes_of(table: Table, requests: int, prompts: Sequence[int] = PROMPTS) -> list[tuple[int, int]]:
    """List the prompts and limits with which requests arrive."""
    return [(prompt, limit) for prompt in prompts for limit in limits_of(table, requests)]


def compositions(table: Table, bounds: Bounds) -> Iterator[Composition | Interleaving]:
    """Compose requests under each policy.

    Where no number of requests is given: one, two and three. Where no pages are: one longest case for one and two
    requests, which they fight for; what all need less one page for more.
    """
    _refuse_rounds(table, bounds)
    known = Automaton(table)
    abort = bool(table.contract) if bounds.abort is None else bounds.abort
    page_size = bounds.page_size if table.contract else table.page_size
    for requests in (bounds.requests,) if bounds.requests else range(1, REQUESTS + 1):
        for name in bounds.policies:
            policy = _policy(table, name, bounds)
            automaton = automaton_of(tiers_of(table, policy).largest, known)
            sizes = sizes_of(automaton.table, requests, prompts_of(bounds)) if table.contract else []
            longest = _longest(automaton, sizes, page_size, policy)
            pages = bounds.pages or (longest if requests < REQUESTS else max(longest, requests * longest - 1))
            if table.contract and bounds.interleave == "action":
                _refuse_scheduled(policy)
                pool = Pool(pages, page_size)
                yield SingleEvents(
                    automaton, policy, pool, requests, sizes, abort=abort, chunks=bounds.chunks
                )
            elif table.contract:
                kind = SharedPrefix if bounds.prefix else Composition
                yield kind(automaton, policy, Pool(pages, page_size), requests, sizes, abort=abort)
            else:
                yield Interleaving(automaton, policy, Pool(pages, page_size), requests, abort=abort)


def _refuse_rounds(table: Table, bounds: Bounds) -> None:
    """Raise UserError where an abstract model is asked for what only rounds have."""
    if table.contract:
        if bounds.prefix and bounds.interleave == "action":
            raise UserError(
                "a prefix cache is the scheduler's, and with --interleave action there is none; drop one"
            )
        return
    if bounds.lag:
        raise UserError(
            f"{table.name} is an abstract model: it has no rounds that a host could see late; drop the lag"
        )
    if bounds.prefix:
        raise UserError(f"{table.name} is an abstract model: it has no prompts to share; drop --prefix")
    if bounds.interleave == "rounds":
        raise UserError(
            f"{table.name} is an abstract model: it moves by single actions only; drop --interleave"
        )


def _refuse_scheduled(policy: Policy) -> None:
    """Raise UserError for what a scheduler decides once a round, where requests move by single actions."""
    if policy.lag:
        raise UserError(
            "a late host plans once a round for all, and with --interleave action there are no such rounds; drop one "
            "of both"
        )


def _longest(automaton: Automaton, sizes: Sequence[tuple[int, int]], page_size: int, policy: Policy) -> int:
    """Give the pages of the longest case of a request."""
    table = automaton.table
    if table.contract is None:
        return Interleaving(automaton, Policy(), Pool(1, table.page_size), 1).longest
    return max(longest_pages(table, Pool(0, page_size), *each, policy) for each in sizes)


def _policy(table: Table, name: str, bounds: Bounds) -> Policy:
    """Give a policy, with the tiers that it has for checks.

    With `chunks`, one that is only named prefills so few tokens that prompts are cut.
    """
    policy = load_policy(name)
    refuse_budget(table, policy)
    if bounds.lag is not None:
        policy = policy.model_copy(update={"lag": bounds.lag})
    if policy.tier is not None:
        policy = policy.model_copy(update={"tier": policy.tier.small()})
    if not bounds.chunks or policy.policy != name or not table.contract:
        return policy
    tokens = int(block_rows(table).max()) + 1
    return policy.model_copy(update={"prefill": policy.prefill.model_copy(update={"tokens": tokens})})


def told_of(table: Table, composed: list[Composition | Interleaving], bounds: Bounds) -> dict[str, Any]:
    """Give the bounds of a result as JSON values."""
    told: dict[str, Any] = {
        "params": dict(table.params),
        "requests": list(dict.fromkeys(each.requests for each in composed)),
        "pages": list(dict.fromkeys(each.pool.pages for each in composed)),
        "page_size": composed[0].pool.page_size,
        "pool": _pool_told([each.requests for each in composed], bounds),
        "policies": list(dict.fromkeys(each.policy.policy for each in composed)),
        "symmetry": bounds.symmetry,
        "abort": composed[0].abort,
        "chunks": any(_cuts(each) for each in composed),
        "lag": max(each.policy.lag for each in composed),
        "prefix": bounds.prefix,
    }
    told["interleave"] = "rounds" if isinstance(composed[0], Composition) else "action"
    tiers = {each.policy.policy: each.policy.tier.describe() for each in composed if each.policy.tier}
    if tiers:
        told["tiers"] = tiers
    if bounds.properties:
        told["properties"] = sorted(properties.choose(table, bounds.properties, prefix=bounds.prefix))
    if table.contract:
        told["prompts"] = list(prompts_of(bounds))
        most = {each.requests: max(composed, key=_most_advance).table for each in composed}
        told["limits"] = {str(requests): list(limits_of(table, requests)) for requests, table in most.items()}
    return told


def _pool_told(requests: Sequence[int], bounds: Bounds) -> str:
    """Say why the pools have as many pages as they have."""
    if bounds.pages:
        return "as given"
    few = sorted({count for count in requests if count < REQUESTS})
    more = [f"all longest cases less a page{' for more' if few else ''}"] if max(requests) >= REQUESTS else []
    whose = f" for {' or '.join(map(str, few))} request{'s' if few[-1] > 1 else ''}" if few and more else ""
    return ", ".join([f"one longest case{whose}"] * bool(few) + more)


def _most_advance(composed: Composition | Interleaving) -> int:
    return composed.table.advance


def _cuts(composed: Composition | Interleaving) -> bool:
    """Tell whether a policy prefills so few tokens that prompts are cut into chunks."""
    if isinstance(composed, Interleaving):
        return isinstance(composed, SingleEvents) and composed.chunks
    rows = int(block_rows(composed.table).max())
    limit = max(limits_of(composed.table, composed.requests))
    return composed.policy.prefill.tokens < composed.requests * max(rows, max(PROMPTS) + limit)
