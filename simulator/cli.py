"""The command `fsm-spec simulate`: its options; what they do is in `command.py`, imported when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from fsm_spec.cli_spec import AsJson, Settings, settings_of
from fsm_spec.simulator import cli_acceptance, cli_plan

# Options that every run needs, each with a value that works; checked together, so that one sentence names them all.
EXAMPLES: Final = {"model": "llama-3.1-8b", "hardware": "h100", "arrivals": "closed:8"}

# Headings of `--help`.
_MACHINE: Final = "Machine"
_WORKLOAD: Final = "Workload"
_OUTCOMES: Final = "Outcomes of rounds"
_SCHEDULER: Final = "Scheduler and KV pool"
_REPLICAS: Final = "Several replicas"
_RESULTS: Final = "Results"


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("simulate")(simulate)
    cli_plan.register(app)
    cli_acceptance.register(app)


def simulate(
    specs: Annotated[
        list[str], typer.Argument(metavar="SPEC", help="Spec files, or names of shipped specs.")
    ],
    *,
    model: Annotated[
        str | None,
        typer.Option(
            help="Shipped model, config.json, or a folder with one; required.", rich_help_panel=_MACHINE
        ),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(help="Accelerator, such as h100 or h200; required.", rich_help_panel=_MACHINE),
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="poisson:RATE, gamma:RATE:cv=CV, weibull:RATE:cv=CV, constant:RATE, closed:CONCURRENCY[:ramp=SECONDS]"
            " (or a list: closed:1,4,16), ramp:FROM:TO:SECONDS, burst:RATE:PEAK:EVERY:SECONDS or"
            " trace:FILE[:speed=X][:sample=X]; required.",
            rich_help_panel=_WORKLOAD,
        ),
    ] = None,
    input_: Annotated[
        str | None,
        typer.Option(
            "--input",
            help="Prompt tokens: a number, uniform:LOW:HIGH, lognormal:MEAN:CV, gamma:MEAN:CV, choice:128,512 or"
            " file:FILE.",
            rich_help_panel=_WORKLOAD,
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="Output tokens, as --input.", rich_help_panel=_WORKLOAD)
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            help="Requests to simulate; else a closed loop takes 4 a user, a trace all.",
            rich_help_panel=_WORKLOAD,
        ),
    ] = None,
    shared_prefix: Annotated[
        str | None,
        typer.Option(
            help="GROUPS:TOKENS: every prompt begins with one of so many texts of so many tokens.",
            rich_help_panel=_WORKLOAD,
        ),
    ] = None,
    turns: Annotated[
        str | None,
        typer.Option(
            help="TURNS:THINK: arrivals are sessions of so many turns; each repeats the text before it and arrives"
            " about THINK seconds after the turn before it.",
            rich_help_panel=_WORKLOAD,
        ),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            help="Chance that each draft is accepted given all before: 0.8,0.7,0.6 or geometric:0.7; "
            "or unconditional:0.8,0.56,0.3; SPEC=RATES where specs differ.",
            rich_help_panel=_OUTCOMES,
        ),
    ] = None,
    acceptance: Annotated[
        list[str] | None,
        typer.Option(
            help="File of acceptance profiles (`fsm-spec acceptance`); SPEC=FILE where specs differ.",
            rich_help_panel=_OUTCOMES,
        ),
    ] = None,
    mix: Annotated[
        str | None,
        typer.Option(
            help="NAME=WEIGHT,...: profiles of --acceptance that requests have, and their shares.",
            rich_help_panel=_OUTCOMES,
        ),
    ] = None,
    concentration: Annotated[
        float | None,
        typer.Option(
            help="Requests differ: the rates of each are beta-distributed around the mean with this concentration.",
            rich_help_panel=_OUTCOMES,
        ),
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="LAYERS:STEPS[:ROWS[:VOCABULARY]]: a draft model of so many layers of the target's shape runs so many"
            " times before each round; LAYERS alone where the spec has draft models, whose forwards it says;"
            " SPEC=... where specs differ.",
            rich_help_panel=_OUTCOMES,
        ),
    ] = None,
    lookup: Annotated[
        float | None, typer.Option(help="Chance that a lookup finds drafts.", rich_help_panel=_OUTCOMES)
    ] = None,
    unmask: Annotated[
        str | None,
        typer.Option(
            help="Chance that a pass fills one more mask than the surest: geometric:0.7, or one for each.",
            rich_help_panel=_OUTCOMES,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of arrivals, lengths and acceptance.", rich_help_panel=_WORKLOAD)
    ] = 0,
    settings: Settings = None,
    policy: Annotated[
        str,
        typer.Option(
            help="reserve, holdback, preempt, greedy, or a policy file.", rich_help_panel=_SCHEDULER
        ),
    ] = "holdback",
    max_running: Annotated[
        int | None, typer.Option(help="Requests that run at once, at most.", rich_help_panel=_SCHEDULER)
    ] = None,
    pages: Annotated[
        int | None,
        typer.Option(
            "--pages",
            "--blocks",
            help="KV pages (blocks), where the number is known; else from memory.",
            rich_help_panel=_SCHEDULER,
        ),
    ] = None,
    page_size: Annotated[int, typer.Option(help="Token slots a page.", rich_help_panel=_SCHEDULER)] = 64,
    dtype: Annotated[
        str,
        typer.Option(
            help="Format of the weights: bf16, fp8 (static scales), fp8-block, fp8-dynamic or int4.",
            rich_help_panel=_MACHINE,
        ),
    ] = "bf16",
    kv_dtype: Annotated[
        str, typer.Option(help="Format of the KV cache: bf16 or fp8.", rich_help_panel=_MACHINE)
    ] = "bf16",
    tp: Annotated[
        int, typer.Option("--tp", min=1, help="Accelerators that share the model.", rich_help_panel=_MACHINE)
    ] = 1,
    host: Annotated[
        str,
        typer.Option(
            help="overlapped: the host's share hides behind the device; serial: it adds to it.",
            rich_help_panel=_MACHINE,
        ),
    ] = "overlapped",
    kernels: Annotated[
        str | None,
        typer.Option(
            help="Common prefix of measured kernel tables (LLMServingSim's form), in place of curves.",
            rich_help_panel=_MACHINE,
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help="YAML file with numbers of this machine that replace those of the catalogue.",
            rich_help_panel=_MACHINE,
        ),
    ] = None,
    adapter_rank: Annotated[
        int | None,
        typer.Option(help="Rank of the draft adapter; 128 if the spec has one.", rich_help_panel=_MACHINE),
    ] = None,
    fused_adapter: Annotated[
        bool,
        typer.Option(
            "--fused-adapter",
            help="Forwards of the adapter have a second copy of the weights, with it fused in.",
            rich_help_panel=_MACHINE,
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write every step to this file, for `fsm-spec replay`.", rich_help_panel=_RESULTS),
    ] = None,
    report_: Annotated[
        Path | None,
        typer.Option("--report", help="Write a self-contained HTML report.", rich_help_panel=_RESULTS),
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(
            help="Write a row a request to this folder, a Parquet file a run.", rich_help_panel=_RESULTS
        ),
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(help="Write the requests of one run for the Perfetto viewer.", rich_help_panel=_RESULTS),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            help="A limit for goodput, such as ttft_p95=500ms; may be repeated.", rich_help_panel=_RESULTS
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            "--price-per-gpu-hour",
            help="Adds the price of a million tokens, in this currency.",
            rich_help_panel=_RESULTS,
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            min=1, help="Run so many seeds, and give 95 % intervals over them.", rich_help_panel=_RESULTS
        ),
    ] = 1,
    warm_up: Annotated[
        float,
        typer.Option(help="Leave out requests that arrived in the first seconds.", rich_help_panel=_RESULTS),
    ] = 0.0,
    replicas: Annotated[
        int | None, typer.Option(help="Replicas of the model, with one router.", rich_help_panel=_REPLICAS)
    ] = None,
    routing: Annotated[
        str | None,
        typer.Option(help="round-robin, least-loaded (else taken) or prefix.", rich_help_panel=_REPLICAS),
    ] = None,
    prefix_cache: Annotated[
        bool,
        typer.Option(
            "--prefix-cache", help="Replicas remember the full pages of texts.", rich_help_panel=_REPLICAS
        ),
    ] = False,
    autoscale: Annotated[
        str | None,
        typer.Option(
            help="MIN:MAX:TARGET:STARTUP: about TARGET requests a replica; a new one needs STARTUP s.",
            rich_help_panel=_REPLICAS,
        ),
    ] = None,
    fail: Annotated[
        list[str] | None,
        typer.Option(
            help="REPLICA:AT:DOWN: a replica fails at AT s and is back DOWN s later; may be repeated.",
            rich_help_panel=_REPLICAS,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="PREFILL:DECODE[:GB_S]: replicas of each kind, and the speed at which KV moves.",
            rich_help_panel=_REPLICAS,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate decode algorithms on a model, a machine and a workload: throughput, latency, KV and preemptions."""
    from fsm_spec.simulator.command import Wanted, execute
    from fsm_spec.simulator.faults import Faults
    from fsm_spec.simulator.slo import parse_slos
    from fsm_spec.simulator.sweep import by_spec

    faults = Faults()
    if model is None or hardware is None or arrivals is None:
        faults.note(_missing({"model": model, "hardware": hardware, "arrivals": arrivals}))
    base = {
        "params": faults.take(lambda: settings_of(settings)) or {},
        "model": model,
        "hardware": hardware,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "tensor_parallel": tp,
        "host": host,
        "kernels": kernels,
        "profile": profile,
        "adapter_rank": adapter_rank,
        "fused_adapter": fused_adapter,
        "input": input_,
        "output": output,
        "requests": requests,
        "shared_prefix": shared_prefix,
        "turns": turns,
        "mix": mix,
        "concentration": concentration,
        "lookup": lookup,
        "unmask": unmask,
        "policy": policy,
        "max_running": max_running,
        "pages": pages,
        "page_size": page_size,
        "seed": seed,
        "replicas": replicas,
        "routing": routing,
        "prefix_cache": prefix_cache,
        "autoscale": autoscale,
        "fail": tuple(fail or ()),
        "split": split,
    }
    slos = faults.take(lambda: parse_slos(slo or ())) or ()
    wanted = faults.take(lambda: Wanted(trace, report_, perfetto, parquet, slos, price, seeds, warm_up))
    named = faults.take(
        lambda: by_spec(
            {"accept": accept or (), "acceptance": acceptance or (), "drafter": drafter or ()}, specs
        )
    )
    if arrivals is None or model is None or hardware is None or named is None:
        faults.raise_any()
    assert arrivals is not None and named is not None  # noqa: PT018 - raised else
    execute(specs, arrivals, base, named=named, wanted=wanted or Wanted(), as_json=as_json, faults=faults)


def _missing(given: Mapping[str, str | None]) -> str:
    """Say which of the options that every run needs are missing, and give an example of them."""
    names = [name for name, value in given.items() if value is None]
    *most, last = (f"--{name}" for name in names)
    listed = f"{', '.join(most)} and {last}" if most else last
    example = " ".join(f"--{name} {EXAMPLES[name]}" for name in names)
    return f"simulate needs {listed}; give, for example, {example}"
