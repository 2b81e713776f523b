"""Options of the commands that read one spec or trace; what they do is in `command.py`, imported when one runs."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

from fsm_spec.errors import UserError

# Processes of an exported model; its states are past counting long before.
MOST_REQUESTS: Final = 16
COMMANDS: Final = ("show", "export", "replay", "schema", "specs")


class Form(Enum):
    """Name the ways to show a spec."""

    text = "text"
    mermaid = "mermaid"
    dot = "dot"
    svg = "svg"


class Export(Enum):
    """Name the ways to export a table."""

    json = "json"
    promela = "promela"
    dot = "dot"
    mermaid = "mermaid"


SpecName = Annotated[str, typer.Argument(metavar="SPEC", help="A spec file, or the name of a shipped spec.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Give a parameter another value; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value on standard output.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file, not to standard output.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(show)
    app.command()(export)
    app.command()(replay)
    app.command()(schema)
    app.command()(specs)


def settings_of(texts: list[str] | None) -> dict[str, int]:
    """Read `NAME=VALUE` options; raises UserError for one that is no name and integer."""
    values: dict[str, int] = {}
    for text in texts or []:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise UserError(f"--set {text} is no NAME=VALUE; write, for example, --set b=8")
        digits = value.removeprefix("-")
        # Python refuses to read some thousands of digits; no parameter has more than seven.
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
            raise UserError(f"--set {text}: {value!r} is no integer; write, for example, --set {name}=8")
        if values.setdefault(name, int(value)) != int(value):
            raise UserError(f"--set {text}: {name} was set to {values[name]} before; give one value")
    return values


def show(
    spec: SpecName,
    form: Annotated[Form, typer.Option("--format", "-f", help="How to show it.")] = Form.text,
    masks: Annotated[
        bool, typer.Option("--masks", help="Show the block masks of the forwards alone, as text or SVG.")
    ] = False,
    settings: Settings = None,
    output: Output = None,
) -> None:
    """Show a spec: states, forwards with row plans and masks, transitions; or its state diagram or block masks."""
    from fsm_spec import command

    command.show(spec, form.value, settings_of(settings), output, masks=masks)


def export(  # noqa: PLR0917 - options of the command line
    spec: SpecName,
    form: Annotated[
        Export,
        typer.Option(
            "--format",
            "-f",
            help="json: the compiled table; promela: a model for Spin; dot, mermaid: the diagram.",
        ),
    ] = Export.json,
    settings: Settings = None,
    requests: Annotated[
        int | None, typer.Option(min=1, max=MOST_REQUESTS, help="Promela: so many requests; 3 by default.")
    ] = None,
    pages: Annotated[
        int | None,
        typer.Option(
            min=1, help="Promela: the pool; by default a page less than the longest cases of all need."
        ),
    ] = None,
    page_size: Annotated[
        int | None, typer.Option("--page-size", min=1, help="Promela: slots a page; 2 by default.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Promela: an admission rule or a policy file; holdback by default.")
    ] = None,
    abort: Annotated[
        bool | None,
        typer.Option(help="Promela: a client may go away; on where the spec has forwards."),
    ] = None,
    chunks: Annotated[
        bool | None, typer.Option("--chunks", help="Promela: prompts are cut beside running requests.")
    ] = None,
    lag: Annotated[
        int | None, typer.Option(min=0, max=1, help="Promela: rounds by which the host's view is late.")
    ] = None,
    output: Output = None,
) -> None:
    """Export the compiled table with its digest and lines, its diagram, or a model of requests that share a pool."""
    from fsm_spec import command

    given = {
        "requests": requests, "pages": pages, "page_size": page_size, "abort": abort, "chunks": chunks,
        "lag": lag, "policies": (policy,) if policy else None,
    }  # fmt: skip
    bounds = {name: value for name, value in given.items() if value is not None}
    command.export(spec, form.value, settings_of(settings), bounds, output)


def replay(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE", help="A trace file of a simulation or a run, or a counterexample file of check."
        ),
    ],
    spec: Annotated[
        str | None,
        typer.Option(help="Replay a counterexample against this spec; one with another digest is refused."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a trace or a counterexample against its spec: every step must be one that the table allows."""
    from fsm_spec import command

    command.replay(trace, spec, as_json=as_json)


def schema(
    check: Annotated[bool, typer.Option("--check", help="Only compare the committed schema.")] = False,
) -> None:
    """Write the JSON Schema of spec files, which editors read."""
    from fsm_spec import command

    command.schema(only_compare=check)


def specs(as_json: AsJson = False) -> None:
    """List the shipped specs."""
    from fsm_spec import command

    command.specs(as_json=as_json)
