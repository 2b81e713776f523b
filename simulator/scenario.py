"""A scenario: one spec, model, machine, workload and policy, as a person writes it; checked before any work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.load import Loaded, load
from fsm_spec.policy import ALONE, Policy, Pool, refuse_budget, refuse_impossible
from fsm_spec.policy_file import load_policy
from fsm_spec.simulator.acceptance import Acceptance
from fsm_spec.simulator.cluster_options import ClusterOptions, parse_cluster
from fsm_spec.simulator.cost import CostModel, Host
from fsm_spec.simulator.drafter import Drafter, drafter_of, parse_drafter
from fsm_spec.simulator.faults import Faults
from fsm_spec.simulator.hardware import Hardware, load_hardware
from fsm_spec.simulator.kernel_table import load_kernel_table
from fsm_spec.simulator.memory import DEFAULT_PAGE_SIZE, Memory, MemoryOptions, plan_memory
from fsm_spec.simulator.mixture import Mixture
from fsm_spec.simulator.model import ModelShape, load_model
from fsm_spec.simulator.outcome_options import acceptance_of, lookup_of, needs, unmasking_of, warnings_of
from fsm_spec.simulator.outcomes import Granted, Laws, most_drafts
from fsm_spec.simulator.profile import Profile, load_profile
from fsm_spec.simulator.rounds import RoundLog
from fsm_spec.simulator.simulation import Simulation
from fsm_spec.simulator.workload import (
    Requests,
    Workload,
    parse_arrivals,
    parse_lengths,
    parse_sessions,
)
from fsm_spec.table import Table, refuse_abstract
from fsm_spec.tiers import refuse_given, tiers_of
from fsm_spec.trace import TraceWriter
from fsm_spec.wording import counted

DEFAULT_ADAPTER_RANK = 128  # Uno (arXiv 2609.04010) and I-DLM's LoRA variant (arXiv 2604.11035)
# Of a closed loop without a number of its own: the start weighs little, and a sweep costs the same at every width.
REQUESTS_A_USER = 4
# Admissions under which a running request may lose its pages.
PREEMPTING = ("holdback", "preempt")


class Scenario(BaseModel):
    """Describe one simulated run; None stands for an option that was not given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: str = Field(description="path of a spec, or the name of a shipped one")
    params: dict[str, int] = Field(
        default_factory=dict, description="parameters of the spec that differ from defaults"
    )
    model: str = Field(description="shipped model, config.json, or a folder that holds one")
    hardware: str = Field(description="accelerator of the catalogue")
    dtype: str = Field(default="bf16", description="number format of the weights: bf16, fp8 or int4")
    kv_dtype: str = Field(default="bf16", description="number format of the KV cache: bf16 or fp8")
    tensor_parallel: int = Field(default=1, description="accelerators that share one replica")
    host: str = Field(default="overlapped", description="overlapped or serial: where the host's share goes")
    kernels: str | None = Field(default=None, description="common prefix of measured kernel tables")
    profile: str | None = Field(default=None, description="file of numbers that replace the catalogue's")
    adapter_rank: int | None = Field(default=None, description="rank of the gated adapter")
    fused_adapter: bool = Field(
        default=False, description="forwards of the adapter have weights of their own, with it fused in"
    )
    arrivals: str = Field(
        description="when requests arrive: poisson:RATE, closed:CONCURRENCY, trace:FILE, ..."
    )
    input: str | None = Field(default=None, description="prompt tokens")
    output: str | None = Field(default=None, description="output tokens")
    requests: int | None = Field(
        default=None, description="requests to simulate; a closed loop takes 4 a user"
    )
    warm_up: float = Field(
        default=0.0, ge=0, lt=1, description="share of a point's requests that arrive first and are not counted"
    )
    shared_prefix: str | None = Field(default=None, description="GROUPS:TOKENS that prompts begin with")
    turns: str | None = Field(default=None, description="TURNS:THINK of a session, seconds between turns")
    accept: str | None = Field(default=None, description="acceptance of drafts by position, or geometric")
    acceptance: str | None = Field(default=None, description="file of acceptance profiles")
    mix: str | None = Field(default=None, description="NAME=WEIGHT,... of the profiles that are taken")
    concentration: float | None = Field(
        default=None, description="requests differ: their rates are beta-distributed with this concentration"
    )
    drafter: str | None = Field(default=None, description="LAYERS:STEPS[:ROWS[:VOCABULARY]] of a draft model")
    lookup: float | None = Field(default=None, description="chance that a lookup finds drafts")
    unmask: str | None = Field(
        default=None, description="chance that one more mask is filled in a pass, by number, or geometric"
    )
    policy: str = Field(default="holdback", description="scheduling policy: a name or a file")
    max_running: int | None = Field(default=None, description="requests that run at once, at most")
    pages: int | None = Field(default=None, description="KV pages of the pool, if known exactly")
    page_size: int = Field(default=DEFAULT_PAGE_SIZE, description="token slots a page")
    seed: int = Field(default=0, description="of arrivals, lengths and acceptance")
    replicas: int | None = Field(default=None, description="replicas at the start")
    routing: str | None = Field(default=None, description="round-robin, least-loaded or prefix")
    prefix_cache: bool = Field(default=False, description="each replica remembers full pages of text")
    autoscale: str | None = Field(default=None, description="MIN:MAX:TARGET:STARTUP")
    fail: tuple[str, ...] = Field(default=(), description="REPLICA:AT:DOWN of replicas that fail")
    split: str | None = Field(default=None, description="PREFILL:DECODE[:GB_S] replicas of each kind")


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
        return warnings_of(self.scenario, self.table)

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


def prepare(scenario: Scenario) -> Prepared:
    """Check a scenario and give its parts; raises UserError with one sentence a line for all its faults."""
    faults = Faults()
    loaded = faults.take(lambda: load(scenario.spec))
    policy = faults.take(lambda: _policy(scenario))
    table = faults.take(lambda: _table(loaded, scenario.params, policy or ALONE)) if loaded else None
    model = faults.take(lambda: load_model(scenario.model))
    profile = faults.take(lambda: _profile(scenario))
    requests = faults.take(lambda: _workload(scenario).generate())
    acceptance = faults.take(lambda: acceptance_of(scenario, table, policy)) if table else None
    lookup = faults.take(lambda: lookup_of(scenario, table)) if table else None
    unmasking = faults.take(lambda: unmasking_of(scenario, table)) if table else None
    rank = faults.take(lambda: _adapter_rank(scenario, table)) if table else None
    cost = memory = hardware = None
    if model and profile and rank is not None:
        hardware = profile.hardware
        drafter = faults.take(lambda: _drafter(scenario, table)) if table else None
        cost = faults.take(lambda: _cost(scenario, model, profile, rank, drafter))
        if table and policy and requests:
            rows = _most_rows(table, policy, requests)
            memory = faults.take(lambda: _memory(scenario, model, hardware, rank, drafter, rows))
    cluster = faults.take(lambda: _cluster(scenario, policy, requests))
    faults.raise_any()
    assert cluster is not None
    assert loaded and table and model and hardware and cost and memory and policy  # noqa: PT018 - without faults all are there
    assert requests is not None
    pool = Pool(memory.pages, memory.page_size)
    _refuse_long(requests, model)
    # Where no request can grow longer than the pool, none in between can.
    for index in {
        int(np.argmax(requests.prompt_tokens + requests.output_tokens)),
        int(np.argmax(requests.prompt_tokens)),
    }:
        refuse_impossible(
            table, pool, int(requests.prompt_tokens[index]), int(requests.output_tokens[index]), policy
        )
    return Prepared(
        scenario,
        loaded,
        table,
        model,
        hardware,
        cost,
        memory,
        pool,
        policy,
        requests,
        Laws(acceptance, lookup, unmasking, _budget(table, policy, acceptance)),
        cluster,
    )


def _budget(table: Table, policy: Policy, acceptance: Acceptance | Mixture | None) -> Granted | None:
    """Give what a policy's verify budget grants; confidences are taken to be the mean chances of acceptance."""
    refuse_budget(table, policy)
    if policy.rate is None or acceptance is None:
        return None
    rules = {op.rule for plan in table.forwards.values() for op in plan.operators if op.op == "budget"}
    survival = acceptance.tails(most_drafts(table, "budget")).mean(axis=0)
    return Granted(tuple(survival.tolist()), policy.rate, "earlier" in rules, policy.max_running)


def _table(loaded: Loaded, params: Mapping[str, int], policy: Policy) -> Table:
    """Give the table, of the largest size where the policy has tiers."""
    table = compile_table(loaded.spec, params, line_of=loaded.line_of)
    refuse_abstract(table)
    refuse_given(policy, params)
    return tiers_of(table, policy).largest


def _policy(scenario: Scenario) -> Policy:
    policy = load_policy(scenario.policy)
    if scenario.max_running is None:
        return policy
    if scenario.max_running < 1:
        raise UserError(f"--max-running {scenario.max_running} lets nothing run; give at least 1")
    return policy.model_copy(update={"max_running": scenario.max_running})


def _workload(scenario: Scenario) -> Workload:
    arrivals = parse_arrivals(scenario.arrivals)
    prompt = parse_lengths(scenario.input, "--input") if scenario.input is not None else None
    output = parse_lengths(scenario.output, "--output") if scenario.output is not None else None
    requests = scenario.requests
    if requests is None and arrivals.kind == "closed":
        requests = REQUESTS_A_USER * arrivals.concurrency
    sessions = parse_sessions(scenario.shared_prefix, scenario.turns)
    return Workload(arrivals, prompt, output, requests, scenario.seed, sessions)


def _adapter_rank(scenario: Scenario, table: Table) -> int:
    gated = needs(table)["adapter_rank"]
    if scenario.fused_adapter:
        _refuse_fused(table)
    if scenario.adapter_rank is None:
        return DEFAULT_ADAPTER_RANK if gated else 0
    if not gated:
        raise UserError(
            f"--adapter-rank would have no effect, because {table.name} has no adapter rows; leave it out"
        )
    return scenario.adapter_rank


def _refuse_fused(table: Table) -> None:
    """Raise UserError where weights with the adapter fused in would have no use, or a forward needs both."""
    for name, plan in table.forwards.items():
        gates = {segment.adapter for segment in plan.segments}
        if len(gates) > 1:
            raise UserError(
                f"--fused-adapter cannot serve {table.name}, whose forward {name} has rows with and without the"
                f" adapter; leave it out"
            )
    if not needs(table)["adapter_rank"]:
        raise UserError(
            f"--fused-adapter would have no effect, because {table.name} has no adapter rows; leave it out"
        )


def _cluster(scenario: Scenario, policy: Policy | None, requests: Requests | None) -> ClusterOptions:
    texts = requests is None or requests.prefixes is not None
    if scenario.prefix_cache and not texts:
        way_out = "give --shared-prefix, --turns or a trace with hashes or sessions"
        if scenario.routing == "prefix":
            raise UserError(
                f"--routing prefix would have no effect, as no two requests share text; {way_out}"
            )
        if policy is not None and policy.admit not in PREEMPTING:
            raise UserError(
                f"--prefix-cache would have no effect, because no two requests have text in common and the policy"
                f" {policy.policy} preempts none; {way_out}"
            )
    return parse_cluster(
        scenario.replicas,
        scenario.routing,
        scenario.prefix_cache,
        scenario.autoscale,
        scenario.fail,
        scenario.split,
    )


def _profile(scenario: Scenario) -> Profile:
    hardware = load_hardware(scenario.hardware)
    if scenario.host not in ("overlapped", "serial"):
        raise UserError(f'--host "{scenario.host}" is unknown; write overlapped or serial')
    host = Host(overlapped=scenario.host == "overlapped")
    return (
        Profile(hardware, host)
        if scenario.profile is None
        else load_profile(scenario.profile, hardware, host)
    )


def _drafter(scenario: Scenario, table: Table) -> Drafter | None:
    """Give the draft model's cost as asked for, else as the spec's rounds say."""
    return parse_drafter(scenario.drafter) if scenario.drafter is not None else drafter_of(table)


def _cost(
    scenario: Scenario, model: ModelShape, profile: Profile, rank: int, drafter: Drafter | None
) -> CostModel:
    table = None
    if scenario.kernels is not None:
        if scenario.tensor_parallel > 1 or scenario.dtype != "bf16":
            raise UserError("--kernels holds times of one accelerator in bf16; leave out --tp and --dtype")
        table = load_kernel_table(scenario.kernels, model.num_hidden_layers)
    return CostModel(
        model,
        profile.hardware,
        scenario.dtype,
        scenario.kv_dtype,
        scenario.tensor_parallel,
        rank,
        host=profile.host,
        table=table,
        drafter=drafter,
        fused_adapter=scenario.fused_adapter,
    )


def _most_rows(table: Table, policy: Policy, requests: Requests) -> tuple[int, int]:
    """Give the rows of a forward at most, and those of them whose logits are needed: as many requests as may run."""
    running = min(policy.max_running, requests.concurrency or policy.max_running)
    blocks = [
        (
            sum(each.max_count for each in plan.segments),
            sum(each.max_count for each in plan.segments if each.logits != "none"),
        )
        for plan in table.forwards.values()
        if plan.model is None
    ]
    rows, logits = (max(each) for each in zip(*blocks, strict=True))
    return max(policy.prefill.tokens, running * rows), running * max(logits, 1)


def _memory(
    scenario: Scenario,
    model: ModelShape,
    hardware: Hardware,
    rank: int,
    drafter: Drafter | None,
    rows: tuple[int, int],
) -> Memory:
    options = MemoryOptions(
        page_size=scenario.page_size,
        pages=scenario.pages,
        adapter_rank=rank,
        drafter=drafter,
        fused_adapter=scenario.fused_adapter,
        rows=rows[0],
        logits_rows=rows[1],
    )
    return plan_memory(
        model,
        hardware,
        scenario.dtype,
        kv_dtype=scenario.kv_dtype,
        tensor_parallel=scenario.tensor_parallel,
        options=options,
    )


def _refuse_long(requests: Requests, model: ModelShape) -> None:
    """Raise UserError for the first request that would grow beyond the model's context."""
    most = model.max_position_embeddings
    total = requests.prompt_tokens + requests.output_tokens
    over = np.flatnonzero(total > most) if most else np.zeros(0, np.int64)
    if len(over):
        index = int(over[0])
        raise UserError(
            f"request {index + 1} has {requests.prompt_tokens[index]} input and {requests.output_tokens[index]} output"
            f" tokens, {total[index]} in all, but the context of {model.name} is {most};"
            f" give shorter ones"
        )
