"""Answer: Uno B=4 against EAGLE-3 on H200, at which concurrency does each win, and what do tiers change.

`bench/uno_against_eagle3.py [--write]` simulates Qwen3-8B in closed loops from 1 to 256 users and prints the answer;
`--write` puts the HTML report and its numbers into bench/results/. Acceptance lengths are the published ones at
temperature 1 (Uno's survey: 3.89 tokens a round of two forwards for B=4, 2.08 for EAGLE-3). Uno's chances fall with the
position so that B=16 has 2.3 / 1.8 times the tokens of B=4, as the survey's ablation says. EAGLE-3 is a chain of three
drafts made by one layer of the target's shape with a vocabulary of 32,000, priced as a draft model
(`--drafter 1:3:1:32000`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from published import AR, EAGLE3, UNO_LINEAR, Algorithm, acceptance_for
from record import RESULTS, write_result
from regime import closed_loop

from fsm_spec.compile import compile_table
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool
from fsm_spec.simulator.acceptance import Acceptance
from fsm_spec.simulator.bill import bill
from fsm_spec.simulator.chart import Line
from fsm_spec.simulator.cost import CostModel
from fsm_spec.simulator.hardware import load_hardware
from fsm_spec.simulator.lookup import Lookup
from fsm_spec.simulator.memory import MemoryOptions, plan_memory
from fsm_spec.simulator.model import load_model
from fsm_spec.simulator.outcomes import Laws
from fsm_spec.simulator.page import write_page
from fsm_spec.simulator.page_load import STYLES, users_of, winners
from fsm_spec.simulator.report import Scenario
from fsm_spec.simulator.search import tiers
from fsm_spec.simulator.simulation import Simulation
from fsm_spec.simulator.workload import Requests
from fsm_spec.tiers import Tier

USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BLOCKS = (2, 4, 8, 16)
PROMPT, OUTPUT, REQUESTS_A_USER = 1024, 1024, 2


@dataclass(frozen=True)
class Contender:
    """Hold one line of the comparison."""

    name: str
    algorithm: Algorithm
    tier: Tier | None = None


def run(contender: Contender, users: int, rate: Acceptance | None) -> Scenario:
    """Simulate one load and give what a report shows of it."""
    algorithm = contender.algorithm
    model, hardware = load_model("qwen3-8b"), load_hardware("h200")
    params = {} if contender.tier else algorithm.params
    table = compile_table(load(algorithm.spec).spec, params)
    cost = CostModel(model, hardware, adapter_rank=algorithm.rank, drafter=algorithm.drafter)
    memory = plan_memory(
        model, hardware, options=MemoryOptions(adapter_rank=algorithm.rank, drafter=algorithm.drafter)
    )
    count = users * REQUESTS_A_USER
    requests = closed_loop(
        users, Requests(np.zeros(count, np.int64), np.full(count, PROMPT), np.full(count, OUTPUT)), 0.0
    )
    policy = Policy(policy="tiers" if contender.tier else "holdback", tier=contender.tier)
    laws = Laws(rate, Lookup(1.0)) if rate is not None else Laws()
    pool = Pool(memory.pages, memory.page_size)
    results = Simulation(table, policy, pool, cost, requests, laws).run()
    settings = {
        "model": model.name,
        "hardware": hardware.title,
        "arrivals": f"closed:{users}",
        "input": str(PROMPT),
        "output": str(OUTPUT),
        "accept": rate.describe() if rate is not None else "",
        "drafter": algorithm.drafter.describe() if algorithm.drafter else "",
        "pool": f"{pool.pages} pages of {pool.page_size}",
    }
    return Scenario(
        contender.name,
        {key: value for key, value in settings.items() if value},
        results.summary,
        results.timeline,
        notes=results.verdicts,
        bill=bill(results, cost),
    )


def falling(length: float, longer: float) -> Acceptance:
    """Find chances r, r d, r d^2 ... whose rounds have `length` tokens for B=4 and `longer` ones for B=16."""

    def survivals(first: float, decay: float, drafts: int) -> float:
        return float(np.cumprod(first * decay ** np.arange(drafts)).sum())

    decay = 1.0
    first = 0.0
    for decay in np.linspace(1.0, 0.5, 501).tolist():
        # A round has two tokens beside the accepted drafts.
        first = next(r for r in np.linspace(0, 1, 2001).tolist() if survivals(r, decay, 3) >= length - 2)
        if survivals(first, decay, 15) <= longer - 2:
            break
    return Acceptance(tuple(round(first * decay**i, 4) for i in range(15)))


def best_tiers(acceptance: Acceptance) -> Tier:
    """Find the block size that is best at each load, and make tiers of them."""
    rows = []
    for block in BLOCKS:
        algorithm = replace(UNO_LINEAR, params={"b": block})
        for users in USERS:
            speed = run(Contender("", algorithm), users, acceptance).summary.throughput_tok_s
            rows.append({"users": users, "b": block, "speed": speed, "error": ""})
    best = tiers(rows, "b", "speed")
    steps: list[dict[str, int]] = [{"to": each["up_to"], "value": each["b"]} for each in best[:-1]]
    return Tier.model_validate({"param": "b", "steps": [*steps, {"value": best[-1]["b"]}]})


def lines_of(scenarios: Sequence[Scenario]) -> list[Line]:
    """Return throughput over users, one line a contender."""
    names = list(dict.fromkeys(scenario.name for scenario in scenarios))
    return [
        Line(
            name,
            STYLES[index % len(STYLES)],
            [(users_of(s) or 0.0, s.summary.throughput_tok_s) for s in scenarios if s.name == name],
        )
        for index, name in enumerate(names)
    ]


def main() -> None:
    """Run, print the answer, and write the report."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--write", action="store_true", help="write report and numbers to bench/results/")
    options.add_argument("--report", type=Path, help="write the HTML report here")
    given = options.parse_args()
    chain = acceptance_for(compile_table(load(EAGLE3.spec).spec, EAGLE3.params), EAGLE3.length or 1.0)
    uno = falling(UNO_LINEAR.length or 2.0, (UNO_LINEAR.length or 2.0) * 2.3 / 1.8)
    rates = {UNO_LINEAR.name: uno, EAGLE3.name: chain}
    tier = best_tiers(uno)
    contenders = (
        Contender("plain decoding", AR),
        Contender("EAGLE-3, chain of 3", EAGLE3),
        Contender("Uno, B=4", UNO_LINEAR),
        Contender("Uno, tiers", UNO_LINEAR, tier),
    )
    scenarios = [
        run(contender, users, rates.get(contender.algorithm.name))
        for contender in contenders
        for users in USERS
    ]
    print(f"{'users':>6}" + "".join(f"{contender.name:>22}" for contender in contenders) + "   tok/s")
    for users in USERS:
        speeds = [s.summary.throughput_tok_s for s in scenarios if users_of(s) == users]
        print(f"{users:6}" + "".join(f"{speed:22,.0f}" for speed in speeds))
    described = ", ".join(
        f"B={step.value} {f'up to {step.to}' if step.to else 'beyond'}" for step in tier.steps
    )
    print(f"tiers: {described}")
    for name, rate in rates.items():
        print(f"{name}: acceptance {rate.describe() if rate else ''}")
    lines = lines_of(scenarios)
    for among, some in (("fixed blocks", lines[:3]), ("Uno's two", lines[2:]), ("all", lines)):
        for sentence in winners(some, "users"):
            print(f"of {among}: {sentence}")
    print("differences below 10 % lie within the simulator's own error (bench/fidelity.py)")
    title = "Uno B=4 against EAGLE-3 on H200"
    for path in (given.report, RESULTS / "uno_against_eagle3.html" if given.write else None):
        if path is not None:
            write_page(path, scenarios, title)
            print(f"report in {path}")
    if given.write:
        numbers = {
            line.name: {f"{users:g}": round(speed, 1) for users, speed in line.points} for line in lines
        }
        write_result("uno_against_eagle3", {"tok_s_by_users": numbers, "tiers": described})
    sys.stdout.flush()


if __name__ == "__main__":
    main()
