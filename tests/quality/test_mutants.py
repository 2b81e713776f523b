"""Planted faults must be found: each file of `mutants/` is a fault, refuted by the property and at the depth it names.

A mutant is a change of a spec's text, of its compiled table, or of the scheduler around it. What the loader finds is
compared word for word; everything else is searched, in plain Python and compiled, and the spec without the fault must
hold under the same bounds. `mutants/README.md` says what the keys mean.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fsm_spec.checker import composition
from fsm_spec.checker.automaton import Automaton, Values
from fsm_spec.checker.composition import Composition, Held, Move, State
from fsm_spec.checker.exploration import STATE_BYTES, Exploration, Limits
from fsm_spec.checker.interleaving import Interleaving
from fsm_spec.checker.search import Fault, search
from fsm_spec.checker.shared_prefix import SharedPrefix
from fsm_spec.compile import compile_table
from fsm_spec.language.expression import parse
from fsm_spec.language.findings import SpecFindings
from fsm_spec.language.piece import parse_piece
from fsm_spec.load import find, loads
from fsm_spec.policy import Plan, Policy, Pool, plan
from fsm_spec.promela.export import promela
from fsm_spec.table import Row, Table
from fsm_spec.tiers import Tier, tiers_of

FOLDER = Path(__file__).parent / "mutants"
MUTANTS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
MOST_STATES = 50_000

Replacements = list[tuple[str, str]]


class RowChange(BaseModel):
    """Change a row, or add one; expressions are over columns, arguments and states, pieces have explicit ends."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    when: str | bool | None = None
    to: str | None = None
    keep: int | str | None = None
    emit: list[str] | None = None
    sets: Annotated[dict[str, int | str] | None, Field(alias="set")] = None

    def fields(self) -> dict[str, Any]:
        """Give the fields of a row that differ."""
        changes: dict[str, Any] = {}
        if self.when is not None:
            changes["guard"] = parse(self.when, "bool")
        if self.to is not None:
            changes["target"] = self.to
        if self.keep is not None:
            changes["keep"] = parse(self.keep)
        if self.emit is not None:
            changes["emit"] = tuple(parse_piece(text) for text in self.emit)
        if self.sets is not None:
            changes["sets"] = tuple((name, parse(value)) for name, value in self.sets.items())
        return changes


class StateChange(BaseModel):
    """Change what a state holds, or what a round that starts there needs."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    peak: int | None = None
    forward: str | None = None
    kv: dict[str, int | str] = {}

    def applied(self, state: Any) -> Any:  # noqa: ANN401 - a state plan, as it is
        """Give the changed state."""
        changes = {
            name: value
            for name, value in (("peak", self.peak), ("forward", self.forward))
            if value is not None
        }
        holding = {kind: parse(slots) for kind, slots in self.kv.items()}
        return replace(state, holding={**state.holding, **holding}, **changes)


class Surgery(BaseModel):
    """Change a compiled table: rows by `FROM -EVENT-> TO` (`#2` behind the second alike), states by name.

    `slots` are those of segments, by `FORWARD.SEGMENT`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    rows: dict[str, RowChange] = {}
    add: dict[str, RowChange] = {}
    states: dict[str, StateChange] = {}
    slots: dict[str, str] = {}
    drop: list[str] = []

    def applied(self, table: Table) -> Table:
        """Give the changed table."""
        labels: dict[str, Row] = {}
        for row in table.rows:
            label, copies = table.label(2 * row.index), 2
            while label in labels:
                label, copies = f"{table.label(2 * row.index)} #{copies}", copies + 1
            labels[label] = row
        changed = {labels[label].index: change for label, change in self.rows.items()}
        gone = {labels[label].index for label in self.drop}
        rows = [
            replace(row, **changed[row.index].fields()) if row.index in changed else replace(row)
            for row in table.rows
            if row.index not in gone
        ]
        for label, change in self.add.items():
            source, event, target = label.replace("->", "-").split("-")
            rows.append(Row(-1, (source.strip(),), event.strip(), target.strip(), **change.fields()))
        events = {
            name: replace(
                event,
                emits=any(row.emit for row in rows if row.event == name),
                states=tuple(
                    dict.fromkeys(source for row in rows if row.event == name for source in row.sources)
                ),
            )
            for name, event in table.events.items()
        }
        unknown = set(self.states) - set(table.codes)
        assert not unknown, f"no state is called {unknown}"
        states = tuple(
            self.states[state.name].applied(state) if state.name in self.states else state
            for state in table.states
        )
        forwards = {
            name: replace(plan, segments=tuple(self._moved(name, segment) for segment in plan.segments))
            for name, plan in table.forwards.items()
        }
        numbered = tuple(replace(row, index=index) for index, row in enumerate(rows))
        return replace(table, rows=numbered, states=states, events=events, forwards=forwards, cache={})

    def _moved(self, forward: str, segment: Any) -> Any:  # noqa: ANN401 - a segment's plan, as it is
        """Give a segment with its rows in other slots, if they are to be moved."""
        slot = self.slots.get(f"{forward}.{segment.name}")
        return segment if slot is None else replace(segment, slot=parse(slot))


class Mutant(BaseModel):
    """Hold one planted fault; see `mutants/README.md`."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    about: str
    pitfalls: list[str]
    spec: str
    given: Annotated[Replacements, Field(alias="with")] = []
    replace: Replacements = []
    findings: list[str] = []
    table: Surgery | None = None
    scheduler: str | None = None
    params: dict[str, int] = {}
    policy: str = "reserve"
    base_policy: str | None = None
    prefill: int = 8
    requests: int = 1
    pages: int = 12
    page_size: int = 2
    arrivals: list[tuple[int, int]] = [(1, 4)]
    abort: bool = True
    lag: int = 0
    tier: Tier | None = None
    prefix: bool = False
    spin: bool = False
    refutes: str | None = None
    also: list[str] = []
    depth: int | None = None


@cache
def read(name: str) -> Mutant:
    """Read a mutant; a key that is misspelt is an error."""
    return Mutant.model_validate(yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))


def changed(text: str, replacements: Replacements) -> str:
    """Replace parts of a text, each of which must stand there exactly once."""
    for old, new in replacements:
        assert 1 == text.count(old), f"{old!r} stands {text.count(old)} times in the spec"
        text = text.replace(old, new)
    return text


def base_text(mutant: Mutant) -> str:
    """Give the text of the spec without the fault."""
    own = FOLDER / "models" / f"{mutant.spec}.yaml"
    return changed((own if own.exists() else find(mutant.spec)).read_text(encoding="utf-8"), mutant.given)


def compiled(text: str, mutant: Mutant) -> Table:
    """Compile a text for the checker's parameters, or for the mutant's."""
    loaded = loads(text, "mutant.yaml")
    size = mutant.page_size if loaded.spec.contract is None else 1
    return compile_table(loaded.spec, mutant.params, check=True, page_size=size, line_of=loaded.line_of)


# Faults of what stands around the table ----------------------------------------------------------------------------


class Leaking(Composition):
    """Keep the pages of requests that have ended, one way or all: the scheduler never gets them back."""

    aborted, finished = True, False

    def _abort(self, state: State) -> Iterator[Move]:
        for move in super()._abort(state):
            (part,) = move.parts
            kept = part.pages[0] if self.aborted else 0
            after = tuple(
                Held((), kept) if index == part.request else entry for index, entry in enumerate(move.after)
            )
            yield move._replace(after=after)

    def _settled(self, values: Values, pages: int, seen: Values = (), shared: int = 0) -> Held:
        held = super()._settled(values, pages, seen, shared)
        return held if held.columns or not self.finished else Held((), pages)

    def _iterate(self, state: State) -> Iterator[Move]:
        lost = sum(entry.pages for entry in state if entry and not entry.columns)
        whole, self.pool = self.pool, Pool(self.pool.pages - lost, self.pool.page_size)
        self._plans = {}
        yield from super()._iterate(state)
        self.pool = whole


class LeakingAtEnd(Leaking):
    """Keep the pages of requests that finish."""

    aborted, finished = False, True


class FreedTwice(SharedPrefix):
    """Count the pages of a chain as free as soon as one of its holders could give them back."""

    @staticmethod
    def _counted_before(live: Sequence[Held]) -> NDArray[np.int32]:
        return np.array([entry.shared for entry in live], np.int32)


def a_page_less(*args: Any) -> Plan:  # noqa: ANN401 - handed on
    """Give running requests one page less than a round needs: what was taken before is all they have."""
    decided = plan(*args)
    pages = decided.pages.copy()
    pages[decided.run] -= 1
    return replace(decided, pages=pages)


def a_page_twice(*args: Any) -> Plan:  # noqa: ANN401 - handed on
    """Preempt on paper only: pages are handed on, and their old holders keep them."""
    decided = plan(*args)
    pages = decided.pages.copy()
    pages[list(decided.preempt)] = args[4][list(decided.preempt)]
    return replace(decided, pages=pages, preempt=())


def all_at_once(*args: Any) -> Plan:  # noqa: ANN401 - handed on
    """Preempt everybody whenever anybody must give pages back."""
    decided = plan(*args)
    if not decided.preempt:
        return decided
    everybody = tuple(range(len(decided.pages)))
    return replace(decided, preempt=everybody, run=decided.run[:0], chunks=(), pages=decided.pages * 0)


def lag_ignored(table: Table, policy: Policy, *others: Any) -> Plan:  # noqa: ANN401 - handed on
    """Plan for what the late host sees, as if nothing were in flight."""
    return plan(table, policy.model_copy(update={"lag": 0}), *others)


def tier_recomputed(*args: Any) -> Plan:  # noqa: ANN401 - handed on
    """Run the rounds in the size that one request less would get, with the pages of the size that was chosen."""
    decided = plan(*args)
    tiers = tiers_of(args[0], args[1])
    return replace(decided, tier=tiers.size(tiers.table(len(decided.run) - 1)))


PLANS = {
    "tier recomputed": tier_recomputed,
    "a page less": a_page_less,
    "a page twice": a_page_twice,
    "all at once": all_at_once,
    "lag ignored": lag_ignored,
}
COMPOSITIONS = {
    "aborted requests keep pages": Leaking,
    "finished requests keep pages": LeakingAtEnd,
    "shared pages freed": FreedTwice,
}


def composed(mutant: Mutant, table: Table, *, faulty: bool) -> Composition | Interleaving:
    """Compose the requests of a mutant around a table."""
    name = mutant.policy if faulty or mutant.base_policy is None else mutant.base_policy
    policy = Policy.model_validate(
        {"policy": name, "admit": name, "prefill": {"tokens": mutant.prefill}, "lag": mutant.lag}
    ).model_copy(update={"tier": mutant.tier})
    pool = Pool(mutant.pages, mutant.page_size)
    automaton = Automaton(table)
    if table.contract is None:
        return Interleaving(automaton, policy, pool, mutant.requests, abort=mutant.abort)
    plain = SharedPrefix if mutant.prefix else Composition
    kind = COMPOSITIONS.get(mutant.scheduler or "", plain) if faulty else plain
    return kind(automaton, policy, pool, mutant.requests, mutant.arrivals, abort=mutant.abort)


def depth(fault: Fault) -> int:
    """Count the moves of a counterexample."""
    return len(fault.path) - 1 + (fault.move is not None)


def first_refuted(broken: Mapping[str, Fault]) -> tuple[set[str], int | None]:
    """Name the properties that the shortest counterexample breaks, and its depth."""
    least = min((depth(fault) for fault in broken.values()), default=None)
    return {name for name, fault in broken.items() if depth(fault) == least}, least


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault is found by the property and at the depth written beside it, and by no other one before."""
    mutant = read(name)
    text = base_text(mutant)
    faulty = changed(text, mutant.replace)
    if mutant.findings:
        with pytest.raises(SpecFindings) as caught:
            loads(faulty, "mutant.yaml")
        assert mutant.findings == [f"{found.path}: {found.message}" for found in caught.value.findings]
        faulty = text
    if mutant.refutes is None:
        return
    table = compiled(faulty, mutant)
    if mutant.table is not None:
        table = mutant.table.applied(table)
    if mutant.scheduler in PLANS:
        monkeypatch.setattr(composition, "plan", PLANS[mutant.scheduler])
    together = composed(mutant, table, faulty=True)
    found = search(together, MOST_STATES)
    assert found.complete
    assert ({mutant.refutes, *mutant.also}, mutant.depth) == first_refuted(found.broken)
    if mutant.scheduler is None and not mutant.prefix:
        # Shared pages have no packed form. The compiled search has the scheduler's own functions inside, so that no
        # fault can be put around it.
        explored = Exploration(together, Limits(MOST_STATES, MOST_STATES * STATE_BYTES))
        faults = {name: explored.fault(name) for name in explored.broken}
        assert explored.reached.complete
        assert ({mutant.refutes, *mutant.also}, mutant.depth) == first_refuted(faults)


@pytest.mark.parametrize("name", [name for name in MUTANTS if read(name).spin])
def test_spin_finds_mutants_at_the_same_depth(name: str, tmp_path: Path) -> None:
    """Spin, which shares no code with us, breaks the same property of the exported model in as many steps."""
    for tool in ("spin", "gcc"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed; on Debian: apt-get install spin gcc")
    mutant = read(name)
    table = compiled(changed(base_text(mutant), mutant.replace), mutant)
    if mutant.table is not None:
        table = mutant.table.applied(table)
    model = promela(cast("Interleaving", composed(mutant, table, faulty=True)))
    # Breadth first Spin takes no hidden variables; those of a step only widen its states. Of the assertions only
    # those of the property are left, so that a break is one of this property.
    lines = [line.replace("hidden ", "") for line in model.splitlines()]
    kept = [line for line in lines if "assert(" not in line or f"/* {mutant.refutes} */" in line]
    (tmp_path / "model.pml").write_text("\n".join(kept) + "\n", encoding="utf-8")
    printed = ""
    for command in ("spin -a model.pml", "gcc -O0 -w -DBFS -DSAFETY -DNOREDUCE -o pan pan.c", "./pan"):
        done = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, text=True, check=False)
        printed += done.stdout + done.stderr
    found = re.search(r"pan:1: (assertion violated|invalid end state).*\(at depth (\d+)\)", printed)
    assert found, printed
    # A broken assertion belongs to the step behind the depth that Spin names, a state without steps to that depth.
    assert mutant.depth == int(found[2]) + (found[1] == "assertion violated")


def base_of(mutant: Mutant) -> tuple[object, ...]:
    """Say what the search of the base depends on: mutants share it."""
    return (
        base_text(mutant),
        mutant.base_policy or mutant.policy,
        mutant.prefill,
        mutant.requests,
        mutant.pages,
        mutant.page_size,
        str(mutant.arrivals),
        mutant.abort,
        mutant.lag,
        str(mutant.tier),
        mutant.prefix,
        str(mutant.params),
    )


BASES = {base_of(read(name)): name for name in MUTANTS if read(name).refutes}


@pytest.mark.parametrize("name", sorted(BASES.values()))
def test_specs_without_the_fault_hold(name: str) -> None:
    """A mutant is refuted for its fault: under the same bounds the spec without it breaks nothing."""
    mutant = read(name)
    found = search(composed(mutant, compiled(base_text(mutant), mutant), faulty=False), MOST_STATES)
    assert found.complete
    assert {} == found.broken


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_say_what_they_are(name: str) -> None:
    """A mutant plants exactly one fault, names its pitfall, and says how it is refuted."""
    mutant = read(name)
    assert mutant.about
    assert mutant.pitfalls
    assert mutant.findings or mutant.refutes
    assert (mutant.refutes is None) == (mutant.depth is None)
    assert bool(mutant.replace) or mutant.table is not None or mutant.scheduler or mutant.base_policy
    assert mutant.scheduler in {None, *PLANS, *COMPOSITIONS}


def test_there_are_enough() -> None:
    """Every group of pitfalls has mutants, and Spin confirms some of them."""
    mutants = [read(name) for name in MUTANTS]
    assert len(mutants) >= 70
    assert sum(mutant.spin for mutant in mutants) >= 5
    pitfalls = {pitfall for mutant in mutants for pitfall in mutant.pitfalls}
    assert {"K", "R", "D", "T", "G", "O", "E", "1"} <= {pitfall[0] for pitfall in pitfalls}
