"""Another policy takes over between two iterations, where every request that was taken still fits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fsm_spec.compile import compile_table
from fsm_spec.engine import Engine
from fsm_spec.errors import PoolExhausted, UserError
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool
from fsm_spec.table import NO_STOP, Table


class Backend:
    """Accept nothing, and remember the table in use."""

    def __init__(self) -> None:
        self.table: Table | None = None

    def use(self, table: Table) -> None:
        """Follow the tier."""
        self.table = table

    def launch(self, launch: Any) -> list[Any]:  # noqa: ANN401 -- the protocol's types do not matter here
        """Find nothing."""
        return [{"a": np.zeros(len(group.requests), np.int32)} for group in launch.groups]

    def stops(self, event: str, requests: Any, columns: Any, args: Any) -> Any:  # noqa: ANN401 -- as above
        """Stop nowhere."""
        del event, columns, args
        return np.full(len(requests), NO_STOP, np.int32)

    def settle(self, event: str, requests: Any, before: Any, done: Any) -> None:  # noqa: ANN401 -- as above
        """Hold nothing."""

    def resize(self, request: int, pages: int) -> None:
        """Hold nothing."""


def tiered(*sizes: int) -> Policy:
    """Make a policy of block sizes, the first for a lone request."""
    steps = [{"to": 1, "value": sizes[0]}, {"value": sizes[-1]}]
    return Policy.model_validate({"policy": "mine", "tier": {"param": "b", "steps": steps}})


@pytest.fixture
def engine() -> Engine:
    """Return an engine made for blocks up to 8, with one request that lives and one that waits."""
    table = compile_table(load("linear_spec").spec, {"b": 4})
    made = Engine(table, tiered(8, 4), Pool(20, 4), Backend())
    made.submit(5, 20)
    made.iterate()
    made.submit(5, 20)
    return made


def test_sizes_follow_the_policy_in_force(engine: Engine) -> None:
    """The rounds run under the new sizes, and without tiers under the table that the run was made from."""
    engine.switch(tiered(6, 2))
    assert engine.table.params["b"] == 6
    engine.switch(Policy())
    assert engine.table.params["b"] == 4
    backend = engine.backend
    assert isinstance(backend, Backend)
    assert backend.table is engine.table
    while engine.has_work:
        engine.iterate()
    assert engine.used_pages == 0


def test_sizes_that_nothing_has_room_for_are_refused(engine: Engine) -> None:
    """Carries are made once: a larger block would run over their ends."""
    with pytest.raises(UserError, match="larger blocks"):
        engine.switch(tiered(16, 4))
    assert engine.policy.policy == "mine"
    assert engine.table.params["b"] == 8


def test_requests_that_were_taken_must_still_fit(engine: Engine) -> None:
    """A policy under which somebody could never end is refused, whether he lives or waits."""
    engine.pool = Pool(6, 4)
    with pytest.raises(PoolExhausted):
        engine.switch(tiered(8, 8))
