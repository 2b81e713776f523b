"""Check a table within bounds: all states that a few requests reach, every property, readable counterexamples.

The searches are in `exploration.py`, the properties in `properties.py`. Nothing is claimed beyond the bounds, which
every result carries.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from fsm_spec import properties
from fsm_spec.automaton import Automaton, automaton_of
from fsm_spec.composition import Composition
from fsm_spec.counterexample import Counterexample, explain
from fsm_spec.errors import UserError
from fsm_spec.exploration import Exploration, Limits
from fsm_spec.interleaving import Interleaving
from fsm_spec.packed_rounds import RoundsPacking
from fsm_spec.policy import Policy, Pool, block_rows, load_policy, longest_pages
from fsm_spec.single_events import SingleEvents
from fsm_spec.tiers import tiers_of

if TYPE_CHECKING:
    from fsm_spec.table import Table

Verdict = Literal["proved", "refuted", "undetermined"]
PROVED: Final[Verdict] = "proved"
REFUTED: Final[Verdict] = "refuted"
UNDETERMINED: Final[Verdict] = "undetermined"
Kind = Literal["built in", "always", "sometimes", "eventually"]
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
    (None: by rounds where the spec has forwards). `max_states` and `max_memory` (megabytes; None:
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


@dataclass(frozen=True)
class Searched:
    """Hold the counts of one search."""

    policy: str
    requests: int
    pages: int
    page_size: int
    states: int
    transitions: int
    depth: int
    complete: bool
    seconds: float
    liveness_seconds: float
    compile_seconds: float


@dataclass(frozen=True)
class Decided:
    """Hold what is known of one property."""

    name: str
    kind: Kind
    verdict: Verdict
    counterexample: Counterexample | None = None

    def content(self) -> dict[str, Any]:
        """Give the property as JSON values."""
        example = self.counterexample.content() if self.counterexample else None
        return {"name": self.name, "kind": self.kind, "verdict": self.verdict, "counterexample": example}


@dataclass(frozen=True)
class Checked:
    """Hold the result of a check: verdict, bounds in words, counts of every search, every property."""

    table: Table
    verdict: Verdict
    bounds: dict[str, Any]
    searches: tuple[Searched, ...]
    properties: tuple[Decided, ...]
    # What is no fault, and worth a look: pages reserved that no outcome needs.
    notes: tuple[str, ...] = ()

    @property
    def refuted(self) -> tuple[Decided, ...]:
        """List the properties that do not hold."""
        return tuple(decided for decided in self.properties if decided.verdict == REFUTED)

    @property
    def states(self) -> int:
        """Count the states of all searches."""
        return sum(searched.states for searched in self.searches)

    @property
    def transitions(self) -> int:
        """Count the transitions of all searches."""
        return sum(searched.transitions for searched in self.searches)

    @property
    def seconds(self) -> float:
        """Give the time of all searches for states, compile time and liveness apart."""
        return sum(searched.seconds for searched in self.searches)

    def content(self) -> dict[str, Any]:
        """Give the result as JSON values."""
        return {
            "spec": self.table.name,
            "digest": self.table.digest,
            "verdict": self.verdict,
            "bounds": self.bounds,
            "states": self.states,
            "transitions": self.transitions,
            "depth": max((searched.depth for searched in self.searches), default=0),
            "seconds": round(self.seconds, 6),
            "liveness_seconds": round(sum(each.liveness_seconds for each in self.searches), 6),
            "compile_seconds": round(sum(each.compile_seconds for each in self.searches), 6),
            "searches": [_rounded(vars(searched)) for searched in self.searches],
            "properties": [decided.content() for decided in self.properties],
            "notes": list(self.notes),
        }


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 6) if name.endswith("seconds") else value for name, value in values.items()}


def check(table: Table, bounds: Bounds | None = None, tick: Callable[[str], None] | None = None) -> Checked:
    """Search all states within the bounds and decide every property.

    `tick` hears what is searched next. Raises UserError for bounds that make no sense, an unknown policy, or more
    requests than pack into a word.
    """
    bounds = bounds or Bounds()
    bounds.refuse_senseless()
    chosen = properties.choose(table, bounds.properties)
    explored: list[Exploration] = []
    composed: list[Composition | Interleaving] = []
    for each in compositions(table, bounds):
        if tick:
            tick(f"{each.requests} request{'s' if each.requests > 1 else ''}, policy {each.policy.policy}")
        explored.append(Exploration(each, bounds.limits(chosen), symmetry=bounds.symmetry))
        composed.append(each)
        if bounds.stop_first and not chosen.isdisjoint(explored[-1].broken):
            break
    decided = tuple(
        each for each in _decide(table, explored, chosen, ended=bounds.stop_first) if each.name in chosen
    )
    verdicts = {each.verdict for each in decided}
    verdict = REFUTED if REFUTED in verdicts else UNDETERMINED if UNDETERMINED in verdicts else PROVED
    return Checked(
        table,
        verdict,
        _told(table, composed, bounds),
        tuple(_searched(each) for each in explored),
        decided,
        tuple(_reserves(explored)),
    )


def _reserves(explored: Sequence[Exploration]) -> Iterator[str]:
    """Tell of rounds that reserve more slots than any of their outcomes uses."""
    uses: dict[tuple[int | None, str], int] = {}
    peaks: dict[tuple[int | None, str], int] = {}
    for each in explored:
        if isinstance(each.packing, RoundsPacking):
            for (size, state), used in each.packing.uses.items():
                uses[size, state] = max(used, uses.get((size, state), 0))
                peaks[size, state] = each.packing.tiers.of_size(size).state(state).peak
    for key, used in uses.items():
        if used < peaks[key]:
            told = "" if key[0] is None else f" of size {key[0]}"
            yield (
                f"a round from {key[1]}{told} reserves {peaks[key]} slots above kv, and no outcome uses more than "
                f"{used}: pages are held for nothing"
            )


def limits_of(table: Table, requests: int) -> tuple[int, ...]:
    """Choose the limits of emitted tokens: up to one past two full rounds; for more requests only the telling ones."""
    most = 2 * max(state.advance for state in table.states) + 2
    return tuple(range(most + 1)) if requests == 1 else tuple(sorted({0, 2, most}))


def sizes_of(table: Table, requests: int) -> list[tuple[int, int]]:
    """List the prompts and limits with which requests arrive."""
    return [(prompt, limit) for prompt in PROMPTS for limit in limits_of(table, requests)]


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
            longest = _longest(automaton, requests, page_size, policy)
            pages = bounds.pages or (longest if requests < REQUESTS else max(longest, requests * longest - 1))
            if table.contract and bounds.interleave == "action":
                _refuse_scheduled(policy)
                sizes = sizes_of(automaton.table, requests)
                pool = Pool(pages, page_size)
                yield SingleEvents(
                    automaton, policy, pool, requests, sizes, abort=abort, chunks=bounds.chunks
                )
            elif table.contract:
                sizes = sizes_of(automaton.table, requests)
                yield Composition(automaton, policy, Pool(pages, page_size), requests, sizes, abort=abort)
            else:
                yield Interleaving(automaton, policy, Pool(pages, page_size), requests, abort=abort)


def _refuse_rounds(table: Table, bounds: Bounds) -> None:
    """Raise UserError where an abstract model is asked for what only rounds have."""
    if table.contract:
        return
    if bounds.lag:
        raise UserError(
            f"{table.name} is an abstract model: it has no rounds that a host could see late; drop the lag"
        )
    if bounds.interleave == "rounds":
        raise UserError(
            f"{table.name} is an abstract model: it moves by single actions only; drop --interleave"
        )


def _refuse_scheduled(policy: Policy) -> None:
    """Raise UserError for what a scheduler decides once a round, where requests move by single actions."""
    what = "tiers are chosen" if policy.tier else "a late host plans" if policy.lag else ""
    if what:
        raise UserError(
            f"{what} once a round, and with --interleave action there are no rounds; drop one of both"
        )


def _longest(automaton: Automaton, requests: int, page_size: int, policy: Policy) -> int:
    """Give the pages of the longest case of a request."""
    table = automaton.table
    if table.contract is None:
        return Interleaving(automaton, Policy(), Pool(1, table.page_size), 1).longest
    return max(
        longest_pages(table, Pool(0, page_size), *sizes, policy) for sizes in sizes_of(table, requests)
    )


def _policy(table: Table, name: str, bounds: Bounds) -> Policy:
    """Give a policy, with the tiers that it has for checks.

    With `chunks`, one that is only named prefills so few tokens that prompts are cut.
    """
    policy = load_policy(name)
    if bounds.lag is not None:
        policy = policy.model_copy(update={"lag": bounds.lag})
    if policy.tier is not None:
        policy = policy.model_copy(update={"tier": policy.tier.small()})
    if not bounds.chunks or policy.policy != name or not table.contract:
        return policy
    tokens = int(block_rows(table).max()) + 1
    return policy.model_copy(update={"prefill": policy.prefill.model_copy(update={"tokens": tokens})})


def _searched(explored: Exploration) -> Searched:
    composed, reached = explored.composed, explored.reached
    return Searched(
        policy=composed.policy.policy,
        requests=composed.requests,
        pages=composed.pool.pages,
        page_size=composed.pool.page_size,
        states=len(reached.states),
        transitions=int(reached.moves),
        depth=explored.depth,
        complete=bool(reached.complete),
        seconds=explored.seconds,
        liveness_seconds=explored.liveness_seconds,
        compile_seconds=explored.compile_seconds,
    )


def _told(table: Table, composed: list[Composition | Interleaving], bounds: Bounds) -> dict[str, Any]:
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
    }
    told["interleave"] = "rounds" if isinstance(composed[0], Composition) else "action"
    tiers = {each.policy.policy: each.policy.tier.describe() for each in composed if each.policy.tier}
    if tiers:
        told["tiers"] = tiers
    if bounds.properties:
        told["properties"] = sorted(properties.choose(table, bounds.properties))
    if table.contract:
        told["prompts"] = list(PROMPTS)
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


def _decide(
    table: Table, explored: list[Exploration], chosen: frozenset[str], *, ended: bool
) -> Iterator[Decided]:
    complete = all(each.reached.complete for each in explored)
    complete = complete and not (ended and any(not chosen.isdisjoint(each.broken) for each in explored))
    kinds: list[tuple[str, Kind]] = [
        *((name, "built in") for name in properties.built_in(table)),
        *((name, "always") for name in table.always),
        (properties.eventually(table), "eventually"),
    ]
    lost = False
    for name, kind in kinds:
        broken = [each for each in explored if name in each.broken]
        if broken:
            # The shortest path over all searches; the first, with fewest requests, among equals.
            nearest = min(broken, key=lambda each: each.broken[name])
            lost = lost or name in properties.DEAD_ENDS
            yield Decided(name, kind, REFUTED, explain(nearest.composed, name, nearest.fault(name)))
        else:
            # What lies behind a step that leads nowhere was not searched, so that nobody knows whether it ends there.
            known = complete and not (lost and kind == "eventually")
            yield Decided(name, kind, PROVED if known else UNDETERMINED)
    shown = frozenset[str]().union(*(each.shown for each in explored))
    for name in table.sometimes:
        # Nor can anything be said to be missing.
        missing: Verdict = REFUTED if complete and not lost else UNDETERMINED
        yield Decided(name, "sometimes", PROVED if name in shown else missing)
