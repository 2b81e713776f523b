"""Replay a trace against its spec: every step must be one that the table allows, with pages that the pool has."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fsm_spec.compile import compile_table
from fsm_spec.errors import FsmSpecError, TraceDivergence, UnhandledEvent, UserError
from fsm_spec.language.findings import path_text
from fsm_spec.language.sentence import describe
from fsm_spec.load import loads
from fsm_spec.oracle import oracle
from fsm_spec.policy import Policy, Pool, fill_slots
from fsm_spec.table import END, WAIT
from fsm_spec.tiers import tiers_of
from fsm_spec.trace import STEP_FIELDS, VERSION
from fsm_spec.trace_records import fault_of, fault_of_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fsm_spec.table import Row, Table
    from fsm_spec.tiers import Tiers


@dataclass(frozen=True)
class Replayed:
    """Summarise a trace that the table allows."""

    spec: str
    digest: str
    source: str
    requests: int
    steps: int
    ended: int
    emitted: int


def read_trace(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line numbers and records of a trace file; raises UserError naming a broken line."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; give a trace file")
    if not path.is_file():
        raise UserError(f"{path}: no such trace file")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"{path}:{number}: this line is no JSON record ({error}); the trace is cut or damaged"
                ) from None
            if not isinstance(record, dict):
                raise UserError(f"{path}:{number}: a record is a JSON object, not {describe(record)}")
            yield number, record


def replay(path: Path) -> Replayed:
    """Replay a trace file; raises TraceDivergence at the first step that its table does not allow."""
    return replay_records(read_trace(path), str(path))


def replay_records(records: Iterable[tuple[int, Mapping[str, Any]]], name: str = "<trace>") -> Replayed:
    """Replay numbered records, header first; raises TraceDivergence or UserError."""
    stream = iter(records)
    number, head = next(stream, (0, {}))
    if head.get("trace") != VERSION:
        raise UserError(f"{name}: the first line is no trace header of version {VERSION}; is this a trace?")
    fault = fault_of_header(head)
    if fault:
        raise UserError(f"{name}:{number}: {fault}; the header is cut or damaged")
    table, policy, pool = table_of(head, name)
    state = _Replay(tiers_of(table, policy), pool, name)
    for number, record in stream:
        fault = fault_of(record)
        if fault:
            raise UserError(f"{name}:{number}: {fault}; the record is cut or damaged")
        state.take(number, record)
    return state.result(str(head.get("source", "")))


def table_of(head: Mapping[str, Any], name: str = "<trace>") -> tuple[Table, Policy, Pool]:
    """Compile the spec in a trace's header; raises TraceDivergence if its digest is another."""
    loaded = loads(head["spec"], name=f"{name}:1")
    table = compile_table(loaded.spec, head["params"], line_of=loaded.line_of)
    if table.digest != head["digest"]:
        ours, theirs = table.digest[:12], str(head["digest"])[:12]
        raise TraceDivergence(
            f"{name}:1: the header's spec has digest {ours}, the trace was written under {theirs}"
        )
    try:
        policy = Policy.model_validate(head["policy"])
    except ValidationError as error:
        (fault, *_) = error.errors()
        raise UserError(
            f"{name}:1: the policy of the header has a faulty {path_text(fault['loc'])}; "
            f"is the trace of another version?"
        ) from None
    return table, policy, Pool(**head["pool"])


class _Replay:
    """Follow every request of a trace."""

    def __init__(self, tiers: Tiers, pool: Pool, name: str) -> None:
        self.tiers = tiers
        # The table of the present round's tier.
        self.table = tiers.largest
        self.pool = pool
        self.name = name
        self.columns: dict[int, dict[str, int]] = {}
        self.pages: dict[int, int] = {}
        self.steps = 0
        self.round = 0

    def take(self, number: int, record: Mapping[str, Any]) -> None:
        if record["round"] < self.round:
            raise TraceDivergence(
                f"{self.name}:{number}: round {record['round']} stands behind round {self.round}; rounds go up"
            )
        self.round = record["round"]
        if "arrive" in record:
            request = record["arrive"]
            if request in self.columns:
                raise TraceDivergence(f"{self.name}:{number}: request {request} arrives twice")
            self.columns[request] = self.table.new_request(record["prompt"], record["limit"])
        elif "plan" in record:
            self._choose_tier(number, record["plan"])
            self._check_plan(number, record["plan"])
        else:
            self._step(number, record)

    def _choose_tier(self, number: int, decisions: Mapping[str, Any]) -> None:
        """Hold the size of the coming rounds to the policy's tiers, by the requests that are at a round point."""
        running = sum(self.table.states[columns["state"]].round for columns in self.columns.values())
        self.table = self.tiers.table(running)
        size, told = self.tiers.size(self.table), decisions.get("tier")
        if told is not None and size is None:
            raise TraceDivergence(
                f"{self.name}:{number}: the plan has the size {told}, and the policy no tiers"
            )
        if told != size:
            raise TraceDivergence(
                f"{self.name}:{number}: the plan runs {self.tiers.param} = {told} where the policy's tiers give {size} "
                f"for {running} running requests"
            )

    def _check_plan(self, number: int, decisions: Mapping[str, Any]) -> None:
        """Hold the plan to the pool: distinct pages handed out never exceed it."""
        named = [*decisions["preempt"], *decisions["run"], *decisions["blocked"]]
        several = ("pages", "chunks", "admit", "hits", "shared")
        named += [request for each in several for request, *_ in decisions.get(each, ())]
        strangers = [request for request in named if request not in self.columns]
        if strangers:
            raise TraceDivergence(
                f"{self.name}:{number}: the plan names request {strangers[0]}, which has not arrived"
            )
        for request in decisions["preempt"]:
            self.pages[request] = 0
        for request, pages in decisions["pages"]:
            if request not in decisions["preempt"]:
                self.pages[request] = pages
        for request, pages, _ in decisions["admit"]:
            self.pages[request] = pages
        shared = dict(decisions.get("shared", ()))
        for request, pages in shared.items():
            if not 0 <= pages <= self.pages.get(request, 0):
                raise TraceDivergence(
                    f"{self.name}:{number}: request {request} shares {pages} pages of its "
                    f"{self.pages.get(request, 0)}"
                )
        held = sum(self.pages.values()) - sum(shared.values())
        if held > self.pool.pages:
            raise TraceDivergence(
                f"{self.name}:{number}: the plan hands out {held} pages of a pool of {self.pool.pages}"
            )

    def _step(self, number: int, record: Mapping[str, Any]) -> None:
        where = f"{self.name}:{number}"
        _, request, event, args, transition, columns, pages = (record[field] for field in STEP_FIELDS)
        if request not in self.columns:
            raise TraceDivergence(f"{where}: request {request} steps before it arrives")
        before = self.columns[request]
        state = self.table.states[before["state"]].name
        self._refuse_event(where, request, state, event)
        try:
            outcome = oracle(self.table, before, event, args)
        except KeyError as error:
            raise TraceDivergence(f"{where}: request {request}: {event} has no argument {error}") from None
        except UnhandledEvent as error:
            lines = self._lines(state, event)
            raise TraceDivergence(f"{where}: request {request}: {error} ({lines})") from None
        if outcome.transition != transition:
            raise TraceDivergence(
                f"{where}: request {request} in state {state} took transition {self._label(transition)}; "
                f"the table takes {self._label(outcome.transition)} at {event}({_shown(args)})"
            )
        if outcome.columns != columns:
            wrong = ", ".join(
                f"{name} {columns.get(name)} (table: {value})"
                for name, value in outcome.columns.items()
                if columns.get(name) != value
            )
            raise TraceDivergence(f"{where}: request {request} after {self._label(transition)}: {wrong}")
        self._check_slots(where, request, outcome.columns, pages)
        self.columns[request] = outcome.columns
        self.steps += 1

    def _refuse_event(self, where: str, request: int, state: str, event: str) -> None:
        """Refuse an event that another state has rows for, with what this one waits for."""
        plan = self.table.events.get(event)
        if plan is None or state in (*plan.states, *plan.ignored):
            return
        others = [row.event for row in self.table.rows if state in row.sources and not row.built_in]
        awaited = [f"{name} ({self._lines(state, name)})" for name in dict.fromkeys(others)]
        told = f"{' or '.join(awaited)} comes next" if awaited else "the scheduler moves it"
        raise TraceDivergence(
            f"{where}: request {request} is in state {state}, where {told}, not {event}; a step is missing or in the"
            " wrong place"
        )

    def _lines(self, state: str, event: str) -> str:
        """Name the lines of the spec that say what an event does in a state."""
        rows = [row for row in self.table.rows if row.event == event and state in row.sources]
        lines = sorted({row.line for row in rows if row.line})
        return (
            f"spec line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}" if lines else "built in"
        )

    def _check_slots(self, where: str, request: int, columns: Mapping[str, int], pages: int) -> None:
        state = self.table.states[columns["state"]]
        if state.name in {WAIT, END}:
            self.pages[request] = 0
        if pages != self.pages.get(request, 0):
            raise TraceDivergence(
                f"{where}: request {request} owns {pages} pages by the step, {self.pages.get(request, 0)} by the plan"
            )
        if state.round and columns["kv"] != fill_slots(self.table, columns["prompt"], columns["emitted"]):
            raise TraceDivergence(
                f"{where}: request {request} in state {state.name} breaks the contract {self.table.contract}: "
                f"kv is {columns['kv']} after {columns['emitted']} emitted tokens"
            )
        if pages and columns["kv"] > pages * self.pool.page_size:
            raise TraceDivergence(
                f"{where}: request {request} holds {columns['kv']} slots in {pages} pages of {self.pool.page_size}"
            )

    def _label(self, transition: int) -> str:
        if not 0 <= transition < 2 * len(self.table.rows):
            return f"{transition} (unknown)"
        row: Row = self.table.rows[transition // 2]
        return f"{transition} ({self.table.label(transition)}, spec line {row.line})"

    def result(self, source: str) -> Replayed:
        end = self.table.codes["end"]
        ended = sum(columns["state"] == end for columns in self.columns.values())
        emitted = sum(columns["emitted"] for columns in self.columns.values())
        return Replayed(
            self.table.name, self.table.digest, source, len(self.columns), self.steps, ended, emitted
        )


def _shown(args: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in args.items())


__all__ = ["FsmSpecError", "Replayed", "read_trace", "replay", "replay_records", "table_of"]
