"""The command `fsm-spec serve`: its options; the work is in `command.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fsm_spec.cli_spec import Settings, settings_of
from fsm_spec.executor.attention_option import Attention
from fsm_spec.executor.draft_option import draft_places
from fsm_spec.executor.engine_options import (
    DEFAULT_MODEL,
    MACHINE,
    MODEL,
    SCHEDULER,
    AdapterPlace,
    AttentionBy,
    Device,
    DraftPlaces,
    Dtype,
    MaskId,
    ModelPlace,
    OnDevice,
    PageSize,
    RequireGraphs,
    Resident,
    Rounding,
    SyntheticAcceptance,
    SyntheticUnmasking,
    TensorParallel,
    Threads,
)
from fsm_spec.executor.quantization_option import Quantization

_LIMITS = "Limits"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("serve")(serve)


def serve(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="A spec file, or the name of a shipped spec.")],
    *,
    model: ModelPlace = DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 for any free one.", min=0, max=65535)
    ] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="FSM_SPEC_API_KEY", help="Key that clients must send; may be repeated. None: any passes."
        ),
    ] = None,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Name of the model in requests; may be repeated.")
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(help="Most tokens of prompt and answer; the model's context by default.", min=1),
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Web origin that may call the server; may be repeated.")
    ] = None,
    adapter: AdapterPlace = None,
    draft: DraftPlaces = None,
    mask_id: MaskId = None,
    dtype: Annotated[
        Dtype,
        typer.Option(
            help="Format of the weights; float32 keeps greedy and seeded answers the same in any batch.",
            rich_help_panel=MODEL,
        ),
    ] = Dtype.float32,
    quantization: Rounding = Quantization.none,
    device: OnDevice = Device.auto,
    resident: Resident = False,
    require_graphs: RequireGraphs = False,
    settings: Settings = None,
    policy: Annotated[
        str, typer.Option(help="holdback, reserve, preempt, or a policy file.", rich_help_panel=SCHEDULER)
    ] = "holdback",
    max_running: Annotated[
        int | None,
        typer.Option(
            help="Most requests in the engine; the policy's by default.", min=1, rich_help_panel=SCHEDULER
        ),
    ] = None,
    pages: Annotated[
        int | None,
        typer.Option(
            help="KV pages; by default a quarter of the free memory, 4 GiB at most.",
            min=1,
            rich_help_panel=SCHEDULER,
        ),
    ] = None,
    page_size: PageSize = 16,
    attention: AttentionBy = Attention.auto,
    prefix_cache: Annotated[
        bool | None,
        typer.Option(
            "--prefix-cache/--no-prefix-cache",
            help="Keep full pages of KV for later texts that begin alike; where the spec allows it by default.",
            rich_help_panel=SCHEDULER,
        ),
    ] = None,
    threads: Threads = None,
    tensor_parallel: TensorParallel = 1,
    replicas: Annotated[
        int,
        typer.Option(
            help="Copies of the model, each in a process of its own; more than 1 needs Ray.",
            min=1,
            max=64,
            rich_help_panel=MACHINE,
        ),
    ] = 1,
    synthetic_acceptance: SyntheticAcceptance = None,
    synthetic_unmasking: SyntheticUnmasking = None,
    unproved: Annotated[
        bool,
        typer.Option(
            "--unproved",
            help="Serve a spec that the checker refutes or cannot decide.",
            rich_help_panel=MACHINE,
        ),
    ] = False,
    max_queue: Annotated[
        int, typer.Option(help="Most choices that wait; more get 429.", min=1, rich_help_panel=_LIMITS)
    ] = 512,
    max_queue_tokens: Annotated[
        int, typer.Option(help="Most tokens, prompts and limits, that wait.", min=1, rich_help_panel=_LIMITS)
    ] = 2**22,
    max_body: Annotated[
        int,
        typer.Option(help="Most bytes of a request; larger ones get 413.", min=1024, rich_help_panel=_LIMITS),
    ] = 4 * 2**20,
    timeout: Annotated[
        float | None,
        typer.Option(help="Seconds a request may take in all.", min=0.001, rich_help_panel=_LIMITS),
    ] = None,
    stall: Annotated[
        float,
        typer.Option(
            help="Seconds for headers, and for a body, to come; a client that reads nothing for so long is let go.",
            min=0.1,
            rich_help_panel=_LIMITS,
        ),
    ] = 120.0,
    drain: Annotated[
        float,
        typer.Option(help="Seconds that running requests get after SIGTERM.", min=1, rich_help_panel=_LIMITS),
    ] = 30.0,
    otlp_endpoint: Annotated[
        str | None, typer.Option(help="Send OpenTelemetry spans here, e.g. http://localhost:4318/v1/traces.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write every step to this file, for `fsm-spec replay` and acceptance.")
    ] = None,
    log_format: Annotated[str, typer.Option(help="text or json.")] = "text",
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Write prompts into the log.")] = False,
) -> None:
    """Serve a model behind OpenAI's API, run by a spec's state machine."""
    from fsm_spec.errors import UserError
    from fsm_spec.executor.server.command import Serving, execute

    if log_format not in ("text", "json"):
        raise UserError(f"--log-format {log_format!r} is unknown; give text or json")
    execute(
        Serving(
            spec=spec,
            model=model,
            host=host,
            port=port,
            adapter=adapter,
            mask_id=mask_id,
            dtype=dtype.value,
            quantization=quantization.value,
            trace=trace,
            device=device.value,
            resident=resident,
            require_graphs=require_graphs,
            params=settings_of(settings),
            policy=policy,
            pages=pages,
            page_size=page_size,
            attention=attention.value,
            max_model_len=max_model_len,
            max_running=max_running,
            threads=threads,
            unproved=unproved,
            log_json=log_format == "json",
            drafters=draft_places(draft or []),
            prefix_cache=prefix_cache,
            tensor_parallel=tensor_parallel,
            replicas=replicas,
            synthetic_acceptance=synthetic_acceptance,
            synthetic_unmasking=synthetic_unmasking,
        ),
        {
            "names": tuple(served_model_name or ()),
            "keys": tuple(api_key or ()),
            "max_body": max_body,
            "max_queue": max_queue,
            "max_queue_tokens": max_queue_tokens,
            "timeout": timeout,
            "stall": stall,
            "drain": drain,
            "cors": tuple(cors_origin or ()),
            "log_prompts": log_prompts,
            "otlp_endpoint": otlp_endpoint,
        },
    )
