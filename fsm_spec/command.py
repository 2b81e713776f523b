"""What the commands show, export, replay, schema and specs do; their options are in `cli_spec.py`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from fsm_spec import replay as traces
from fsm_spec.checker import recorded
from fsm_spec.compile import compile_table
from fsm_spec.drawing import block_mask, diagram, mask_drawing
from fsm_spec.drawing import show as reading
from fsm_spec.drawing import state_drawing as drawing
from fsm_spec.errors import UserError
from fsm_spec.language import schema as generated
from fsm_spec.load import load, shipped
from fsm_spec.screen import FoldedScreen
from fsm_spec.wording import counted
from fsm_spec.writing import writing

if TYPE_CHECKING:
    from pathlib import Path

    from fsm_spec.load import Loaded
    from fsm_spec.table import Table


def table_of(loaded: Loaded, settings: dict[str, int], *, check: bool = False) -> Table:
    """Compile a loaded spec with the given parameters; the others take defaults, or the checker's values."""
    return compile_table(loaded.spec, settings, check=check, line_of=loaded.line_of)


def show(spec: str, form: str, settings: dict[str, int], output: Path | None, *, masks: bool) -> None:
    """Show a spec as text or as a diagram, or its block masks alone."""
    writers = {"text": reading.text, "mermaid": diagram.mermaid, "dot": diagram.dot, "svg": drawing.svg}
    if masks:
        writers = {"text": reading.masks, "svg": mask_drawing.svg}
    if form not in writers:
        raise UserError(
            f"--masks are no states and arrows, which is what {form} draws; take --format text or svg"
        )
    table = table_of(load(spec), settings)
    if masks and not table.forwards:
        raise UserError(f"{table.name} has no forwards, so it has no block masks; show it without --masks")
    if form == "text" and output is None and sys.stdout.isatty():
        styled = reading.styled_masks if masks else reading.styled
        FoldedScreen(whole=block_mask.DRAWN).print(styled(table), end="")
        return
    _write(writers[form](table), output)


def export(
    spec: str, form: str, settings: dict[str, int], bounds: dict[str, Any], output: Path | None
) -> None:
    """Export a table as JSON, its diagram, or a model of requests in a pool; `bounds` are some of `check.Bounds`."""
    loaded = load(spec)
    if form == "promela":
        _write(_promela(loaded, settings, bounds), output)
        return
    if bounds:
        option = "--" + next(iter(bounds)).replace("_", "-").replace("policies", "policy")
        raise UserError(
            f"{option} is about requests in a pool; --format {form} has none: add --format promela"
        )
    table = table_of(loaded, settings)
    if form == "json":
        content: dict[str, Any] = {"digest": table.digest, "file": loaded.file, **table.content()}
        content["lines"] = [row.line for row in table.rows]
        _write(json.dumps(content, indent=2) + "\n", output)
    else:
        _write({"mermaid": diagram.mermaid, "dot": diagram.dot}[form](table), output)


def _promela(loaded: Loaded, settings: dict[str, int], given: dict[str, Any]) -> str:
    """Write what `check` would search, for one policy, in Promela."""
    # Imported here: they need most of the checker.
    from fsm_spec.checker.bounds import PAGE_SIZE, REQUESTS, Bounds, compositions
    from fsm_spec.promela.export import promela

    bounds = Bounds(**{"requests": REQUESTS, "policies": ("holdback",), **given})
    page_size = given.get("page_size", PAGE_SIZE)
    table = compile_table(loaded.spec, settings, check=True, page_size=page_size, line_of=loaded.line_of)
    return promela(next(compositions(table, bounds)))


def _write(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text, nl=False)
        return
    with writing(output):
        output.write_text(text, encoding="utf-8")


def replay(trace: Path, spec: str | None, *, as_json: bool) -> None:
    """Replay a counterexample step by step, or a trace, of which it says what it holds."""
    found = recorded.read(trace)
    if found is not None:
        steps = recorded.replay(found, str(trace), spec)
        typer.echo(json.dumps(steps.content()) if as_json else "\n".join(steps.lines()))
        return
    if spec is not None:
        raise UserError(f"{trace} is a trace, which holds its spec; --spec is for counterexamples")
    done = traces.replay(trace)
    if as_json:
        typer.echo(json.dumps({"verdict": "allowed", **asdict(done)}))
        return
    typer.echo(f"{trace}: every step is allowed by {done.spec} (table {done.digest[:12]})")
    counts = f"{counted(done.steps, 'step')} of {counted(done.requests, 'request')}, {done.ended:,} ended"
    typer.echo(f"  {counts}, {counted(done.emitted, 'token')} emitted; written by: {done.source}")


def schema(*, only_compare: bool) -> None:
    """Write the schema, or compare it."""
    if only_compare:
        generated.check()
        typer.echo(f"{generated.schema_path()} is up to date")
    else:
        typer.echo(str(generated.write()))


def specs(*, as_json: bool) -> None:
    """List the shipped specs."""
    known = {name: load(path).spec for name, path in shipped().items()}
    if as_json:
        listed = [
            {"name": name, "about": spec.about.strip(), "source": spec.source} for name, spec in known.items()
        ]
        typer.echo(json.dumps(listed))
        return
    rows = [["spec", "lossless", "about"]]
    for name, spec in known.items():
        sentence = spec.about.strip().partition(". ")[0].rstrip(".")
        rows.append([name, spec.lossless.claim if spec.lossless else "", sentence])
    lines = reading.columns(rows, indent="")
    FoldedScreen(hang=lines[0].index("about")).print("\n".join(lines), markup=False)
