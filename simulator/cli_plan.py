"""The command `fsm-spec plan`: its options; what they do is in `plan_command.py`, imported when it runs."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

from fsm_spec.cli_spec import AsJson, Settings, settings_of

# Headings of `--help`.
_SEARCH: Final = "Search"
_MACHINE: Final = "Machine"
_WORKLOAD: Final = "Workload"
_OUTCOMES: Final = "Outcomes of rounds"
_SCHEDULER: Final = "Scheduler"
_RUNS: Final = "Runs and results"


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
        list[str], typer.Argument(metavar="SPEC", help="Spec files, or names of shipped specs.")
    ],
    *,
    goal: Annotated[
        Goal,
        typer.Option(
            help="max-rate: the highest load within the limits; min-gpus: the fewest accelerators for --rate;"
            " tiers: the best block size for each number of users; pareto: what nothing else beats.",
            rich_help_panel=_SEARCH,
        ),
    ],
    slo: Annotated[
        list[str] | None,
        typer.Option(help="A limit, such as ttft_p95=500ms; may be repeated.", rich_help_panel=_SEARCH),
    ] = None,
    model: Annotated[
        str, typer.Option(help="Shipped model, config.json, or a folder with one.", rich_help_panel=_MACHINE)
    ],
    hardware: Annotated[
        str, typer.Option(help="Accelerators, separated by commas.", rich_help_panel=_MACHINE)
    ],
    tp: Annotated[
        str,
        typer.Option("--tp", help="Accelerators a replica, separated by commas.", rich_help_panel=_MACHINE),
    ] = "1",
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="Kind of arrivals of a rate: poisson (else taken), constant, gamma:cv=CV, weibull:cv=CV.",
            rich_help_panel=_WORKLOAD,
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests a second to carry, for min-gpus.", rich_help_panel=_SEARCH)
    ] = None,
    users: Annotated[
        str | None,
        typer.Option(
            help="Requests at once, for tiers and pareto, separated by commas; else 1,4,16,64.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    input_: Annotated[
        str, typer.Option("--input", help="Prompt tokens, as for simulate.", rich_help_panel=_WORKLOAD)
    ],
    output: Annotated[str, typer.Option(help="Output tokens, as for simulate.", rich_help_panel=_WORKLOAD)],
    requests: Annotated[
        int | None,
        typer.Option(
            help="Requests of a run; for a rate by default as many as show it.", rich_help_panel=_WORKLOAD
        ),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            help="Acceptance of drafts, as for simulate; SPEC=RATES where specs differ.",
            rich_help_panel=_OUTCOMES,
        ),
    ] = None,
    acceptance: Annotated[
        list[str] | None,
        typer.Option(
            help="File of acceptance profiles, as for simulate; SPEC=FILE where specs differ.",
            rich_help_panel=_OUTCOMES,
        ),
    ] = None,
    mix: Annotated[
        str | None,
        typer.Option(
            help="Shares of the profiles of --acceptance, as for simulate.", rich_help_panel=_OUTCOMES
        ),
    ] = None,
    concentration: Annotated[
        float | None,
        typer.Option(
            help="How close requests are in acceptance, as for simulate.", rich_help_panel=_OUTCOMES
        ),
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="A draft model's cost, as for simulate; SPEC=... where specs differ.",
            rich_help_panel=_OUTCOMES,
        ),
    ] = None,
    lookup: Annotated[
        float | None, typer.Option(help="Chance that a lookup finds drafts.", rich_help_panel=_OUTCOMES)
    ] = None,
    unmask: Annotated[
        str | None,
        typer.Option(
            help="Chance that a pass fills one more mask, as for simulate.", rich_help_panel=_OUTCOMES
        ),
    ] = None,
    settings: Settings = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=V1,V2",
            help="Values of a parameter, for tiers and pareto; may be repeated.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="Scheduling policy, as for simulate.", rich_help_panel=_SCHEDULER)
    ] = "holdback",
    max_running: Annotated[
        int | None, typer.Option(help="Requests that run at once, at most.", rich_help_panel=_SCHEDULER)
    ] = None,
    host: Annotated[
        str, typer.Option(help="overlapped or serial, as for simulate.", rich_help_panel=_MACHINE)
    ] = "overlapped",
    profile: Annotated[
        str | None,
        typer.Option(
            help="YAML file with numbers of this machine, as for simulate.", rich_help_panel=_MACHINE
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Format of the weights.", rich_help_panel=_MACHINE)] = "bf16",
    kv_dtype: Annotated[str, typer.Option(help="Format of the KV cache.", rich_help_panel=_MACHINE)] = "bf16",
    price: Annotated[
        float | None,
        typer.Option(
            "--price-per-gpu-hour",
            help="Adds the price of a million tokens, in this currency.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    policy_out: Annotated[
        Path | None,
        typer.Option(
            help="Write the policy file of the best tiers, for simulate and serve.", rich_help_panel=_RUNS
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="First seed.", rich_help_panel=_WORKLOAD)] = 0,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Seeds of each load that is judged; else 3.", rich_help_panel=_SEARCH),
    ] = None,
    precision: Annotated[
        float | None,
        typer.Option(help="Share by which a rate may be too low; else 0.03.", rich_help_panel=_SEARCH),
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one a core.", rich_help_panel=_RUNS)] = 0,
    ray: Annotated[
        str | None, typer.Option(help="Run on a Ray cluster: auto, or its address.", rich_help_panel=_RUNS)
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="File of results that is read first and appended to.", rich_help_panel=_RUNS),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Write all points to this CSV file.", rich_help_panel=_RUNS)
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(help="Write all points to this Parquet file.", rich_help_panel=_RUNS)
    ] = None,
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
