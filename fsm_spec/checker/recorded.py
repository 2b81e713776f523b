"""Counterexample files: a refuted property with its spec, bounds and steps, replayed without a new search."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fsm_spec.checker.automaton import NO_ROW
from fsm_spec.checker.composition import ARRIVE
from fsm_spec.checker.counterexample import Counterexample, StepShown, step_texts
from fsm_spec.checker.retrace import retrace
from fsm_spec.compile import compile_table
from fsm_spec.drawing.show import columns
from fsm_spec.errors import TraceDivergence, UnhandledEvent, UserError
from fsm_spec.load import load, loads
from fsm_spec.oracle import oracle
from fsm_spec.policy import Policy
from fsm_spec.tiers import tiers_of

if TYPE_CHECKING:
    from fsm_spec.table import Table
    from fsm_spec.tiers import Tiers

VERSION: Final = 1
KEY: Final = "counterexample"


@dataclass(frozen=True)
class ReplayedSteps:
    """Hold a counterexample whose every step the table has confirmed."""

    spec: str
    digest: str
    property: str
    setting: str
    steps: tuple[StepShown, ...]
    pages: int
    why: str
    reasons: tuple[str, ...]

    def content(self) -> dict[str, Any]:
        """Give it as JSON values."""
        steps = [step.content() for step in self.steps]
        return {"verdict": "replayed", **vars(self), "steps": steps, "reasons": list(self.reasons)}

    def lines(self) -> list[str]:
        """Print the steps as the checker does."""
        rows = [["step", "who", "event", "states", "changes", "in use", "spec"]]
        rows += [
            [str(step.move), f"request {step.request}", *step_texts(step, self.pages)] for step in self.steps
        ]
        reasons = [f"    {reason}" for reason in self.reasons]
        return [f"{self.property}: refuted; {self.setting}", *columns(rows), f"  {self.why}", *reasons]


def record(table: Table, example: Counterexample, file: str, text: str) -> dict[str, Any]:
    """Give a counterexample as the JSON values of a file; `text` is the spec's."""
    setting = example.setting
    return {
        KEY: VERSION,
        "spec": text,
        "file": file,
        "params": dict(table.params),
        "page_size": table.page_size,
        "digest": table.digest,
        "property": example.name,
        "requests": setting.requests,
        "policy": setting.policy.model_dump(mode="json"),
        "pool": setting.pool._asdict(),
        "abort": setting.abort,
        **({"interleave": "action"} if setting.single else {}),
        **({"prefix": True} if setting.prefix else {}),
        **example.content(),
    }


def read(path: Path) -> dict[str, Any] | None:
    """Read a counterexample file; None for another kind of file, such as a trace."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and KEY in data else None


def replay(data: Mapping[str, Any], name: str, spec: str | None = None) -> ReplayedSteps:
    """Step through a counterexample, every step verified by the oracle; with `spec`, against that file.

    Raises UserError for a file of another digest or a garbled one, TraceDivergence for a step the table does not take.
    """
    if data[KEY] != VERSION:
        raise UserError(
            f"{name}: a counterexample of version {data[KEY]}; this program reads version {VERSION}"
        )
    try:
        table = _table(data, name, spec)
        follow = _Steps(tiers_of(table, Policy.model_validate(data["policy"])), name)
        for number, each in enumerate(data["steps"], 1):
            follow.take(number, each)
        example = retrace(table, data, name)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(f"{name}: the counterexample {_garbled(error)}") from None
    return ReplayedSteps(
        table.name,
        table.digest,
        example.name,
        str(example.setting),
        example.steps,
        example.setting.pool.pages,
        example.why,
        example.reasons,
    )


def _garbled(error: Exception) -> str:
    """Say what is wrong with a file that is no counterexample any more, in words."""
    if isinstance(error, KeyError) and isinstance(error.args[0], str):
        return f"has no {error.args[0]!r}; it is cut or damaged"
    return "is damaged: a value in it is not of the kind that the checker writes"


def _table(data: Mapping[str, Any], name: str, spec: str | None) -> Table:
    loaded = loads(data["spec"], f"{name}: spec") if spec is None else load(spec)
    params = {key: value for key, value in data["params"].items() if key in loaded.spec.params}
    table = compile_table(loaded.spec, params, page_size=data["page_size"], line_of=loaded.line_of)
    if table.digest != data["digest"]:
        ours, theirs = table.digest[:12], str(data["digest"])[:12]
        what = "the spec in it" if spec is None else spec
        raise UserError(
            f"{name}: {what} has digest {ours}, the counterexample was found under {theirs}; check the spec again"
        )
    return table


class _Steps:
    """Follow the columns of every request, so that each step starts where the last one ended."""

    def __init__(self, tiers: Tiers, name: str) -> None:
        self.tiers = tiers
        self.table = tiers.largest
        self.name = name
        self._columns: dict[int, dict[str, int]] = {}

    def take(self, number: int, step: Mapping[str, Any]) -> None:
        """Verify a step."""
        where = f"{self.name}: step {number}"
        request, event, args = step["request"], step["event"], step["args"]
        sizes = step.get("sizes", {})
        self.table = self.tiers.of_size(sizes[self.tiers.param]) if sizes else self.tiers.largest
        if event == ARRIVE:
            before = after = self.table.new_request(args["prompt"], args["limit"])
            transition = NO_ROW
        else:
            before = self._before(request, where)
            transition, after = self._outcome(before, event, args)
        if transition != step["transition"] or after != step["columns"]:
            told = ", ".join(f"{key} = {value}" for key, value in after.items())
            raise TraceDivergence(
                f"{where}: request {request} takes {event} as transition {transition} to {told}; the file says "
                f"transition {step['transition']}"
            )
        self._columns[request] = after

    def _before(self, request: int, where: str) -> dict[str, int]:
        if request not in self._columns and self.table.contract is None:
            return self.table.new_abstract_request()
        if request not in self._columns:
            raise TraceDivergence(f"{where}: request {request} has not arrived before it")
        return self._columns[request]

    def _outcome(
        self, before: Mapping[str, int], event: str, args: Mapping[str, int]
    ) -> tuple[int, dict[str, int]]:
        try:
            outcome = oracle(self.table, before, event, args)
        except UnhandledEvent:
            return NO_ROW, dict(before)
        return outcome.transition, outcome.columns
