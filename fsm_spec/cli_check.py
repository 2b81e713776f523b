"""Options of the command `check`; what it does is in `checker/verdict.py`, imported when it runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from fsm_spec.cli_spec import AsJson, Settings, settings_of

COMMANDS: Final = ("check",)
_REPORTS: Final = "Reports"
_BOUNDS: Final = "Bounds"


class Interleave(StrEnum):
    """Name how requests move in a search."""

    rounds = "rounds"
    action = "action"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(check)


def check(  # noqa: PLR0917 - options of the command line
    specs: Annotated[
        list[str], typer.Argument(metavar="SPEC", help="Spec files, or names of shipped specs.")
    ],
    settings: Settings = None,
    requests: Annotated[
        int | None,
        typer.Option(help="So many requests share the pool; by default 1, 2 and 3.", rich_help_panel=_BOUNDS),
    ] = None,
    pages: Annotated[
        int | None,
        typer.Option(
            help="Pages of the pool; by default what the longest cases of all need, less one page.",
            rich_help_panel=_BOUNDS,
        ),
    ] = None,
    page_size: Annotated[
        int | None, typer.Option(help="Slots a page; 2 by default.", rich_help_panel=_BOUNDS)
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="reserve, holdback, preempt, greedy, or a policy file; reserve and holdback by default.",
            rich_help_panel=_BOUNDS,
        ),
    ] = None,
    symmetry: Annotated[
        bool,
        typer.Option(
            "--symmetry/--no-symmetry",
            help="Take states that differ only in who is who for one.",
            rich_help_panel=_BOUNDS,
        ),
    ] = True,
    abort: Annotated[
        bool | None,
        typer.Option(
            "--abort/--no-abort",
            help="A client may go away at any point; on by default for specs with forwards.",
            rich_help_panel=_BOUNDS,
        ),
    ] = None,
    chunks: Annotated[
        bool,
        typer.Option(
            "--chunks/--no-chunks",
            help="Cut prompts into chunks that ride beside running requests.",
            rich_help_panel=_BOUNDS,
        ),
    ] = False,
    lag: Annotated[
        int | None,
        typer.Option(
            help="Rounds by which the scheduler sees requests late: 0, or 1 for overlapped scheduling.",
            rich_help_panel=_BOUNDS,
        ),
    ] = None,
    prefix: Annotated[
        bool,
        typer.Option(
            "--prefix/--no-prefix",
            help="Prompts start alike, and a prefix cache leaves their full pages to several holders.",
            rich_help_panel=_BOUNDS,
        ),
    ] = False,
    interleave: Annotated[
        Interleave | None,
        typer.Option(
            help="Requests move by the scheduler's rounds (default where there are forwards), or by single actions.",
            rich_help_panel=_BOUNDS,
        ),
    ] = None,
    max_states: Annotated[
        int | None,
        typer.Option(
            help="Give a search up (undetermined) beyond so many states; 10 million by default.",
            rich_help_panel=_BOUNDS,
        ),
    ] = None,
    max_memory: Annotated[
        int | None,
        typer.Option(
            metavar="MB",
            help="Give a search up beyond so many megabytes; by default half of the machine's.",
            rich_help_panel=_BOUNDS,
        ),
    ] = None,
    stop_first: Annotated[
        bool,
        typer.Option("--stop-first", help="End at the first property that breaks.", rich_help_panel=_BOUNDS),
    ] = False,
    property_: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="NAME",
            help="Decide this property only, by its name or a part of it; may be repeated.",
            rich_help_panel=_BOUNDS,
        ),
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[ARG=]RATES",
            help="Print expected rounds, tokens and slots, given the chance that each draft is accepted, "
            "e.g. 0.8,0.7,0.6; may be repeated.",
            rich_help_panel=_REPORTS,
        ),
    ] = None,
    expect_limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens of the request of --expect; 128 by default.", rich_help_panel=_REPORTS
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List all properties and searches.")
    ] = False,
    as_json: AsJson = False,
    junit: Annotated[
        Path | None, typer.Option(help="Write JUnit XML to this file.", rich_help_panel=_REPORTS)
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write the first counterexample to this file, for fsm-spec replay.", rich_help_panel=_REPORTS
        ),
    ] = None,
    sequence: Annotated[
        Path | None,
        typer.Option(
            help="Write the first counterexample as a Mermaid sequence diagram.", rich_help_panel=_REPORTS
        ),
    ] = None,
    pytest: Annotated[
        Path | None,
        typer.Option(help="Write the first counterexample as a pytest case.", rich_help_panel=_REPORTS),
    ] = None,
) -> None:
    """Check specs: all findings of a file, then every state that a few requests in a pool of pages can reach.

    Exit code 0: proved within the bounds printed; 1: refuted; 2: a faulty file or bad usage; 3: undetermined.
    """
    from fsm_spec.checker.check import Bounds
    from fsm_spec.checker.verdict import Reports, execute

    given = {
        "page_size": page_size,
        "policies": tuple(dict.fromkeys(policy)) if policy else None,
        "max_states": max_states,
    }
    bounds = Bounds(
        requests=requests,
        pages=pages,
        symmetry=symmetry,
        abort=abort,
        chunks=chunks,
        lag=lag,
        prefix=prefix,
        interleave=interleave.value if interleave else None,
        max_memory=max_memory,
        stop_first=stop_first,
        properties=tuple(property_ or ()),
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )
    reports = Reports(junit, trace, sequence, pytest)
    code = execute(
        specs,
        settings_of(settings),
        bounds,
        reports,
        expect or (),
        expect_limit,
        verbose=verbose,
        as_json=as_json,
    )
    raise typer.Exit(code)
