"""Policy files: what they hold, and every fault of one at its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsm_spec.errors import UserError
from fsm_spec.language.findings import SpecFindings
from fsm_spec.policy_file import load_policy

FAULTY = """\
policy: mine
admit: holdbak
admti: preempt
prefill:
  token: 5
  mixed: sometimes
lag: 3
lag: 1
max_running: 99999999999999999999999
"""


def test_all_faults_of_a_policy_file(tmp_path: Path) -> None:
    """Each fault is one line with its place and, for a misspelt key or word, the nearest right one."""
    path = tmp_path / "mine.yaml"
    path.write_text(FAULTY)
    with pytest.raises(SpecFindings) as caught:
        load_policy(str(path))
    places = [line.removeprefix(f"{path}:") for line in str(caught.value).splitlines()]
    assert [
        '2:8: admit: "holdbak" is no admission rule; did you mean "holdback"?',
        '3:1: admti: unknown key "admti"; did you mean "admit"?',
        '5:3: prefill.token: unknown key "token"; did you mean "tokens"?',
        '6:10: prefill.mixed: expected true or false, found "sometimes"',
        "7:6: lag: 3 is out of range; 1 is the bound",
        "8:1: lag: this key is given twice, first in line 7; remove one",
        "9:14: max_running: the number 99999999999999999999999 is too long; values fit in 32 bits",
    ] == places


def test_a_policy_by_name_or_file(tmp_path: Path) -> None:
    """A rule, a shipped name and a file give a policy; an unknown name gets the nearest."""
    path = tmp_path / "mine.yaml"
    path.write_text("policy: mine\nadmit: reserve\nprefill: {tokens: 7}\n")
    assert ("reserve", 7) == (load_policy(str(path)).admit, load_policy(str(path)).prefill.tokens)
    assert "greedy" == load_policy("greedy").admit
    assert "continuous" == load_policy("continuous").policy
    with pytest.raises(UserError, match='did you mean "preempt"'):
        load_policy("preemt")
