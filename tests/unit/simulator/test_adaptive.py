"""A block that follows the text costs next to nothing where nothing is accepted, and pays where much is."""

from __future__ import annotations

import pytest

from fsm_spec.simulator.preparation import prepare
from fsm_spec.simulator.scenario import Scenario
from fsm_spec.simulator.simulation import Simulation


def seconds(spec: str, accept: str | None, concurrency: int) -> float:
    """Simulate long answers of Qwen3-8B on one H200 and give the duration."""
    scenario = Scenario(
        spec=spec,
        model="qwen3-8b",
        hardware="h200",
        arrivals=f"closed:{concurrency}",
        input="64",
        output="1024",
        requests=concurrency,
        accept=accept,
    )
    made = prepare(scenario)
    results = Simulation(made.table, made.policy, made.pool, made.cost, made.requests, made.laws).run()
    return results.summary.duration_s


@pytest.mark.parametrize("concurrency", [1, 32, 128])
def test_high_entropy_text_costs_ten_percent_at_most(concurrency: int) -> None:
    """Drafts that collapse are given up after a window: the request then decodes plainly, with rare tries."""
    plain = seconds("ar", None, concurrency)
    assert seconds("uno_adaptive", "geometric:0.02", concurrency) <= 1.1 * plain


def test_predictable_text_pays() -> None:
    """Where drafts are accepted, the block grows, and a lone request is served in less than half the time."""
    assert seconds("uno_adaptive", "geometric:0.9", 1) < 0.5 * seconds("ar", None, 1)
