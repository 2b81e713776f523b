"""Check a table within bounds: all states that a few requests reach, every property, readable counterexamples.

The bounds and what is composed within them are in `bounds.py`, the searches in `exploration.py`, the properties in
`properties.py`. Nothing is claimed beyond the bounds, which
every result carries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from fsm_spec.checker import properties
from fsm_spec.checker.bounds import Bounds, compositions, limits_of, sizes_of, told_of
from fsm_spec.checker.composition import Composition
from fsm_spec.checker.counterexample import Counterexample, explain
from fsm_spec.checker.exploration import Exploration, Limits
from fsm_spec.checker.interleaving import Interleaving
from fsm_spec.checker.packed_rounds import RoundsPacking
from fsm_spec.checker.shared_prefix import SharedPrefix
from fsm_spec.checker.walked import Walk
from fsm_spec.wording import counted

if TYPE_CHECKING:
    from fsm_spec.table import Table

Verdict = Literal["proved", "refuted", "undetermined"]
PROVED: Final[Verdict] = "proved"
REFUTED: Final[Verdict] = "refuted"
UNDETERMINED: Final[Verdict] = "undetermined"
Kind = Literal["built in", "always", "sometimes", "eventually"]


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
    chosen = properties.choose(table, bounds.properties, prefix=bounds.prefix)
    explored: list[Exploration | Walk] = []
    composed: list[Composition | Interleaving] = []
    for each in compositions(table, bounds):
        if tick:
            tick(f"{counted(each.requests, 'request')}, policy {each.policy.policy}")
        explored.append(_explore(each, bounds.limits(chosen), symmetry=bounds.symmetry))
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
        told_of(table, composed, bounds),
        tuple(_searched(each) for each in explored),
        decided,
        tuple(_reserves(explored)),
    )


def _explore(composed: Composition | Interleaving, limits: Limits, *, symmetry: bool) -> Exploration | Walk:
    """Search with compiled code; shared pages have no packed form, and go the plain way."""
    if isinstance(composed, SharedPrefix):
        return Walk(composed, limits, symmetry=symmetry)
    return Exploration(composed, limits, symmetry=symmetry)


def _reserves(explored: Sequence[Exploration | Walk]) -> Iterator[str]:
    """Tell of rounds that reserve more slots than any of their outcomes uses."""
    uses: dict[tuple[int | None, str], int] = {}
    peaks: dict[tuple[int | None, str], int] = {}
    for each in explored:
        if isinstance(each, Exploration) and isinstance(each.packing, RoundsPacking):
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


def _searched(explored: Exploration | Walk) -> Searched:
    composed = explored.composed
    return Searched(
        policy=composed.policy.policy,
        requests=composed.requests,
        pages=composed.pool.pages,
        page_size=composed.pool.page_size,
        states=explored.states,
        transitions=explored.moves,
        depth=explored.depth,
        complete=explored.complete,
        seconds=explored.seconds,
        liveness_seconds=explored.liveness_seconds,
        compile_seconds=explored.compile_seconds,
    )


def _shares(explored: Sequence[Exploration | Walk]) -> bool:
    return any(isinstance(each.composed, SharedPrefix) for each in explored)


def _decide(
    table: Table, explored: list[Exploration | Walk], chosen: frozenset[str], *, ended: bool
) -> Iterator[Decided]:
    complete = all(each.complete for each in explored)
    complete = complete and not (ended and any(not chosen.isdisjoint(each.broken) for each in explored))
    kinds: list[tuple[str, Kind]] = [
        *((name, "built in") for name in properties.built_in(table, prefix=_shares(explored))),
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


__all__ = [
    "PROVED",
    "REFUTED",
    "UNDETERMINED",
    "Bounds",
    "Checked",
    "Decided",
    "Searched",
    "Verdict",
    "check",
    "compositions",
    "limits_of",
    "sizes_of",
]
