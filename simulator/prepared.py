"""The checked parts of a scenario, and the runs that are made of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from fsm_spec.load import Loaded
from fsm_spec.policy import Policy, Pool
from fsm_spec.simulator.cluster_options import ClusterOptions
from fsm_spec.simulator.cost import CostModel
from fsm_spec.simulator.hardware import Hardware
from fsm_spec.simulator.memory import Memory
from fsm_spec.simulator.model import ModelShape
from fsm_spec.simulator.outcome_options import warnings_of
from fsm_spec.simulator.outcomes import Laws
from fsm_spec.simulator.rounds import RoundLog
from fsm_spec.simulator.scenario import Scenario
from fsm_spec.simulator.simulation import Simulation
from fsm_spec.simulator.workload import (
    Requests,
    parse_arrivals,
)
from fsm_spec.table import Table
from fsm_spec.trace import TraceWriter
from fsm_spec.wording import counted

NODE = 8  # accelerators of a DGX or HGX board


@dataclass(frozen=True)
class Prepared:
    """Hold the checked parts of a scenario."""

    scenario: Scenario
    loaded: Loaded
    table: Table
    model: ModelShape
    hardware: Hardware
    cost: CostModel
    memory: Memory
    pool: Pool
    policy: Policy
    requests: Requests
    laws: Laws
    cluster: ClusterOptions

    @property
    def alone(self) -> bool:
        """Say whether one replica runs it, without a router: a prefix cache matters then only after preemptions."""
        cached = self.cluster.prefix_cache and self.requests.prefixes is not None
        return not cached and replace(self.cluster, prefix_cache=False).alone

    @property
    def warnings(self) -> tuple[str, ...]:
        """Say what the scenario takes for granted and a user may not have meant."""
        tp = self.scenario.tensor_parallel
        apart = (f"--tp {tp} is priced as one node with links between all {tp}; most nodes hold {NODE}",)
        return (*warnings_of(self.scenario, self.table), *(apart if tp > NODE else ()))

    def simulation(
        self, *, trace: TraceWriter | None = None, checked: bool = False, rounds: RoundLog | None = None
    ) -> Simulation:
        """Give a run of the scenario, not yet started."""
        return Simulation(
            self.table,
            self.policy,
            self.pool,
            self.cost,
            self.requests,
            self.laws,
            trace=trace,
            checked=checked,
            recalls=self.cluster.prefix_cache,
            rounds=rounds,
        )

    def laws_of(self, replica: int) -> Laws:
        """Give the laws of one replica of several: the same, with numbers of its own."""
        acceptance, lookup, unmasking, budget = self.laws
        return Laws(
            replace(acceptance, seed=acceptance.seed + replica) if acceptance else None,
            replace(lookup, seed=lookup.seed + replica) if lookup else None,
            replace(unmasking, seed=unmasking.seed + replica) if unmasking else None,
            budget,
        )

    def settings(self) -> dict[str, str]:
        """Give what was simulated, in words, in the order of a reader's questions; no paths."""
        scenario, pool = self.scenario, self.pool
        arrivals = parse_arrivals(scenario.arrivals).describe()
        parallel = f" x {scenario.tensor_parallel}" if scenario.tensor_parallel > 1 else ""
        settings = {
            "model": self.model.name,
            "hardware": f"{self.hardware.title}{parallel}",
            "dtype": self.cost.dtype,
            "kv dtype": self.cost.kv_dtype,
            "parameters": " ".join(
                f"{name}={value}"
                for name, value in self.table.params.items()
                if self.policy.tier is None or name != self.policy.tier.param
            ),
            "tiers": self.policy.tier.describe() if self.policy.tier else "",
            "verify budget": self.policy.budget.describe() if self.policy.budget else "",
            "arrivals": arrivals,
            "input": scenario.input or "",
            "output": scenario.output or "",
            "shared prefix": scenario.shared_prefix or "",
            "turns": scenario.turns or "",
            "requests": str(len(self.requests)),
            "accept": self.laws.acceptance.describe() if self.laws.acceptance else "",
            "lookup": f"{self.laws.lookup.rate:g}" if self.laws.lookup else "",
            "unmask": self.laws.unmasking.describe() if self.laws.unmasking else "",
            "drafter": self.cost.drafter.describe() if self.cost.drafter else "",
            "host": "" if self.cost.host.overlapped else "serial",
            "kernels": Path(scenario.kernels).name if scenario.kernels else "",
            "profile": Path(scenario.profile).name if scenario.profile else "",
            "adapter rank": str(self.cost.adapter_rank) if self.cost.adapter_rank else "",
            "adapter": "fused into a second copy of the weights" if self.cost.fused_adapter else "",
            **self.cluster.describe(),
            "policy": self.policy.policy,
            "running at most": str(self.policy.max_running),
            "pool": f"{counted(pool.pages, 'page')} of {pool.page_size}",
            "seed": str(scenario.seed),
        }
        return {key: value for key, value in settings.items() if value}
