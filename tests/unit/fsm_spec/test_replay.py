"""Replaying traces: records that are none, or stand in the wrong place, are refused in words."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fsm_spec.compile import compile_table
from fsm_spec.engine import Engine
from fsm_spec.errors import FsmSpecError, TraceDivergence, UserError
from fsm_spec.launch import Args, Launch
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool
from fsm_spec.replay import read_trace, replay_records
from fsm_spec.step import Columns, Step
from fsm_spec.table import NO_STOP, Table
from fsm_spec.trace import TraceWriter, header

Records = list[dict[str, Any]]


class Nothing:
    """Be a backend in which nothing costs anything, and no draft exists."""

    def launch(self, launch: Launch) -> list[Args]:
        """Find nothing."""
        return [{} for _ in launch.groups]

    def stops(self, event: str, requests: Any, columns: Columns, args: Args) -> Any:  # noqa: ANN401 - the protocol's arrays
        """Stop nowhere."""
        del event, columns, args
        return requests * 0 + NO_STOP

    def settle(self, event: str, requests: Any, before: Columns, done: Step) -> None:  # noqa: ANN401 - see above
        """Follow nothing."""

    def resize(self, request: int, pages: int) -> None:
        """Follow nothing."""

    def use(self, table: Table) -> None:
        """Follow nothing."""


class Accepting(Nothing):
    """Accept no draft."""

    def launch(self, launch: Launch) -> list[Args]:
        """Find no draft accepted."""
        return [{"a": np.zeros(len(group.requests), np.int32)} for group in launch.groups]


@pytest.fixture(scope="module")
def trace() -> Records:
    """Return the trace of two requests of a plain decoder."""
    loaded = load("ar")
    table = compile_table(loaded.spec, line_of=loaded.line_of)
    records: Records = []
    head = header(table, Policy(), Pool(9, 4), loaded.text, "executor")
    engine = Engine(table, Policy(), Pool(9, 4), Nothing(), TraceWriter(records, head))
    for prompt in (3, 5):
        engine.submit(prompt, 4)
    while engine.has_work:
        engine.iterate()
    whole: Records = json.loads(json.dumps(records))
    return whole


def place(records: Records, key: str) -> int:
    """Give the place of the first record with a key, behind the header."""
    return next(index for index, record in enumerate(records) if index and key in record)


def test_a_whole_trace_replays(trace: Records) -> None:
    """Two requests end with four tokens each."""
    replayed = replay_records(enumerate(trace, start=1))
    assert (2, 2, 8) == (replayed.requests, replayed.ended, replayed.emitted)


CHANGES: dict[str, tuple[Callable[[Records], object], type[FsmSpecError], str]] = {
    "a header without policy": (
        lambda records: records[0].pop("policy"),
        UserError,
        'the key "policy" is missing; the header is cut or damaged',
    ),
    "a header with a word of its own": (
        lambda records: records[0].update(polcy={}),
        UserError,
        'unknown key "polcy"; did you mean "policy"?; the header is cut or damaged',
    ),
    "a policy that is none": (
        lambda records: records[0]["policy"].update(admit="all"),
        UserError,
        "the policy of the header has a faulty admit; is the trace of another version?",
    ),
    "a pool without pages": (
        lambda records: records[0]["pool"].pop("pages"),
        UserError,
        "the pool has the keys pages and page_size, and no others",
    ),
    "an unknown key": (
        lambda records: records[place(records, "event")].update(colums={}),
        UserError,
        'unknown key "colums"; did you mean "columns"?',
    ),
    "a key left out": (
        lambda records: records[place(records, "event")].pop("pages"),
        UserError,
        'the key "pages" is missing',
    ),
    "a text for an integer": (
        lambda records: records[place(records, "event")].update(round="one"),
        UserError,
        'round is "one", where an integer stands',
    ),
    "a mapping for a list": (
        lambda records: records[place(records, "plan")]["plan"].update(pages={}),
        UserError,
        "pages is a mapping, where a list of pairs of integers stands",
    ),
    "rounds out of order": (
        lambda records: records[place(records, "plan")].update(round=99),
        TraceDivergence,
        "round 0 stands behind round 99; rounds go up",
    ),
    "a plan for a stranger": (
        lambda records: records[place(records, "plan")]["plan"].update(run=[7]),
        TraceDivergence,
        "the plan names request 7, which has not arrived",
    ),
    "more shared pages than held ones": (
        lambda records: records[place(records, "plan")]["plan"].update(shared=[[0, 4]]),
        TraceDivergence,
        "request 0 shares 4 pages of its 1",
    ),
    "an argument left out": (
        lambda records: next(record for record in records if record.get("event") == "decode")["args"].clear(),
        TraceDivergence,
        "decode has no argument 'stop'",
    ),
    "a size without tiers": (
        lambda records: records[place(records, "plan")]["plan"].update(tier=4),
        TraceDivergence,
        "the plan has the size 4, and the policy no tiers",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_records_that_are_none_are_told_in_words(change: str, trace: Records) -> None:
    """Each is refused at its line, without a word of Python."""
    alter, error, sentence = CHANGES[change]
    records = copy.deepcopy(trace)
    alter(records)
    with pytest.raises(error) as refused:
        replay_records(enumerate(records, start=1), "run.jsonl")
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("run.jsonl:")


def test_lines_that_are_no_records(tmp_path: Path) -> None:
    """A list and a damaged line are told with their number."""
    path = tmp_path / "run.jsonl"
    for line, sentence in (
        ("[1]", "a record is a JSON object, not a list"),
        ("{", "this line is no JSON record"),
    ):
        path.write_text(f'{{"trace": 1}}\n{line}\n')
        with pytest.raises(UserError, match=sentence):
            list(read_trace(path))


@pytest.mark.parametrize(
    ("left_out", "words"),
    [
        (
            "first",
            r"request 0 is in state prefill, where the scheduler moves it, not decode; a step is missing",
        ),
        ("decode", r"took transition|breaks the contract|after \d+"),
    ],
)
def test_a_missing_step_is_told(trace: Records, left_out: str, words: str) -> None:
    """A trace without one step is refused at the next one, in words about the state that the request is in."""
    index = next(i for i, record in enumerate(trace) if record.get("event") == left_out)
    with pytest.raises(TraceDivergence, match=words):
        replay_records(enumerate(trace[:index] + trace[index + 1 :], start=1))


def test_what_a_state_waits_for_is_named_with_its_line(tmp_path: Path) -> None:
    """In a spec of several states the sentence says which event comes next, and where the spec says so."""
    loaded = load("isd")
    table = compile_table(loaded.spec, line_of=loaded.line_of)
    records: Records = []
    head = header(table, Policy(), Pool(90, 4), loaded.text, "executor")
    engine = Engine(table, Policy(), Pool(90, 4), Accepting(), TraceWriter(records, head))
    engine.submit(3, 9)
    while engine.has_work:
        engine.iterate()
    whole: Records = json.loads(json.dumps(records))
    index = next(i for i, record in enumerate(whole) if record.get("event") == "cold")
    with pytest.raises(TraceDivergence, match=r"where cold \(spec line \d+\) comes next, not verify"):
        replay_records(enumerate(whole[:index] + whole[index + 1 :], start=1))
    with pytest.raises(UserError, match="is a folder; give a trace file"):
        next(read_trace(tmp_path))
