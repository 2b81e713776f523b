"""Tiers on both sides: greedy output does not depend on them, and simulator and executor switch at the same rounds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pytest

from fsm_spec.errors import TraceDivergence
from fsm_spec.executor.generate import Options, pool_for
from fsm_spec.load import load, shipped
from fsm_spec.policy import Policy, Pool
from fsm_spec.replay import replay_records
from fsm_spec.simulator.acceptance import parse_accept
from fsm_spec.simulator.cost import CostModel
from fsm_spec.simulator.hardware import load_hardware
from fsm_spec.simulator.model import load_model
from fsm_spec.simulator.outcomes import Laws
from fsm_spec.simulator.scripted import rerun
from fsm_spec.simulator.simulation import Simulation
from fsm_spec.simulator.workload import Workload, parse_arrivals, parse_lengths
from fsm_spec.table import Table
from fsm_spec.tiers import tiers_of
from fsm_spec.trace import TraceWriter, header

TIERED = [
    name for name in sorted(shipped()) if any(param.tiered for param in load(name).spec.params.values())
]
PROMPTS = [[3 + index, 5, 7, 9 + index] * 2 for index in range(5)]
TOKENS = 24
Tables = Callable[..., Table]
Records = list[dict[str, Any]]


class Executor(Protocol):
    """Be the fixture of that name (`conftest.py`)."""

    def set_adapter(self, seed: int | None) -> None:
        """Give the model a random adapter, or none."""

    def run(self, table: Table, prompts: Sequence[Sequence[int]], options: Options, **more: Any) -> Any:  # noqa: ANN401 -- what the fixture takes and gives
        """Run all prompts together."""


EXACT = [name for name in TIERED if (claim := load(name).spec.lossless) and claim.claim != "no"]


def policy_of(spec: str, admit: str = "holdback") -> Policy:
    """Return a policy whose tiers change a spec's tiered parameter: larger while fewer requests run."""
    (param,) = (name for name, param in load(spec).spec.params.items() if param.tiered)
    low, high = load(spec).spec.params[param].range
    top = min(low + 4, high)
    sizes = [top, (low + top) // 2, low]
    steps = [{"to": 1, "value": sizes[0]}, {"to": 2, "value": sizes[1]}, {"value": sizes[2]}]
    return Policy.model_validate(
        {"policy": "sizes", "admit": admit, "tier": {"param": param, "steps": steps}}
    )


def sizes_of(records: Records) -> list[int]:
    """Give the size of every iteration in which a round runs."""
    return [record["plan"]["tier"] for record in records if record.get("plan", {}).get("run")]


@pytest.mark.parametrize("spec", EXACT)
def test_greedy_output_does_not_depend_on_the_tier(spec: str, executor: Executor, table_of: Tables) -> None:
    """A draft of the old size that is judged under the new one, or a slot taken by the wrong size, shows as a token.

    Few requests run when the first tokens come and when a small pool has preempted others, many in between.
    """
    table = table_of(spec)
    plain = [
        executor.run(table_of("ar"), [prompt], Options(TOKENS), replays=False).token_ids[0]
        for prompt in PROMPTS
    ]
    roomy = executor.run(table, PROMPTS, Options(TOKENS), policy=policy_of(spec))
    longest = pool_for(table, len(PROMPTS[0]), TOKENS, 4, policy_of(spec))
    tight = executor.run(
        table, PROMPTS, Options(TOKENS), policy=policy_of(spec), pool=Pool(longest.pages + 6, 4)
    )
    assert plain == roomy.token_ids == tight.token_ids
    assert tight.preemptions > 0
    assert len(set(sizes_of(roomy.records + tight.records))) > 1
    for outputs in (roomy, tight):
        assert outputs.records[1:] == rerun(outputs.records)[1:]


def simulated(table: Table, spec: str, admit: str) -> Records:
    """Return the trace of a simulation with tiers, with conservation checked at every event."""
    records: Records = []
    policy = policy_of(spec, admit)
    longest = pool_for(table, 20, 20, 4, policy).pages
    # What is reserved for the largest size leaves no room for a second request else.
    pool = Pool(longest * (2 if admit == "reserve" else 1) + 3, 4)
    lengths = parse_lengths("uniform:5:20", "--input"), parse_lengths("uniform:1:20", "--output")
    workload = Workload(parse_arrivals("poisson:2000"), *lengths, requests=12, seed=3)
    trace = TraceWriter(records, header(table, policy, pool, load(spec).text, "simulator"))
    Simulation(
        table,
        policy,
        pool,
        CostModel(load_model("smollm2-135m"), load_hardware("h100")),
        workload.generate(),
        Laws(parse_accept("geometric:0.7", 3)),
        trace=trace,
        checked=True,
    ).run()
    return records


@pytest.mark.parametrize("admit", ["reserve", "holdback", "preempt"])
@pytest.mark.parametrize("spec", TIERED)
def test_a_simulation_switches_tiers_and_replays(spec: str, admit: str, table_of: Tables) -> None:
    """The simulator's launches, pages and cuts are those of the size that the plan chose."""
    records = simulated(table_of(spec), spec, admit)
    assert len(set(sizes_of(records))) > 1
    assert 12 == replay_records(enumerate(records, start=1)).ended
    assert records == rerun(records)


def test_a_trace_of_another_size_is_told(table_of: Tables) -> None:
    """A size that the policy would not choose for so many running requests is the first step that differs."""
    records = simulated(table_of("uno_linear"), "uno_linear", "holdback")
    changed = copy.deepcopy(records)
    plan = next(record["plan"] for record in changed if record.get("plan", {}).get("tier") == 2)
    plan["tier"] = 4
    with pytest.raises(TraceDivergence, match="the plan runs b = 4 where the policy's tiers give 2"):
        replay_records(enumerate(changed, start=1))


def test_the_simulator_draws_for_the_largest_block(table_of: Tables) -> None:
    """Outcomes drawn for the smallest block would cap what a large one accepts."""
    table = table_of("linear_spec")
    tiers = tiers_of(table, policy_of("linear_spec"))
    records = simulated(table, "linear_spec", "holdback")
    accepted = [record["args"]["a"] for record in records if "a" in record.get("args", {})]
    assert tiers.table(9).params["b"] - 1 < max(accepted) <= tiers.largest.params["b"] - 1
