"""What `fsm-spec serve` does: check the spec, load the model, size the pool, and run until told to stop."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fsm_spec.checker.check import PROVED, REFUTED, check
from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.executor.attention_option import require_attention
from fsm_spec.executor.command import capture_graphs, trace_file
from fsm_spec.executor.draft_option import require_drafts
from fsm_spec.executor.loading import load_weights, progress_bar
from fsm_spec.executor.quantization_option import require_quantization
from fsm_spec.executor.server import logs
from fsm_spec.executor.server.address import bound
from fsm_spec.executor.threads import default_threads
from fsm_spec.executor.trained import trained_settings
from fsm_spec.load import Loaded, load
from fsm_spec.policy import Policy, Pool, longest_pages
from fsm_spec.policy_file import load_policy
from fsm_spec.prefix_cache import refusal
from fsm_spec.table import Table, refuse_abstract
from fsm_spec.tiers import tiers_of
from fsm_spec.trace import TraceWriter

if TYPE_CHECKING:
    from fsm_spec.executor.device.resident import Resident
    from fsm_spec.executor.models.drafter import Drafter
    from fsm_spec.executor.models.load import LoadedModel
    from fsm_spec.executor.server.app import Server
    from fsm_spec.executor.server.engines import OneEngine
    from fsm_spec.executor.server.served import Served
    from fsm_spec.executor.synthetic import Synthetic

GIB = 2**30
# Without --pages: so much of the free memory holds KV, and no more than that many bytes.
_SHARE, _MOST_KV = 4, 4 * GIB


@dataclass(frozen=True)
class Serving:
    """Hold the options of one `serve` that are not the server's own `Settings`."""

    spec: str
    model: str
    host: str
    port: int
    adapter: Path | None
    mask_id: int | None
    dtype: str
    params: dict[str, int]
    policy: str
    pages: int | None
    page_size: int
    max_model_len: int | None
    max_running: int | None
    threads: int | None
    unproved: bool
    log_json: bool
    attention: str = "auto"
    drafters: dict[str, str] = field(default_factory=dict)
    # None: where the spec allows it.
    prefix_cache: bool | None = None
    tensor_parallel: int = 1
    device: str = "cpu"
    resident: bool = False
    require_graphs: bool = False
    replicas: int = 1
    quantization: str = "none"
    trace: Path | None = None
    synthetic_acceptance: str | None = None
    synthetic_unmasking: str | None = None


def execute(run: Serving, settings: dict[str, Any]) -> None:
    """Serve until SIGTERM or SIGINT; what can be refused before the model loads is refused before."""
    if run.replicas > 1:
        from fsm_spec.executor.server.cluster import require_ray

        require_ray()
        if run.trace is not None:
            raise UserError("--trace follows one engine; leave out --replicas")
    with bound(run.host, run.port) as sockets:
        _serve(run, settings, sockets)


def _serve(run: Serving, settings: dict[str, Any], sockets: list[socket.socket]) -> None:
    logs.set_up(as_json=run.log_json)
    loaded = load(run.spec)
    refuse_spec(run, loaded)
    chosen_device(run)
    refuse_model(run)
    with logs.timed("checking", "checked", spec=loaded.spec.spec) as found:
        verdict = found["verdict"] = judge(loaded, run.params, run.spec, unproved=run.unproved)

    from fsm_spec.executor.server.listen import listen

    if run.replicas == 1:
        with trace_file(run.trace) as trace:
            listen(build(run, settings, loaded, verdict, trace=trace), sockets)
        return
    from fsm_spec.executor.server.cluster import replicated

    with replicated(run, settings, loaded, verdict) as server:
        listen(server, sockets)


def refuse_model(run: Serving) -> None:
    """Raise UserError for what the options and the model's configuration tell, before anything takes its time."""
    from fsm_spec.executor.adapter import adapter_settings
    from fsm_spec.executor.generate import require_mask_id
    from fsm_spec.executor.models.config import read_config
    from fsm_spec.executor.models.load import folder_of

    if run.adapter is not None:
        adapter_settings(run.adapter)
    with progress_bar() as progress:
        require_mask_id(run.mask_id, read_config(folder_of(run.model, progress)))


def refuse_spec(run: Serving, loaded: Loaded) -> None:
    """Raise UserError for what spec and options tell about each other, before anything takes its time."""
    table = compile_table(loaded.spec, run.params, line_of=loaded.line_of)
    refuse_abstract(table)
    require_drafts(table, run.drafters)
    if run.prefix_cache:
        from fsm_spec.executor.generate import require_prefixes

        require_prefixes(table)
    synthetic = chosen_synthetic(run, tiers_of(table, chosen_policy(run)).largest)
    if synthetic is not None:
        logs.warn("synthetic acceptance", said=synthetic.warning())


def chosen_synthetic(run: Serving, table: Table) -> Synthetic | None:
    """Give what is drawn in place of the target's judgement, if anything is; raises UserError for what cannot be."""
    from fsm_spec.executor.synthetic import synthetic_of

    return synthetic_of(run.synthetic_acceptance, run.synthetic_unmasking, table)


def chosen_device(run: Serving) -> Resident | None:
    """Give where requests live resident, if they do; raises UserError for a device or attention that cannot run."""
    from fsm_spec.executor.device.resident import resident_of

    resident = resident_of(
        run.device, resident=run.resident, require_graphs=run.require_graphs, attention=run.attention
    )
    require_attention(run.attention, "cpu" if resident is None else resident.place.device.type, run.page_size)
    require_quantization(run.quantization, resident=resident is not None, processes=run.tensor_parallel)
    return resident


def chosen_policy(run: Serving) -> Policy:
    """Give the policy of the options; raises UserError for one under which a server could stand still."""
    policy = load_policy(run.policy)
    policy.require_live()
    if run.max_running is not None:
        policy = policy.model_copy(update={"max_running": run.max_running})
    return policy


def judge(loaded: Loaded, params: dict[str, int], asked: str, *, unproved: bool) -> str:
    """Check a spec, `asked` for by name or path, and give the verdict; raises UserError unless proved or `unproved`."""
    small = {name: min(value, loaded.spec.params[name].check) for name, value in params.items()}
    found = check(compile_table(loaded.spec, small, check=True, line_of=loaded.line_of))
    if found.verdict == PROVED or unproved:
        return found.verdict
    names = ", ".join(each.name for each in (found.refuted or found.properties[:1]))
    what = f"is refuted: {names}" if found.verdict == REFUTED else "was not searched to its end"
    raise UserError(f"{loaded.spec.spec} {what}; see fsm-spec check {asked}, or serve it with --unproved")


def build(
    run: Serving,
    settings: dict[str, Any],
    loaded: Loaded,
    verdict: str = PROVED,
    model: LoadedModel | None = None,
    drafters: dict[str, Drafter] | None = None,
    trace: IO[str] | None = None,
) -> Server:
    """Put a server together; model and draft models are loaded unless they are given."""
    from fsm_spec.executor.server.app import Server

    return Server(*open_engine(run, settings, loaded, verdict, model, drafters, trace))


def open_engine(
    run: Serving,
    settings: dict[str, Any],
    loaded: Loaded,
    verdict: str = PROVED,
    model: LoadedModel | None = None,
    drafters: dict[str, Drafter] | None = None,
    trace: IO[str] | None = None,
) -> tuple[Served, OneEngine]:
    """Open the engine of this process, which writes every step to `trace`, and say what it serves."""
    from fsm_spec.executor.generate import Session, trace_header
    from fsm_spec.executor.models.load_drafters import load_drafters
    from fsm_spec.executor.server.engines import OneEngine
    from fsm_spec.executor.server.fingerprint import fingerprint
    from fsm_spec.executor.server.served import Served
    from fsm_spec.executor.server.settings import Settings

    table = compile_table(loaded.spec, run.params, line_of=loaded.line_of)
    refuse_abstract(table)
    policy = chosen_policy(run)
    resident = chosen_device(run)
    if run.tensor_parallel > 1:
        from fsm_spec.executor.tensor_parallel import refuse_drafters

        refuse_drafters(table)
    if model is None:
        with logs.timed("loading", "loaded", model=run.model):
            model = _load(run, table)
    params = trained_settings(loaded.spec, run.params, policy, model.config.block_size)
    if params != run.params:
        table = compile_table(loaded.spec, params, line_of=loaded.line_of)
    if drafters is None:
        drafters = load_drafters(table, run.drafters, model)
    longest = min(run.max_model_len or model.config.context, model.config.context)
    pool = _pool(run, table, model, longest, resident)
    largest = tiers_of(table, policy).largest
    synthetic = chosen_synthetic(run, largest)
    head = trace_header(largest, policy, pool, loaded.text, synthetic)
    session = Session(
        table,
        model.transformer,
        model.tokenizer,
        pool=pool,
        policy=policy,
        mask_id=run.mask_id,
        drafters=drafters,
        prefix_cache=not refusal(table) if run.prefix_cache is None else run.prefix_cache,
        resident=resident,
        synthetic=synthetic,
        trace=None if trace is None else TraceWriter(trace, head),
    )
    with progress_bar() as progress:
        capture_graphs(session, progress)
    facts = {
        "prefix_cache": session.prefixes is not None,
        "table": table.digest,
        "device": None if resident is None else resident.place.device.type,
        "attention": run.attention,
        "mask_id": session.mask_id,
        "drafters": run.drafters,
        "tensor_parallel": run.tensor_parallel,
        "quantization": run.quantization,
        "synthetic": synthetic and synthetic.describe(),
    }
    settings = {
        **settings,
        "names": settings.get("names") or (model.name,),
        "max_model_len": longest,
        "max_running": run.max_running,
        "synthetic": synthetic and synthetic.describe(),
        "fingerprint": fingerprint(model.transformer, model.folder, model.adapter, facts),
    }
    served = Served(session, loaded, Settings(**settings), verdict, int(time.time()))
    return served, OneEngine(served, session)


def _load(run: Serving, table: Table) -> LoadedModel:
    """Load model and adapter; replicas share the machine's threads."""
    threads = max(1, default_threads() // run.replicas) if run.threads is None else run.threads
    return load_weights(
        run.model,
        run.dtype,
        adapter=run.adapter,
        gated=table.gated,
        tensor_parallel=run.tensor_parallel,
        threads=threads,
        quantization=run.quantization,
    )


def _pool(run: Serving, table: Table, model: LoadedModel, longest: int, resident: Resident | None) -> Pool:
    """Size the KV pool: what is given, else a share of the free memory, but at least one longest request."""
    if run.pages is not None:
        return Pool(run.pages, run.page_size)
    least = longest_pages(table, Pool(0, run.page_size), longest - 1, 1)
    config = model.config
    slot = config.layers * 2 * config.kv_heads * config.head_dim
    spare = None if resident is None else resident.spare_bytes(model.transformer)
    if spare is not None:
        slot *= model.transformer.dtype.itemsize
        return Pool(max(least, spare // (run.page_size * slot)), run.page_size)
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    # Each process holds its heads of every page, and all of them, of all replicas, share the memory.
    bytes_a_page = run.page_size * slot * 4 * run.tensor_parallel * run.replicas
    return Pool(max(least, min(free // _SHARE, _MOST_KV) // bytes_a_page), run.page_size)
