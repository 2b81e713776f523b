"""JUnit XML: a suite a spec, a case a property."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

from fsm_spec.checker.check import Bounds, check
from fsm_spec.checker.junit import junit
from fsm_spec.checker.verdict import Answer
from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.load import load


def answer(name: str, bounds: Bounds) -> Answer:
    """Check a spec."""
    loaded = load(name)
    table = compile_table(loaded.spec, check=True, page_size=2, line_of=loaded.line_of)
    return Answer(name, loaded, check(table, bounds))


def test_verdicts_are_counted() -> None:
    """Refuted properties fail with their steps, undetermined ones are skipped, a faulty file is an error."""
    model = str(Path(__file__).resolve().parents[2] / "models" / "kvpool.yaml")
    text = junit(
        [
            answer("ar", Bounds(requests=1)),
            answer(model, Bounds(2, 6, policies=("greedy",))),
            answer("isd", Bounds(max_states=10)),
            Answer("missing", error=UserError("no spec is called 'missing'\x00")),
        ]
    )
    suites = ET.fromstring(text)  # noqa: S314 - our own text
    found = [tuple(suite.get(key) for key in ("tests", "failures", "errors", "skipped")) for suite in suites]
    assert [("15", "0", "0", "0"), ("10", "1", "0", "0")] == found[:2]
    assert "0" == found[2][1]
    assert int(found[2][3] or 0) > 10
    assert ("1", "0", "1", "0") == found[3]
    failure = suites.find("testsuite/testcase/failure")
    assert failure is not None
    assert "deadlock: no move changes anything any more" == failure.get("message")
    assert "draft -> verify" in (failure.text or "")
    error = suites.find("testsuite/testcase/error")
    assert error is not None
    assert "no spec is called 'missing'" == error.text
