"""Host lag: pages are taken for what a late host cannot see, and a scheduler that ignores the lag is refuted."""

from __future__ import annotations

import pytest

from fsm_spec.checker import properties
from fsm_spec.checker.check import Bounds, check
from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.load import load, shipped
from fsm_spec.policy import Policy, Pool, headroom, longest_pages, plan
from fsm_spec.table import Table


def table_of(name: str) -> Table:
    """Compile a shipped spec for the checker's parameters."""
    return compile_table(load(name).spec, check=True)


@pytest.mark.shows("checked")
@pytest.mark.parametrize("name", sorted(shipped()))
def test_shipped_specs_hold_with_a_late_host(name: str) -> None:
    """Overlapped scheduling leaks no page and writes no slot that is not owned, for every shipped spec."""
    assert "proved" == check(table_of(name), Bounds(requests=2, lag=1)).verdict


@pytest.mark.parametrize("name", ["ar", "isd", "uno_linear"])
def test_a_scheduler_that_ignores_the_lag_is_refuted(name: str) -> None:
    """Without the slots that the round in flight may commit, the next round writes past its pages."""
    table = table_of(name)
    table.cache["headroom", 1, None] = headroom(table)
    found = check(table, Bounds(requests=1, lag=1))
    assert properties.SLOTS in [decided.name for decided in found.refuted]


def test_the_headroom_of_a_late_host() -> None:
    """A late host takes the largest peak and the largest advance for every round state (isd, n = 2)."""
    table = table_of("isd")
    cold, verify = table.codes["cold"], table.codes["verify"]
    assert [2, 3] == headroom(table)[[cold, verify]].tolist()
    assert [5, 5] == headroom(table, Policy(lag=1))[[cold, verify]].tolist()
    assert (
        longest_pages(table, Pool(99, 1), 4, 3, Policy(lag=1)) - longest_pages(table, Pool(99, 1), 4, 3) == 2
    )


def test_plan_takes_pages_ahead() -> None:
    """The plan owns pages for the round in flight and the next one."""
    import numpy as np  # noqa: PLC0415 - one test needs it

    table = table_of("ar")
    columns = {name: np.zeros(1, np.int32) for name in table.column_names}
    columns |= {"state": np.array([table.codes["decode"]], np.int32), "kv": np.array([4], np.int32)}
    owned = [
        plan(table, Policy(lag=lag), Pool(9, 1), columns, np.zeros(1, np.int32), []).pages[0]
        for lag in (0, 1)
    ]
    assert [5, 6] == owned


def test_a_lag_that_makes_no_sense_is_refused() -> None:
    """A lag of two rounds, and a lag of an abstract model, get a sentence."""
    with pytest.raises(UserError, match="the lag is 2"):
        Bounds(lag=2).refuse_senseless()
