"""The commands `fsm-spec bench ...`: their options; the work is in `bench.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fsm_spec.cli_spec import AsJson

FAILED = 1  # exit code where requests failed: a script must not take the rest for the whole


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    bench = typer.Typer(no_args_is_help=True, help="Measure what runs.")
    bench.callback()(lambda: None)  # so that one command is still named
    bench.command("serve")(serve)
    app.add_typer(bench, name="bench")


def serve(
    url: Annotated[
        str, typer.Option(help="Address of an OpenAI-compatible server; http:// where it names no scheme.")
    ] = "http://127.0.0.1:8000",
    *,
    arrivals: Annotated[
        str, typer.Option(help="poisson:RATE, constant:RATE, closed:CONCURRENCY or trace:FILE.")
    ] = "closed:8",
    input_: Annotated[
        str | None,
        typer.Option("--input", help="Prompt tokens: a number, uniform:LOW:HIGH or lognormal:MEAN:CV."),
    ] = None,
    output: Annotated[str | None, typer.Option(help="Output tokens, as --input.")] = None,
    requests: Annotated[
        int | None, typer.Option(help="Requests to send; else a closed loop takes 4 a user, a trace all.")
    ] = None,
    dataset: Annotated[
        Path | None,
        typer.Option(
            help="JSON Lines with prompt or messages, and perhaps max_tokens; else random words are sent."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model to name in requests.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key to send.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Ask for chats instead of completions.")] = False,
    temperature: Annotated[float, typer.Option(help="0 takes the most probable token.")] = 0.0,
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos/--no-ignore-eos", help="Go on to the limit, so that lengths are as asked for."
        ),
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of arrivals, lengths and prompts.")] = 0,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            help="A limit for goodput, such as ttft_p95=500ms, or ttft:200,tpot:50 in ms; may be repeated."
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report.")] = None,
    beside: Annotated[
        list[Path] | None,
        typer.Option(help="Results of simulate --json, or of this command, to show beside; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a server under load: throughput, latencies and goodput, in the form of a simulation's result.

    Exit code 1: some requests failed, and all numbers are of the others.
    """
    from fsm_spec.simulator.bench import Bench, execute
    from fsm_spec.simulator.measure import Target, server_address

    target = Target(server_address(url), model, api_key, chat, temperature, ignore_eos)
    bench = Bench(target, arrivals, input_, output, requests, dataset, seed, tuple(slo or ()))
    if execute(bench, page=report, beside=list(beside or ()), as_json=as_json):
        raise typer.Exit(FAILED)
