"""One set of chances means one law of counts: in the simulator's draws and in the executor's synthetic acceptance."""

from __future__ import annotations

import numpy as np
import pytest

from fsm_spec.compile import compile_table
from fsm_spec.counts import most_drafts
from fsm_spec.executor.synthetic import synthetic_of
from fsm_spec.load import load
from fsm_spec.simulator.acceptance import parse_accept, parse_unmask


@pytest.mark.parametrize("rates", ["0.9,0.5,0.2", "unconditional:0.8,0.8,0", "geometric:0.7", "1,0,1"])
def test_drafts_are_accepted_by_the_simulators_law(rates: str) -> None:
    """Of three drafts: the chance that more than i are accepted."""
    synthetic = synthetic_of(rates, None, compile_table(load("isd").spec))
    assert synthetic is not None
    law = synthetic.laws().accepted
    assert law is not None
    more = law.flip(0).cumsum(0).flip(0)[1:]
    np.testing.assert_allclose(parse_accept(rates).survival(3), more, rtol=1e-14)


def test_masks_are_filled_by_the_simulators_law() -> None:
    """Beyond the surest one, as many as a pass may fill."""
    table = compile_table(load("sdar").spec)
    masks = most_drafts(table, "unmask")
    synthetic = synthetic_of(None, "geometric:0.6", table)
    assert synthetic is not None
    law = synthetic.laws().filled
    assert law is not None
    more = law.flip(0).cumsum(0).flip(0)[1:]
    assert masks > 1
    np.testing.assert_allclose(parse_unmask("geometric:0.6").survival(masks), more, rtol=1e-13)
