"""The command `fsm-spec acceptance`: profiles for `simulate --acceptance` from traces; imported when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fsm_spec.cli_spec import AsJson
from fsm_spec.writing import writing


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("acceptance")(acceptance)


def acceptance(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]TRACE", help="Traces of one spec; those of one NAME make one profile."
        ),
    ],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the profiles to this file; else print them.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Record how often drafts were accepted in traces: by position, and by the judgement before."""
    import yaml

    from fsm_spec.simulator.recording import record, warnings_of

    found = record([_named(text) for text in traces])
    values = found.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=110)
    if out is not None:
        with writing(out, "--out"):
            out.write_text(text, encoding="utf-8")
    if as_json:
        sys.stdout.write(found.model_dump_json(indent=1, exclude_defaults=True) + "\n")
    elif out is None:
        sys.stdout.write(text)
    else:
        names = ", ".join(f"{entry.name} ({entry.judgements} judgements)" for entry in found.profiles)
        sys.stdout.write(f"{names} in {out}\n")
    sys.stdout.flush()
    for warning in warnings_of(found.profiles):
        sys.stderr.write(f"{warning}\n")


def _named(text: str) -> tuple[str, Path]:
    """Read `NAME=TRACE`, or a trace that is called like its file."""
    name, equals, path = text.partition("=")
    if not equals or "/" in name:
        return Path(text).stem, Path(text)
    return name, Path(path)
