"""Prometheus metrics: vLLM's names where vLLM has the number, `fsm_spec:` for what only a state machine has.

Counters move in the engine's thread, once an iteration; a fault here is logged and never stops serving.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fsm_spec.executor.generate import Session
from fsm_spec.executor.server import logs
from fsm_spec.executor.server.job import Job
from fsm_spec.executor.server.meter import Meter
from fsm_spec.executor.server.served import Served
from fsm_spec.executor.server.tracing import Tracing
from fsm_spec.executor.server.worker import Worker

# vLLM's buckets, so that dashboards made for it fit.
FIRST_TOKEN = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
)
BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
WHOLE = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
A_ROUND = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
# As vLLM labels the metrics of an engine; with several replicas the front puts the number of each in its place.
LABELS = ("model_name", "engine")
ENGINE = "0"
CHOICES = (1, 2, 5, 10, 20, 50, 100, 128)
Given = ParamSpec("Given")


def harmless(method: Callable[Given, None]) -> Callable[Given, None]:
    """Let a fault of counting be a line in the log."""

    @wraps(method)
    def guarded(*args: Given.args, **kwargs: Given.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception:  # noqa: BLE001 -- whatever it is, answers matter more
            logs.LOGGER.exception("a metric failed")

    return guarded


class Metrics:
    """Hold a server's registry, and follow its worker."""

    def __init__(
        self, served: Served, session: Session, meter: Meter, tracing: Tracing | None = None
    ) -> None:
        self.served = served
        self.session = session
        self.tracing = tracing
        self.meter = meter
        self.registry = CollectorRegistry()
        self.who = (served.name, ENGINE)
        self._launched = 0
        self._counters()
        self._gauges()
        self._histograms()
        self._describe()

    def page(self) -> bytes:
        """Give all metrics in Prometheus' text form."""
        return generate_latest(self.registry)

    # What there is -----------------------------------------------------------------------------------------------

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, (*LABELS, *labels), registry=self.registry)

    def _counters(self) -> None:
        make = self._counter
        self.prompt_tokens = make("vllm:prompt_tokens", "Prompt tokens of requests handed to the engine.")
        self.generation_tokens = make("vllm:generation_tokens", "Tokens emitted to live requests.")
        self.success = make("vllm:request_success", "Requests at their end, by reason.", "finished_reason")
        self.preempted = make("vllm:num_preemptions", "Requests that gave their pages back and run again.")
        self.cache_queries = make("vllm:prefix_cache_queries", "Prompt tokens looked up among cached ones.")
        self.cache_hits = make("vllm:prefix_cache_hits", "Prompt tokens whose KV was there.")
        self.cached = make(
            "vllm:prompt_tokens_cached", "Prompt tokens whose KV was there, as vLLM names them."
        )
        self.drafts = make("vllm:spec_decode_num_drafts", "Rounds that judged drafts.")
        self.drafted = make("vllm:spec_decode_num_draft_tokens", "Drafts judged.")
        self.accepted = make("vllm:spec_decode_num_accepted_tokens", "Drafts accepted and emitted.")
        self.by_place = make(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Drafts accepted, by place.", "position"
        )
        self.rounds = make("fsm_spec:rounds", "Rounds, by the state they begin in.", "state")
        self.transitions = make(
            "fsm_spec:transitions", "Transitions of requests.", "from_state", "event", "to"
        )
        self.phase_seconds = make("fsm_spec:phase_seconds", "Time in launches, by what ran in them.", "phase")
        self.launches = make(
            "fsm_spec:launches", "Launches: forwards of target and draft models, and steps that run no model."
        )
        self.loop_seconds = make("fsm_spec:engine_seconds", "Time in iterations of the engine.")
        self.rejected = make("fsm_spec:requests_rejected", "Requests refused, by code.", "code")
        self.emitted = make("fsm_spec:emitted_tokens", "Tokens that rounds emitted; prefills left out.")

    def _gauges(self) -> None:
        def make(name: str, about: str, *labels: str) -> Gauge:
            return Gauge(name, about, (*LABELS, *labels), registry=self.registry)

        self.running = make("vllm:num_requests_running", "Requests in the engine.")
        self.waiting = make("vllm:num_requests_waiting", "Requests in the queue.")
        self.usage = make("vllm:kv_cache_usage_perc", "Share of KV pages in use, 0 to 1.")
        self.pages = make("fsm_spec:kv_pages", "KV pages by kind.", "kind")
        self.tier = make("fsm_spec:tier", "Parameter values in force, by name.", "parameter")

    def _histograms(self) -> None:
        def make(name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, about, LABELS, buckets=buckets, registry=self.registry)

        seconds = {
            "ttft": ("vllm:time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN),
            "tpot": ("vllm:request_time_per_output_token_seconds", "Mean time between tokens.", BETWEEN),
            "gap": ("vllm:inter_token_latency_seconds", "Time between deliveries of tokens.", BETWEEN),
            "e2e": ("vllm:e2e_request_latency_seconds", "From arrival to the end.", WHOLE),
            "queue": ("vllm:request_queue_time_seconds", "From arrival to the engine.", WHOLE),
            "prefill": ("vllm:request_prefill_time_seconds", "From the engine to the first token.", WHOLE),
            "decode": ("vllm:request_decode_time_seconds", "From the first token to the end.", WHOLE),
            "inference": ("vllm:request_inference_time_seconds", "From the engine to the end.", WHOLE),
        }
        tokens = {
            "prompt": ("vllm:request_prompt_tokens", "Prompt tokens of a request.", TOKENS),
            "generation": ("vllm:request_generation_tokens", "Tokens emitted for a request.", TOKENS),
            "most": ("vllm:request_params_max_tokens", "Limit of a request.", TOKENS),
            "n": ("vllm:request_params_n", "Choices that a request asks of each prompt.", CHOICES),
            "computed": ("vllm:request_prefill_kv_computed_tokens", "Prompt tokens that were run.", TOKENS),
            "iteration": ("vllm:iteration_tokens_total", "Tokens run or emitted in an iteration.", TOKENS),
            "a_round": ("fsm_spec:emitted_tokens_per_round", "Tokens that a round emitted.", A_ROUND),
        }
        self.histograms = {key: make(*entry) for key, entry in {**seconds, **tokens}.items()}

    def _describe(self) -> None:
        pool, table = self.session.pool, self.served.table
        info = Gauge(
            "vllm:cache_config_info",
            "Size of the KV pool.",
            (*LABELS, "block_size", "num_gpu_blocks", "enable_prefix_caching"),
            registry=self.registry,
        )
        caching = str(self.session.caches_prefixes)
        info.labels(*self.who, str(pool.page_size), str(pool.pages), caching).set(1)
        spec = Gauge(
            "fsm_spec:spec_info",
            "The spec served.",
            (*LABELS, "spec", "digest", "verdict"),
            registry=self.registry,
        )
        spec.labels(*self.who, table.name, table.digest[:16], self.served.verdict).set(1)
        for counter in (
            self.prompt_tokens,
            self.generation_tokens,
            self.preempted,
            self.cache_queries,
            self.cache_hits,
            self.cached,
            self.drafts,
            self.drafted,
            self.accepted,
            self.launches,
            self.loop_seconds,
            self.emitted,
        ):
            counter.labels(*self.who)  # there from the start, so that rates begin at 0
        self._levels(running=0, waiting=0)

    # What happens ------------------------------------------------------------------------------------------------

    def _see(self, key: str, value: float) -> None:
        self.histograms[key].labels(*self.who).observe(value)

    @harmless
    def started(self, job: Job) -> None:
        """Count a job that the engine got."""
        self.prompt_tokens.labels(*self.who).inc(len(job.prompt))
        self._see("queue", job.started - job.arrived)
        self._see("prompt", len(job.prompt))
        self._see("most", job.limit)
        if job.index == 0:
            self._see("n", job.n)

    @harmless
    def progressed(self, job: Job, tokens: int) -> None:
        """Count emitted tokens, and the time to the first."""
        if not (tokens and job.counted):
            return
        now = time.perf_counter()
        self.generation_tokens.labels(*self.who).inc(tokens)
        if job.emitted == tokens:
            self._see("ttft", job.first_token - job.arrived)
            self._see("prefill", job.first_token - job.started)
        else:
            self._see("gap", now - job.last_token)
        job.last_token = now

    @harmless
    def ended(self, job: Job, reason: str) -> None:
        """Count an end, and trace it."""
        if self.tracing is not None:
            self.tracing.ended(job, reason)
        self.success.labels(*self.who, reason).inc()
        if reason not in {"stop", "length"}:
            return
        now = time.perf_counter()
        self._see("e2e", now - job.arrived)
        self._see("generation", job.emitted)
        self._see("computed", len(job.prompt) - job.cached)
        if job.emitted:
            self._see("decode", now - job.first_token)
            self._see("inference", now - job.started)
        if job.emitted > 1:
            self._see("tpot", (now - job.first_token) / (job.emitted - 1))

    @harmless
    def changed(self, worker: Worker) -> None:
        """Set the levels."""
        self._levels(running=len(worker.jobs), waiting=len(worker.queue))

    @harmless
    def iterated(self, seconds: float) -> None:
        """Move the engine's counts into the registry."""
        counts = self.meter.take()
        who, table = self.who, self.served.table
        self.loop_seconds.labels(*who).inc(seconds)
        self.launches.labels(*who).inc(self.session.launches - self._launched)
        self._launched = self.session.launches
        for phase, spent in counts.phases.items():
            self.phase_seconds.labels(*who, phase).inc(spent)
        for state, number in counts.rounds.items():
            self.rounds.labels(*who, state).inc(number)
        for code, number in counts.transitions.items():
            row = table.rows[code // 2]
            target = "end" if code % 2 else row.target
            self.transitions.labels(*who, "|".join(row.sources), row.event, target).inc(number)
        emitted = sum(run * number for run, number in counts.runs.items())
        self.emitted.labels(*who).inc(emitted)
        for run, number in counts.runs.items():
            for _ in range(number):
                self._see("a_round", run)
        # As vLLM counts: the prompt tokens that were run, and all that was emitted.
        tokens = counts.prefilled + counts.firsts + emitted
        if tokens:
            self._see("iteration", tokens)
        self._drafts(counts.judged, counts.drafted, counts.accepted, counts.places)
        self.preempted.labels(*who).inc(counts.preemptions)
        if self.session.caches_prefixes:
            self.cache_queries.labels(*who).inc(counts.looked_up)
            self.cache_hits.labels(*who).inc(counts.found)
            self.cached.labels(*who).inc(counts.found)

    def _drafts(self, judged: int, drafted: int, accepted: int, places: Any) -> None:  # noqa: ANN401 -- a Counter; its name is Prometheus' here
        self.drafts.labels(*self.who).inc(judged)
        self.drafted.labels(*self.who).inc(drafted)
        self.accepted.labels(*self.who).inc(accepted)
        for place, number in places.items():
            self.by_place.labels(*self.who, str(place)).inc(number)

    def _levels(self, *, running: int, waiting: int) -> None:
        self.running.labels(*self.who).set(running)
        self.waiting.labels(*self.who).set(waiting)
        kinds = self.session.pages_by_kind()
        held = kinds["committed"] + kinds["tentative"]
        self.usage.labels(*self.who).set(held / self.session.pool.pages)
        for kind, pages in kinds.items():
            self.pages.labels(*self.who, kind).set(pages)
        for name, value in self.served.table.params.items():
            self.tier.labels(*self.who, name).set(value)
