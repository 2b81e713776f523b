"""Rules about groups, trees, blocks, masks, claims and draft models, each with a case in `part_cases.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fsm_spec.language.findings import SpecFindings
from fsm_spec.load import loads, shipped

DATA = Path(__file__).resolve().parents[2] / "data"
CASES: list[dict[str, Any]] = yaml.safe_load((DATA / "part_cases.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_each_part_is_held_to_its_rules(case: dict[str, Any]) -> None:
    """A rule would no longer be asked, or would say something else, or something more."""
    text = shipped()[case["spec"]].read_text()
    for old, new in case["replace"]:
        assert 1 == text.count(old)
        text = text.replace(old, new)
    with pytest.raises(SpecFindings) as caught:
        loads(text)
    assert case["findings"] == [f"{finding.path}: {finding.message}" for finding in caught.value.findings]
