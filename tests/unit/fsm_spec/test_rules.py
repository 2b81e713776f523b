"""Rules over a whole spec: each has a case with its sentence in `tests/data/rule_cases.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from loader_findings import findings

from fsm_spec.language.findings import MAX_FINDINGS, SpecFindings
from fsm_spec.language.scope import BUILT_IN_COLUMNS
from fsm_spec.load import loads, shipped
from fsm_spec.rules.whole_spec import violations
from fsm_spec.table import BUILT_IN_COLUMNS as TABLE_COLUMNS

DATA = Path(__file__).resolve().parents[2] / "data"
CASES: list[dict[str, Any]] = yaml.safe_load((DATA / "rule_cases.yaml").read_text())


def text_of(name: str) -> str:
    """Give the text of a shipped spec, or of the abstract model of the tests."""
    return shipped().get(name, DATA / f"{name}.yaml").read_text()


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_each_rule_says_its_sentence(case: dict[str, Any]) -> None:
    """A rule would no longer be asked, or would say something else, or something more."""
    text = text_of(case["spec"])
    for old, new in case["replace"]:
        assert old in text
        text = text.replace(old, new)
    assert case["findings"] == findings(text)


@pytest.mark.shows("valid")
@pytest.mark.parametrize("name", [*shipped(), "pool"])
def test_specs_without_fault_give_nothing(name: str) -> None:
    """A rule would refuse a good spec."""
    assert violations(loads(text_of(name)).spec) == []


def test_rules_stop_after_enough_findings() -> None:
    """An absurd spec would be judged to its end, however long that takes."""
    many = "".join(f"  p{index}: {{range: [1, 2], default: 1, check: 1}}\n" for index in range(150))
    with pytest.raises(SpecFindings) as caught:
        loads(text_of("ar") + "params:\n" + many)
    assert MAX_FINDINGS + 1 == len(caught.value.findings)
    assert "1 more findings follow" in str(caught.value.findings[-1])


def test_built_in_columns_are_those_of_the_table() -> None:
    """The rules would let a spec declare a column that the table has of its own."""
    assert {"state", *BUILT_IN_COLUMNS} == set(TABLE_COLUMNS)
