"""Edits of shipped specs, one place each: whatever loader and checker let pass runs as it claims.

`.venv/bin/python tests/property/edited_runs.py 1 50` judges 50 edits of every spec.
"""

from __future__ import annotations

from collections import Counter

import edited_runs
import hostile_runs
import pytest
from edited_runs import judged, ran
from single_edits import drawn_edits

from fsm_spec.load import load

# Drafts that cross a round under tiers, a block of masks, and lookups.
SPECS = ("isd_strided", "linear_spec", "ngram")
EDITS = 12


@pytest.mark.parametrize("name", SPECS)
def test_what_is_proved_runs_as_plain_decoding_does(name: str) -> None:
    """An edit that loader and checker let pass, and that gives other tokens, laws or pages, would be a false proof."""
    verdicts: Counter[str] = Counter()
    for told, text in drawn_edits(load(name).text, EDITS, seed=f"3 {name}"):
        verdict = judged(text)
        assert "WRONG" not in verdict, f"{told}: {verdict}"
        verdicts[verdict] += 1
    # Edits that were all refused, or none of them, would show nothing.
    assert min(verdicts["found by the loader"], verdicts["proved, and right"]) > 0, verdicts


def test_a_wrong_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: other tokens than those of plain decoding, and another law than the target's."""
    text = load("linear_spec").text
    with monkeypatch.context() as patch:
        patch.setattr(edited_runs, "distance", lambda *_: 0.1)
        assert "WRONG LAW: 0.1" == ran(text)
    plain = hostile_runs.expected
    monkeypatch.setattr(hostile_runs, "expected", lambda arrival, seed: plain(arrival, seed + 1))
    assert ran(text).startswith("WRONG: ")
