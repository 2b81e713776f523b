"""Check a table within small bounds: all states of one and two requests, every property, readable counterexamples.

The searches are in `search.py`, the properties in `properties.py`. Nothing is claimed beyond the bounds, which every
result carries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from fsm_spec import properties
from fsm_spec.automaton import Automaton
from fsm_spec.composition import Composition, Interleaving
from fsm_spec.counterexample import Counterexample, explain
from fsm_spec.policy import Policy, Pool, block_rows, load_policy, longest_pages
from fsm_spec.search import Found, search

if TYPE_CHECKING:
    from fsm_spec.table import Table

Verdict = Literal["holds within bounds", "refuted", "undetermined"]
HOLDS: Final[Verdict] = "holds within bounds"
REFUTED: Final[Verdict] = "refuted"
UNDETERMINED: Final[Verdict] = "undetermined"

POLICIES: Final = ("reserve", "holdback")
# Two slots a page: the smallest size at which a page can be partly used.
PAGE_SIZE: Final = 2
PROMPTS: Final = (1, 2)
# About ten seconds of search on one core.
MOST_STATES: Final = 100_000


@dataclass(frozen=True)
class Searched:
    """Hold the counts of one search; `policy` and `pages` are None for abstract models, which have neither."""

    policy: str | None
    requests: int
    pages: int | None
    states: int
    transitions: int
    depth: int
    seconds: float
    complete: bool


@dataclass(frozen=True)
class Decided:
    """Hold what is known of one property."""

    name: str
    kind: Literal["built in", "always", "sometimes", "eventually"]
    verdict: Verdict
    counterexample: Counterexample | None = None


@dataclass(frozen=True)
class Checked:
    """Hold the result of a check: verdict, bounds in words, counts of every search, every property."""

    spec: str
    digest: str
    verdict: Verdict
    bounds: dict[str, Any]
    searches: tuple[Searched, ...]
    properties: tuple[Decided, ...]

    @property
    def refuted(self) -> tuple[Decided, ...]:
        """List the properties that do not hold."""
        return tuple(decided for decided in self.properties if decided.verdict == REFUTED)

    @property
    def seconds(self) -> float:
        """Give the time of all searches."""
        return sum(searched.seconds for searched in self.searches)

    def content(self) -> dict[str, Any]:
        """Give the result as JSON values."""
        return {
            "spec": self.spec,
            "digest": self.digest,
            "verdict": self.verdict,
            "bounds": self.bounds,
            "states": sum(searched.states for searched in self.searches),
            "transitions": sum(searched.transitions for searched in self.searches),
            "depth": max(searched.depth for searched in self.searches),
            "seconds": round(self.seconds, 3),
            "searches": [
                {**vars(searched), "seconds": round(searched.seconds, 3)} for searched in self.searches
            ],
            "properties": [
                {
                    "name": decided.name,
                    "kind": decided.kind,
                    "verdict": decided.verdict,
                    "counterexample": decided.counterexample.content() if decided.counterexample else None,
                }
                for decided in self.properties
            ],
        }


def check(
    table: Table,
    policies: Sequence[str] = POLICIES,
    most_states: int = MOST_STATES,
    tick: Callable[[int], None] | None = None,
) -> Checked:
    """Search all states of one and of two requests and decide every property within these bounds.

    `policies`: names of admission rules, or policy files; `most_states`: where each search gives up (undetermined);
    `tick` hears the number of states now and then. Raises UserError for an unknown policy.
    """
    automaton = Automaton(table)
    scheduled = _compositions(automaton, policies) if table.contract else []
    composed: Sequence[Composition | Interleaving] = scheduled
    if not table.contract:
        composed = [Interleaving(automaton, requests) for requests in (1, 2)]
    results = [(each, search(each, most_states, tick)) for each in composed]
    decided = tuple(_decide(table, results))
    verdicts = {each.verdict for each in decided}
    verdict = REFUTED if REFUTED in verdicts else UNDETERMINED if UNDETERMINED in verdicts else HOLDS
    searches = tuple(_searched(each, found) for each, found in results)
    return Checked(table.name, table.digest, verdict, _bounds(table, scheduled), searches, decided)


def limits_of(table: Table, requests: int) -> tuple[int, ...]:
    """Choose the limits of emitted tokens: up to one past two full rounds; for two requests only the telling ones."""
    most = 2 * max(state.advance for state in table.states) + 2
    return tuple(range(most + 1)) if requests == 1 else tuple(sorted({0, 2, most}))


def _compositions(automaton: Automaton, policies: Sequence[str]) -> list[Composition]:
    """Compose one and two requests with each policy: a pool for one longest case, and one page less than for two."""
    table = automaton.table
    composed: list[Composition] = []
    for requests in (1, 2):
        sizes = [(prompt, limit) for prompt in PROMPTS for limit in limits_of(table, requests)]
        longest = max(longest_pages(table, Pool(0, PAGE_SIZE), *size) for size in sizes)
        for pages in sorted({longest, max(longest, requests * longest - 1)}):
            pool = Pool(pages, PAGE_SIZE)
            composed += [
                Composition(automaton, _policy(table, name), pool, requests, sizes) for name in policies
            ]
    return composed


def _policy(table: Table, name: str) -> Policy:
    """Give a policy; one that is only named prefills so few tokens that prompts are cut beside a running request."""
    policy = load_policy(name)
    if policy.policy != name:
        return policy
    tokens = int(block_rows(table).max()) + 1
    return policy.model_copy(update={"prefill": policy.prefill.model_copy(update={"tokens": tokens})})


def _searched(composed: Composition | Interleaving, found: Found) -> Searched:
    scheduled = composed if isinstance(composed, Composition) else None
    return Searched(
        policy=scheduled.policy.policy if scheduled else None,
        requests=composed.requests,
        pages=scheduled.pool.pages if scheduled else None,
        states=found.states,
        transitions=found.transitions,
        depth=found.depth,
        seconds=found.seconds,
        complete=found.complete,
    )


def _bounds(table: Table, composed: Sequence[Composition]) -> dict[str, Any]:
    bounds: dict[str, Any] = {"params": dict(table.params), "requests": [1, 2], "pool": None}
    if composed:
        bounds["pool"] = {"pages": sorted({each.pool.pages for each in composed}), "page_size": PAGE_SIZE}
        bounds["prompts"] = list(PROMPTS)
        bounds["limits"] = {str(requests): list(limits_of(table, requests)) for requests in (1, 2)}
        bounds["prefill_tokens"] = {each.policy.policy: each.policy.prefill.tokens for each in composed}
        bounds["abort"] = True
    return bounds


def _decide(table: Table, results: Sequence[tuple[Composition | Interleaving, Found]]) -> list[Decided]:
    complete = all(found.complete for _, found in results)
    decided = []
    kinds: list[tuple[str, Literal["built in", "always", "eventually"]]] = [
        *((name, "built in") for name in properties.built_in(table)),
        *((name, "always") for name in table.always),
        (properties.eventually(table), "eventually"),
    ]
    known = {name for name, _ in kinds}
    assert all(name in known for _, found in results for name in found.broken), "a fault without a property"
    for name, kind in kinds:
        broken = [(composed, found.broken[name]) for composed, found in results if name in found.broken]
        if broken:
            # The shortest path over all searches; the first, with fewest requests, among equals.
            composed, fault = min(broken, key=lambda pair: len(pair[1].path))
            decided.append(Decided(name, kind, REFUTED, explain(composed, name, fault)))
        else:
            decided.append(Decided(name, kind, HOLDS if complete else UNDETERMINED))
    shown: set[str] = set().union(*(found.shown for _, found in results))
    # What lies behind a broken property was not searched, so that nothing can be said to be missing.
    whole = complete and not any(
        each.kind in ("built in", "always") and each.verdict == REFUTED for each in decided
    )
    for name in table.sometimes:
        verdict: Verdict = HOLDS if name in shown else REFUTED if whole else UNDETERMINED
        decided.append(Decided(name, "sometimes", verdict))
    return decided
