"""A scenario: one spec, model, machine, workload and policy, as a person writes it; `preparation.py` checks it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from fsm_spec.simulator.memory import DEFAULT_PAGE_SIZE


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
        default=0.0,
        ge=0,
        lt=1,
        description="share of a point's requests that arrive first and are not counted",
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
