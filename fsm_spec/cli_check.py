"""The command `check`: all findings of a file, then its properties within small bounds."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fsm_spec.cli_spec import AsJson, Settings, settings_of, table_of
from fsm_spec.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from fsm_spec.check import Checked
    from fsm_spec.load import Loaded

COMMANDS: Final = ("check",)
FAULTY: Final = 2
# From the strongest to the weakest: over several files the first that occurs is the exit code.
EXIT_CODES: Final = {"faulty": FAULTY, "refuted": 1, "undetermined": 3, "holds within bounds": 0}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(check)


def check(
    specs: Annotated[
        list[str], typer.Argument(metavar="SPEC...", help="Spec files, or names of shipped specs.")
    ],
    settings: Settings = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            help="reserve, holdback, preempt, greedy, or a policy file; may be repeated. "
            "reserve and holdback by default.",
        ),
    ] = None,
    max_states: Annotated[
        int,
        typer.Option("--max-states", min=1, help="Give a search up (undetermined) beyond so many states."),
    ] = 100_000,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List all properties and searches.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check specs: all findings of each file, then every state of one and two requests within small bounds.

    Exit code 0: nothing refuted within the bounds printed; 1: refuted; 2: a faulty file or bad usage; 3: undetermined.
    """
    from rich.console import Console

    values = settings_of(settings)
    loaded = _load(specs)
    _known(values, loaded)
    console = Console(highlight=False, soft_wrap=True)
    results: list[dict[str, Any]] = []
    for name in specs:
        found = loaded[name]
        if isinstance(found, dict):
            results.append(found)
            for finding in found["findings"] if not as_json else ():
                console.print(_finding_text(finding), markup=False)
            continue
        result = _checked(found, values, policy, max_states)
        results.append({"file": found.file, **result.content()})
        if not as_json:
            _print(console, result, verbose or len(specs) == 1)
    if as_json:
        print(json.dumps(results[0] if len(results) == 1 else results))
    verdicts = {result["verdict"] for result in results}
    raise typer.Exit(next(code for verdict, code in EXIT_CODES.items() if verdict in verdicts))


def _load(names: list[str]) -> dict[str, Any]:
    """Load every spec by name; a faulty one gives its findings as JSON values."""
    from fsm_spec.findings import SpecFindings
    from fsm_spec.load import load

    loaded: dict[str, Any] = {}
    for name in names:
        try:
            loaded[name] = load(name)
        except SpecFindings as error:
            findings = [asdict(finding) for finding in error.findings]
            loaded[name] = {"file": findings[0]["file"], "verdict": "faulty", "findings": findings}
    return loaded


def _known(values: dict[str, int], loaded: dict[str, Any]) -> None:
    """Refuse a parameter that none of the specs has."""
    from fsm_spec.words import nearest

    specs = [found.spec for found in loaded.values() if not isinstance(found, dict)]
    known = {name for spec in specs for name in spec.params}
    for name in values:
        if specs and name not in known:
            raise UserError(
                f"{', '.join(spec.spec for spec in specs)}: no parameter is called {name!r}{nearest(name, known)}"
            )


def _finding_text(finding: dict[str, Any]) -> str:
    from fsm_spec.findings import Finding

    return str(Finding(**finding))


def _checked(found: Loaded, values: dict[str, int], policies: list[str] | None, most_states: int) -> Checked:
    from fsm_spec.check import POLICIES
    from fsm_spec.check import check as decide

    own = {name: value for name, value in values.items() if name in found.spec.params}
    table = table_of(found, own, check=True)
    with _progress(found.spec.spec) as tick:
        return decide(table, tuple(policies or POLICIES), most_states, tick)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int], None] | None]:
    """Show the states searched so far on a terminal's standard error."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{name}: searching") as status:
        yield lambda states: status.update(f"{name}: {states:,} states")


_STYLES: Final = {"holds within bounds": "green", "refuted": "bold red", "undetermined": "yellow"}
_MARKS: Final = {"holds within bounds": "holds", "refuted": "refuted", "undetermined": "undetermined"}


def _print(console: Console, result: Checked, everything: bool) -> None:
    from rich.text import Text

    total = sum(searched.states for searched in result.searches)
    moves = sum(searched.transitions for searched in result.searches)
    head = Text.assemble(
        (f"{result.spec}: ", "bold"),
        (result.verdict, _STYLES[result.verdict]),
        f"  {len(result.properties)} properties, {total:,} states, {moves:,} transitions, {result.seconds:.2f} s",
    )
    console.print(head)
    for line in _bounds_lines(result.bounds):
        console.print(f"  {line}", markup=False)
    if everything:
        _print_searches(console, result)
        for decided in result.properties:
            mark = Text.assemble(
                "  ",
                (f"{_MARKS[decided.verdict]:<13}", _STYLES[decided.verdict]),
                f"{decided.kind:<11} {decided.name}",
            )
            console.print(mark)
    _print_refuted(console, result)
    if result.verdict == "undetermined":
        console.print("  A search was given up; a larger --max-states may decide it.")


def _print_searches(console: Console, result: Checked) -> None:
    from fsm_spec.show import columns

    rows = [["policy", "requests", "pages", "states", "transitions", "depth", ""]]
    for searched in result.searches:
        pages = "" if searched.pages is None else str(searched.pages)
        counts = [f"{searched.states:,}", f"{searched.transitions:,}", str(searched.depth)]
        rows.append(
            [
                searched.policy or "none",
                str(searched.requests),
                pages,
                *counts,
                "" if searched.complete else "given up",
            ]
        )
    for line in columns(rows):
        console.print(line, style="dim", markup=False)


def _bounds_lines(bounds: dict[str, Any]) -> list[str]:
    """Print the bounds as a sentence; nothing is said beyond them."""
    params = ", ".join(f"{name} = {value}" for name, value in bounds["params"].items())
    lead = f"bounds: 1 and 2 requests{', ' + params if params else ''}"
    if bounds.get("interleaving"):
        return [f"{lead}; single events interleaved, no pool, no scheduler"]
    prompts, limits = bounds["prompts"], bounds["limits"]
    tokens = ", ".join(f"{name} {count}" for name, count in bounds["prefill_tokens"].items())
    two = ", ".join(map(str, limits["2"]))
    return [
        f"{lead}; prompts of {prompts[0]} to {prompts[-1]} tokens, limits 0 to {limits['1'][-1]} (two requests: {two})",
        f"        pools of {', '.join(map(str, bounds['pages']))} pages of {bounds['page_size']} slots; abort at any round; "
        f"prefill tokens an iteration: {tokens}",
    ]


def _print_refuted(console: Console, result: Checked) -> None:
    from rich.text import Text

    printed: list[Any] = []
    for decided in result.refuted:
        console.print(
            Text.assemble("\n", ("refuted ", "bold red"), (decided.name, "bold"), f"  ({decided.kind})")
        )
        example = decided.counterexample
        if example is None:
            console.print("  it never happens within the bounds")
        elif (example.setting, example.steps) in printed:
            console.print("  by the same steps as above")
        else:
            printed.append((example.setting, example.steps))
            for line in example.lines():
                console.print(f"  {line}", markup=False)
