"""Retrace counterexamples: requests, policy and pool of a file composed again, every move found among theirs.

So the property, the bounds and the reasons of a file are what its steps show, not what it says.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from fsm_spec import life_cycle
from fsm_spec.checker import properties
from fsm_spec.checker.automaton import Automaton
from fsm_spec.checker.composition import ABSENT, ARRIVE, Composition
from fsm_spec.checker.counterexample import Counterexample, explain
from fsm_spec.checker.interleaving import Interleaving
from fsm_spec.checker.search import OVER, Fault, livelock, stuck
from fsm_spec.checker.shared_prefix import SharedPrefix
from fsm_spec.checker.single_events import SingleEvents
from fsm_spec.errors import TraceDivergence, UserError
from fsm_spec.language.findings import nearest
from fsm_spec.policy import Policy, Pool
from fsm_spec.tiers import tiers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fsm_spec.checker.composition import Move, State
    from fsm_spec.table import Table

Step = dict[str, Any]
# What each request does in a move: events with their arguments, and columns after each.
Doings = dict[int, list[tuple[str, dict[str, int], dict[str, int]]]]


def retrace(table: Table, data: Mapping[str, Any], name: str) -> Counterexample:
    """Follow the moves of a counterexample file, and tell what they show.

    Raises UserError for a property that the table does not have, TraceDivergence for a step that is no move of these
    requests, for steps that do not break the property, and for reasons that are not theirs.
    """
    known = properties.every(table)
    if data["property"] not in known:
        raise UserError(
            f"{name}: {table.name} has no property {data['property']!r}{nearest(data['property'], known)}"
        )
    composed = _composed(table, data)
    path, last = _followed(composed, data, name)
    fault = _fault(composed, data, path, last)
    if fault is None:
        raise TraceDivergence(f"{name}: these steps do not break {data['property']!r}; check the spec again")
    example = explain(composed, data["property"], fault)
    for key, value in example.content().items():
        if data[key] != value:
            raise TraceDivergence(f"{name}: {key} is {data[key]!r} in the file, and {value!r} by its steps")
    return example


def _composed(table: Table, data: Mapping[str, Any]) -> Composition | Interleaving:
    policy, pool = Policy.model_validate(data["policy"]), Pool(**data["pool"])
    requests, abort = int(data["requests"]), bool(data["abort"])
    if table.contract is None:
        return Interleaving(Automaton(table), policy, pool, requests, abort=abort)
    automaton = Automaton(tiers_of(table, policy).largest)
    sizes = [
        (step["args"]["prompt"], step["args"]["limit"]) for step in data["steps"] if step["event"] == ARRIVE
    ]
    arrivals = list(dict.fromkeys(sizes))
    if data.get("interleave") == "action":
        chunks = any(step["event"] == life_cycle.CHUNK for step in data["steps"])
        return SingleEvents(automaton, policy, pool, requests, arrivals, abort=abort, chunks=chunks)
    kind = SharedPrefix if data.get("prefix") else Composition
    return kind(automaton, policy, pool, requests, arrivals, abort=abort)


def _followed(
    composed: Composition | Interleaving, data: Mapping[str, Any], name: str
) -> tuple[list[State], Move | None]:
    """Find each group of steps among the moves; the last one may end where the property breaks."""
    path = [composed.start]
    groups = [
        (number, list(steps)) for number, steps in groupby(data["steps"], key=lambda step: step["move"])
    ]
    for place, (number, steps) in enumerate(groups, 1):
        if number != place:
            raise TraceDivergence(f"{name}: the move {number} stands where the move {place} is expected")
        ways = list(_ways(composed, path[-1], steps))
        breaking = [move for move, _ in ways if data["property"] in move.broken]
        if place == len(groups) and breaking:
            return path, breaking[0]
        whole = [move for move, complete in ways if complete and not move.lost]
        if not whole:
            raise TraceDivergence(f"{name}: the move {number} is none that {data['setting']} can make")
        path.append(min(whole, key=lambda move: len(move.broken)).after)
    return path, None


def _ways(
    composed: Composition | Interleaving, state: State, steps: Sequence[Step]
) -> Iterator[tuple[Move, bool]]:
    """Yield the moves whose events start with these, and whether they are all of the move's events."""
    given = _given(steps)
    for move in composed.moves(state):
        told = _told(composed, state, move)
        if given.keys() == told.keys() and all(
            told[request][: len(each)] == each for request, each in given.items()
        ):
            yield move, given == told


def _given(steps: Sequence[Step]) -> Doings:
    doings: Doings = {}
    for step in steps:
        doings.setdefault(step["request"], []).append((step["event"], step["args"], step["columns"]))
    return doings


def _told(composed: Composition | Interleaving, state: State, move: Move) -> Doings:
    automaton = composed.automaton
    doings: Doings = {}
    for request, events, _ in move.parts:
        if events:
            doings[request] = [(each.name, dict(each.args), automaton.columns(each.after)) for each in events]
        elif state[request] in (None, ABSENT):
            entry = move.after[request]
            assert entry is not None, "a request that arrives is there"
            named = automaton.columns(entry.columns)
            doings[request] = [(ARRIVE, {key: named[key] for key in ("prompt", "limit")}, named)]
    return doings


def _fault(
    composed: Composition | Interleaving, data: Mapping[str, Any], path: list[State], last: Move | None
) -> Fault | None:
    """Tell how the path breaks the property; None if it does not."""
    name, loop = data["property"], data["loop"]
    if last is not None:
        return Fault(path, last)
    if name in composed.faults(path[-1]):
        return Fault(path, None, OVER[name])
    if name != properties.eventually(composed.table):
        return None
    if loop is not None and loop < len(path) - 2 and path[loop] == path[-1]:
        return Fault(path, None, livelock(len(path) - 1 - loop), loop)
    return _stuck(composed, path)


def _stuck(composed: Composition | Interleaving, path: list[State]) -> Fault | None:
    """Tell of a last state that the scheduler can leave as it is, for ever."""
    state = path[-1]
    if not any(entry is not None and entry.columns for entry in state):
        return None
    moves = [move for move in composed.moves(state) if move.by_scheduler]
    stays = any(move.after == state and not move.lost for move in moves)
    leaves = any(move.after != state or move.lost for move in moves)
    # A file repeats the state that can stay as it is, where others are left.
    before = path[:-1] if leaves and len(path) > 1 and path[-2] == state else path
    return stuck(before, leaves=leaves) if stays or not leaves else None
