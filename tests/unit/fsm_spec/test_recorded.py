"""Counterexample files: every step is verified, and what is not the table's is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsm_spec.checker.check import Bounds, check
from fsm_spec.checker.recorded import read, record, replay
from fsm_spec.compile import compile_table
from fsm_spec.errors import FsmSpecError, TraceDivergence, UserError
from fsm_spec.language.expression import parse
from fsm_spec.load import load, loads

MODEL = str(Path(__file__).resolve().parents[2] / "models" / "kvpool.yaml")


def found(name: str, policy: str = "greedy") -> dict[str, Any]:
    """Record the first counterexample of a spec under a policy, as a file gives it back."""
    loaded = load(name)
    table = compile_table(loaded.spec, check=True, page_size=2, line_of=loaded.line_of)
    result = check(table, Bounds(requests=2, policies=(policy,), pages=6))
    example = next(each.counterexample for each in result.refuted if each.counterexample)
    data: dict[str, Any] = json.loads(json.dumps(record(table, example, loaded.file, loaded.text)))
    return data


@pytest.mark.parametrize(
    ("name", "policy"), [(MODEL, "greedy"), (MODEL, "preempt"), ("uno_linear", "greedy")]
)
def test_recorded_steps_replay(name: str, policy: str) -> None:
    """A recorded counterexample replays, and prints what the check printed."""
    data = found(name, policy)
    replayed = replay(data, "found.json")
    assert len(data["steps"]) == len(replayed.steps)
    assert data["why"] in replayed.lines()[-1 - len(data["reasons"])]
    assert "replayed" == replayed.content()["verdict"]
    assert replayed.digest == data["digest"]
    assert replay(data, "found.json", name).steps == replayed.steps


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(prefix=True),
        Bounds(interleave="action", policies=("tiers",)),
        Bounds(prefix=True, lag=1),
        Bounds(interleave="action"),
        Bounds(policies=("tiers",)),
    ],
)
def test_other_settings_replay(bounds: Bounds) -> None:
    """Shared pages, single events and tiers are part of a file, and are composed again."""
    text = load("linear_spec").text.replace(
        'always: {"the newest token alone has no KV": "kv == prompt + emitted - 1"}',
        "always: {nothing is decoded: emitted < 2}",
    )
    loaded = loads(text)
    table = compile_table(loaded.spec, check=True, line_of=loaded.line_of)
    alone = bounds.policies == ("tiers",) and bounds.interleave is None
    result = check(table, replace(bounds, requests=1 if alone else 2))
    example = next(each.counterexample for each in result.refuted if each.counterexample)
    data = json.loads(json.dumps(record(table, example, "changed.yaml", text)))
    assert "nothing is decoded" == replay(data, "found.json").property
    assert bool(data["steps"][-1].get("sizes")) == (bounds.policies == ("tiers",))


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], type[FsmSpecError], str]] = {
    "another column": (
        lambda data: data["steps"][-1]["columns"].update(kv=99),
        TraceDivergence,
        "found.json: step 10: request 1 takes verify as transition",
    ),
    "another transition": (
        lambda data: data["steps"][3].update(transition=0),
        TraceDivergence,
        "found.json: step 4: request 0 takes first as transition",
    ),
    "an argument out of range": (
        lambda data: data["steps"][-1]["args"].update(a=9),
        TraceDivergence,
        "takes verify as transition -1",
    ),
    "another digest": (
        lambda data: data.update(digest="0" * 64),
        UserError,
        "found.json: the spec in it has digest",
    ),
    "another version": (
        lambda data: data.update(counterexample=9),
        UserError,
        "found.json: a counterexample of version 9; this program reads version 1",
    ),
    "no steps": (
        lambda data: data.pop("steps"),
        UserError,
        "found.json: the counterexample has no 'steps'; it is cut or damaged",
    ),
    "a step before its arrival": (
        lambda data: data.update(steps=data["steps"][3:]),
        TraceDivergence,
        "found.json: step 1: request 0 has not arrived before it",
    ),
    "another property": (
        lambda data: data.update(property="pages are never over-committed: free + held = pool"),
        TraceDivergence,
        "found.json: these steps do not break 'pages are never over-committed: free + held = pool'",
    ),
    "a property that nobody has": (
        lambda data: data.update(property="every reqest reaches end"),
        UserError,
        "has no property 'every reqest reaches end'; did you mean \"every request reaches end\"?",
    ),
    "another pool": (
        lambda data: data["pool"].update(pages=60),
        TraceDivergence,
        "found.json: these steps do not break 'every request reaches end'",
    ),
    "another policy": (
        lambda data: data["policy"].update(admit="reserve"),
        TraceDivergence,
        "found.json: the move 3 is none that 2 requests, policy greedy, 6 pages of 2 slots can make",
    ),
    "another reason": (
        lambda data: data.update(reasons=["it is Monday"]),
        TraceDivergence,
        "found.json: reasons is ['it is Monday'] in the file, and ",
    ),
    "a move left out": (
        lambda data: [step.update(move=step["move"] + 1) for step in data["steps"][-2:]],
        TraceDivergence,
        "found.json: the move",
    ),
    "another kind of value": (
        lambda data: data.update(pool=[6, 2]),
        UserError,
        "found.json: the counterexample is damaged: a value in it is not of the kind",
    ),
    "other parameters": (
        lambda data: data["params"].update(b=3),
        UserError,
        "found.json: the spec in it has digest",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_files_are_refused(change: str) -> None:
    """A file that somebody has changed is refused with the step or the part that is wrong."""
    alter, error, sentence = CHANGES[change]
    data = found("uno_linear")
    alter(data)
    with pytest.raises(error) as refused:
        replay(data, "found.json")
    assert sentence in str(refused.value)


def test_a_counterexample_of_another_spec_is_refused() -> None:
    """Against another spec the sentence names both digests."""
    with pytest.raises(
        UserError, match=r"found\.json: isd has digest .*, the counterexample was found under"
    ):
        replay(found("uno_linear"), "found.json", "isd")


def test_a_step_without_a_row_is_replayed() -> None:
    """A counterexample may end with an event that no row takes: the oracle refuses it, as the file says."""
    loaded = load("isd")
    table = compile_table(loaded.spec, check=True, line_of=loaded.line_of)
    index = next(row.index for row in table.rows if (row.event, row.target) == ("cold", "verify"))
    result = check(table.with_row(index, guard=parse("kv < 0", "bool")), Bounds(requests=1))
    example = next(each.counterexample for each in result.refuted if each.counterexample)
    assert -1 == example.steps[-1].transition
    data = record(table, example, loaded.file, loaded.text)
    with pytest.raises(TraceDivergence, match="takes cold as transition"):
        replay(json.loads(json.dumps(data)), "found.json")


def test_other_files_are_no_counterexamples(tmp_path: Path) -> None:
    """Traces, lists and damaged files are left to whoever reads them."""
    file = tmp_path / "file"
    for text in ('{"trace": 1}\n{"round": 0}\n', "[]", '{"trace": 1}', "{"):
        file.write_text(text)
        assert read(file) is None
    assert read(tmp_path / "missing") is None
    file.write_text('{"counterexample": 1}')
    assert {"counterexample": 1} == read(file)
