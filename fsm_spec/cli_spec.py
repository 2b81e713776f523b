"""Commands that read a spec and write it in another form: show, export, replay, schema, specs; and options they share."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from fsm_spec.errors import UserError

if TYPE_CHECKING:
    from fsm_spec.load import Loaded
    from fsm_spec.table import Table

COMMANDS: Final = ("show", "export", "replay", "schema", "specs")

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
    """Add the commands."""
    app.command()(show)
    app.command()(export)
    app.command()(replay)
    app.command()(schema)
    app.command()(specs)


def settings_of(texts: list[str] | None) -> dict[str, int]:
    """Read `NAME=VALUE` options; raises UserError for one that is no name and integer."""
    values: dict[str, int] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UserError(f"--set {text} is no NAME=VALUE; write, for example, --set b=8")
        try:
            values[name.strip()] = int(value)
        except ValueError:
            raise UserError(
                f"--set {text}: {value!r} is no integer; write, for example, --set {name.strip()}=8"
            ) from None
    return values


def table_of(loaded: Loaded, settings: dict[str, int], *, check: bool = False) -> Table:
    """Compile a loaded spec with the given parameters; the others take defaults, or the checker's values."""
    from fsm_spec.compile import compile_table

    return compile_table(loaded.spec, settings, check=check, line_of=loaded.line_of)


def write_text(text: str, output: Path | None) -> None:
    """Write to a file, or to standard output."""
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{output} cannot be written: {error.strerror}; name another file") from error


def show(
    spec: SpecName,
    form: Annotated[
        Literal["text", "mermaid", "dot", "svg"], typer.Option("--format", "-f", help="How to show it.")
    ] = "text",
    settings: Settings = None,
    output: Output = None,
) -> None:
    """Show a spec: states, forwards with their row plans and masks, transitions; or its state diagram."""
    from fsm_spec import diagram, drawing
    from fsm_spec import show as reading
    from fsm_spec.load import load

    table = table_of(load(spec), settings_of(settings))
    if form == "text" and output is None and sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(reading.styled(table), end="", soft_wrap=True)
        return
    write = {"text": reading.text, "mermaid": diagram.mermaid, "dot": diagram.dot, "svg": drawing.svg}[form]
    write_text(write(table), output)


def export(
    spec: SpecName,
    form: Annotated[
        Literal["json"], typer.Option("--format", "-f", help="json: the compiled table.")
    ] = "json",
    settings: Settings = None,
    output: Output = None,
) -> None:
    """Export the compiled table with its digest, and the line of the file for every row."""
    from fsm_spec.load import load

    del form  # one so far
    loaded = load(spec)
    table = table_of(loaded, settings_of(settings))
    content: dict[str, Any] = {"digest": table.digest, "file": loaded.file, **table.content()}
    content["lines"] = [row.line for row in table.rows]
    write_text(json.dumps(content, indent=2) + "\n", output)


def replay(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A trace file written by a simulation or a run.")
    ],
    as_json: AsJson = False,
) -> None:
    """Replay a trace against its spec: every step must be one that the table allows."""
    from dataclasses import asdict

    from fsm_spec.replay import replay as replay_file

    done = replay_file(trace)
    if as_json:
        print(json.dumps({"verdict": "allowed", **asdict(done)}))
        return
    print(f"{trace}: every step is allowed by {done.spec} (table {done.digest[:12]})")
    print(
        f"  {done.steps:,} steps of {done.requests:,} requests, {done.ended:,} ended, {done.emitted:,} tokens emitted; by {done.source}"
    )


def schema(
    check: Annotated[
        bool, typer.Option("--check", help="Only compare the committed schema with the models.")
    ] = False,
) -> None:
    """Write the JSON Schema of spec files, which editors read."""
    from fsm_spec import schema as generated

    if check:
        generated.check()
        print(f"{generated.schema_path()} is up to date")
    else:
        print(generated.write())


def specs(as_json: AsJson = False) -> None:
    """List the shipped specs."""
    from fsm_spec.load import load, shipped
    from fsm_spec.show import columns

    known = {name: load(path).spec for name, path in shipped().items()}
    if as_json:
        print(
            json.dumps(
                [
                    {"name": name, "about": spec.about.strip(), "source": spec.source}
                    for name, spec in known.items()
                ]
            )
        )
        return
    rows = [["spec", "lossless", "about"]]
    for name, spec in known.items():
        sentence = spec.about.strip().partition(". ")[0].partition(": ")[0].rstrip(".")
        rows.append([name, spec.lossless.claim if spec.lossless else "", sentence])
    print("\n".join(columns(rows, indent="")))
