"""The command `fsm-spec plan`: its options; what they do is in `plan_command.py`, imported when it runs."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from fsm_spec.cli_spec import AsJson, Settings, settings_of


class Goal(Enum):
    """Name what is searched for."""

    max_rate = "max-rate"
    min_gpus = "min-gpus"
    tiers = "tiers"
    pareto = "pareto"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("plan")(plan)


def plan(
    specs: Annotated[
        list[str], typer.Argument(metavar="SPEC...", help="Spec files, or names of shipped specs.")
    ],
    *,
    goal: Annotated[
        Goal,
        typer.Option(
            help="max-rate: the highest load within the limits; min-gpus: the fewest accelerators for --rate;"
            " tiers: the best block size for each number of users; pareto: what nothing else beats."
        ),
    ],
    slo: Annotated[
        list[str] | None, typer.Option(help="A limit, such as ttft_p95=500ms; may be repeated.")
    ] = None,
    model: Annotated[str, typer.Option(help="Shipped model, config.json, or a folder with one.")],
    hardware: Annotated[str, typer.Option(help="Accelerators, separated by commas.")],
    tp: Annotated[str, typer.Option("--tp", help="Accelerators a replica, separated by commas.")] = "1",
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="Kind of arrivals of a rate: poisson (else taken), constant, gamma:cv=CV, weibull:cv=CV."
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second to carry, for min-gpus.")] = None,
    users: Annotated[
        str | None,
        typer.Option(help="Requests at once, for tiers and pareto, separated by commas; else 1,4,16,64."),
    ] = None,
    input_: Annotated[str, typer.Option("--input", help="Prompt tokens, as for simulate.")],
    output: Annotated[str, typer.Option(help="Output tokens, as for simulate.")],
    requests: Annotated[
        int | None,
        typer.Option(help="Requests of a run; for a rate by default as many as show it."),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(help="Acceptance of drafts, as for simulate; SPEC=RATES where specs differ."),
    ] = None,
    acceptance: Annotated[
        list[str] | None,
        typer.Option(help="File of acceptance profiles, as for simulate; SPEC=FILE where specs differ."),
    ] = None,
    mix: Annotated[
        str | None, typer.Option(help="Shares of the profiles of --acceptance, as for simulate.")
    ] = None,
    concentration: Annotated[
        float | None, typer.Option(help="How close requests are in acceptance, as for simulate.")
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(help="A draft model's cost, as for simulate; SPEC=... where specs differ."),
    ] = None,
    lookup: Annotated[float | None, typer.Option(help="Chance that a lookup finds drafts.")] = None,
    unmask: Annotated[
        str | None, typer.Option(help="Chance that a pass fills one more mask, as for simulate.")
    ] = None,
    settings: Settings = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=V1,V2", help="Values of a parameter, for tiers and pareto; may be repeated."
        ),
    ] = None,
    policy: Annotated[str, typer.Option(help="Scheduling policy, as for simulate.")] = "holdback",
    max_running: Annotated[int | None, typer.Option(help="Requests that run at once, at most.")] = None,
    host: Annotated[str, typer.Option(help="overlapped or serial, as for simulate.")] = "overlapped",
    profile: Annotated[
        str | None, typer.Option(help="YAML file with numbers of this machine, as for simulate.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Format of the weights.")] = "bf16",
    kv_dtype: Annotated[str, typer.Option(help="Format of the KV cache.")] = "bf16",
    price: Annotated[
        float | None,
        typer.Option("--price-per-gpu-hour", help="Adds the price of a million tokens, in this currency."),
    ] = None,
    policy_out: Annotated[
        Path | None, typer.Option(help="Write the policy file of the best tiers, for simulate and serve.")
    ] = None,
    seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds of each load that is judged; else 3.")
    ] = None,
    precision: Annotated[
        float | None, typer.Option(help="Share by which a rate may be too low; else 0.03.")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one a core.")] = 0,
    ray: Annotated[str | None, typer.Option(help="Run on a Ray cluster: auto, or its address.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="File of results that is read first and appended to.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write all points to this CSV file.")] = None,
    parquet: Annotated[Path | None, typer.Option(help="Write all points to this Parquet file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Search scenarios: the highest load, the fewest accelerators, the best tiers, or what nothing else beats."""
    from fsm_spec.simulator.faults import Faults
    from fsm_spec.simulator.plan_command import Asked, execute

    faults = Faults()
    optional = {
        "arrivals": arrivals,
        "rate": rate,
        "users": users,
        "vary": vary,
        "price": price,
        "policy_out": policy_out,
        "seeds": seeds,
        "precision": precision,
        "csv": csv,
        "parquet": parquet,
    }
    execute(
        Asked(
            goal=goal.value,
            specs=tuple(specs),
            slos=tuple(slo or ()),
            hardware=tuple(word.strip() for word in hardware.split(",")),
            tp=tp,
            arrivals=arrivals or "poisson",
            rate=rate,
            users=users or "1,4,16,64",
            accept=tuple(accept or ()),
            acceptance=tuple(acceptance or ()),
            drafter=tuple(drafter or ()),
            vary=tuple(vary or ()),
            price=price,
            policy_out=policy_out,
            seeds=seeds or 3,
            precision=0.03 if precision is None else precision,
            given=frozenset(name for name, value in optional.items() if value is not None),
            base={
                "model": model,
                "input": input_,
                "output": output,
                "requests": requests,
                "mix": mix,
                "concentration": concentration,
                "lookup": lookup,
                "unmask": unmask,
                "max_running": max_running,
                "host": host,
                "profile": profile,
                "policy": policy,
                "dtype": dtype,
                "kv_dtype": kv_dtype,
                "params": faults.take(lambda: settings_of(settings)) or {},
                "seed": seed,
            },
        ),
        workers=workers,
        ray=ray,
        resume=resume,
        csv=csv,
        parquet=parquet,
        as_json=as_json,
        faults=faults,
    )
