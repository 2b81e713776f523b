"""Prepare a scenario: its parts are loaded, and held to each other before any work."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fsm_spec.compile import compile_table
from fsm_spec.counts import most_drafts
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
from fsm_spec.simulator.memory import Memory, MemoryOptions, plan_memory
from fsm_spec.simulator.mixture import Mixture
from fsm_spec.simulator.model import ModelShape, load_model
from fsm_spec.simulator.outcome_options import acceptance_of, lookup_of, needs, unmasking_of
from fsm_spec.simulator.outcomes import Granted, Laws
from fsm_spec.simulator.prepared import Prepared
from fsm_spec.simulator.profile import Profile, load_profile
from fsm_spec.simulator.scenario import Scenario
from fsm_spec.simulator.workload import (
    Requests,
    Workload,
    parse_arrivals,
    parse_lengths,
    parse_sessions,
)
from fsm_spec.table import Table, refuse_abstract
from fsm_spec.tiers import refuse_given, tiers_of

DEFAULT_ADAPTER_RANK = 128  # Uno (arXiv 2609.04010) and I-DLM's LoRA variant (arXiv 2604.11035)
# Of a closed loop without a number of its own: the start weighs little, and a sweep costs the same at every width.
REQUESTS_A_USER = 4
# Admissions under which a running request may lose its pages.
PREEMPTING = ("holdback", "preempt")


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
    """Give the draft model's cost as asked for, else as the spec says."""
    return parse_drafter(scenario.drafter, table) if scenario.drafter is not None else drafter_of(table)


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
