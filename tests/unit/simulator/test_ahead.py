"""Outcomes drawn ahead are those drawn round by round."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_spec.simulator.acceptance import Acceptance
from fsm_spec.simulator.ahead import ROUNDS, Ahead
from fsm_spec.simulator.lookup import Lookup

LAWS: dict[str, Acceptance | Lookup] = {
    "positions": Acceptance((0.9, 0.5, 0.7, 0.2), seed=3),
    "geometric": Acceptance((0.8,), geometric=True, seed=4),
    "lookup": Lookup(0.4, seed=5),
}


@pytest.mark.parametrize("name", sorted(LAWS))
@given(steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=20))
def test_blocks_of_rounds_change_no_draw(name: str, steps: list[tuple[int, int]]) -> None:
    """Requests that skip rounds, and rounds with fewer live drafts, draw what they would draw alone."""
    law = LAWS[name]
    alone = law.accepted if isinstance(law, Acceptance) else law.found
    ahead, row = Ahead(law, 4, 3), np.zeros(3, np.int64)
    requests, rounds = np.arange(3), np.array([0, 7, 30])
    for skipped, live in steps:
        rounds = rounds + 1 + skipped * np.array([1, ROUNDS, 0])
        most = np.array([live, 4, 1], np.int32)
        found = ahead.draw(most, requests, rounds, row)
        assert alone(most, requests, rounds).tolist() == found.tolist()
        assert np.int32 == found.dtype
