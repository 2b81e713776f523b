"""Options of the command `check`; what it does is in `verdict.py`, imported when it runs."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from fsm_spec.cli_spec import AsJson, Settings, settings_of

COMMANDS: Final = ("check",)
# About ten seconds of search on one core.
MOST_STATES: Final = 100_000


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(check)


def check(
    specs: Annotated[
        list[str], typer.Argument(metavar="SPEC...", help="Spec files, or names of shipped specs.")
    ],
    settings: Settings = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="reserve, holdback, preempt, greedy, or a policy file; reserve and holdback by default."
        ),
    ] = None,
    max_states: Annotated[
        int,
        typer.Option("--max-states", min=1, help="Give a search up (undetermined) beyond so many states."),
    ] = MOST_STATES,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List all properties and searches.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check specs: all findings of a file, then every state of one and two requests within small bounds.

    Exit code 0: nothing refuted within the bounds printed; 1: refuted; 2: a faulty file or bad usage; 3: undetermined.
    """
    from fsm_spec.verdict import execute

    code = execute(specs, settings_of(settings), policy, max_states, verbose=verbose, as_json=as_json)
    raise typer.Exit(code)
