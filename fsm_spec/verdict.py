"""The command `check` at work: load, decide, print; its options are in `cli_check.py`, the search in `check.py`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from fsm_spec import check
from fsm_spec.command import table_of
from fsm_spec.errors import FsmSpecError, UserError
from fsm_spec.findings import SpecFindings, nearest
from fsm_spec.load import Loaded, load
from fsm_spec.policy import load_policy
from fsm_spec.show import columns

if TYPE_CHECKING:
    from fsm_spec.check import Checked
    from fsm_spec.spec import Spec

FAULTY: Final = "faulty"
# From the strongest to the weakest: over several files the first that occurs gives the exit code.
EXIT_CODES: Final = {FAULTY: 2, check.REFUTED: 1, check.UNDETERMINED: 3, check.HOLDS: 0}
_STYLES: Final = {check.HOLDS: "green", check.REFUTED: "bold red", check.UNDETERMINED: "yellow"}
_WORDS: Final = {check.HOLDS: "holds", check.REFUTED: "refuted", check.UNDETERMINED: "undetermined"}


def execute(
    names: Sequence[str],
    settings: Mapping[str, int],
    policies: Sequence[str] | None,
    most_states: int,
    *,
    verbose: bool,
    as_json: bool,
) -> int:
    """Check specs and print what was found; gives the exit code."""
    for policy in policies or ():
        load_policy(policy)
    loaded = {name: _load(name) for name in dict.fromkeys(names)}
    _refuse_unknown(settings, [found.spec for found in loaded.values() if isinstance(found, Loaded)])
    console = Console(highlight=False, soft_wrap=True)
    results: list[dict[str, Any]] = []
    for name, found in loaded.items():
        try:
            if isinstance(found, FsmSpecError):
                raise found
            result = _checked(found, settings, policies or check.POLICIES, most_states)
        except FsmSpecError as error:
            results.append(_faulty(name, error))
            if not as_json:
                # Findings are the answer; any other error is about the question.
                typer.echo(str(error), err=not isinstance(error, SpecFindings))
            continue
        results.append({"file": found.file, **result.content()})
        if not as_json:
            _print(console, result, everything=verbose or len(loaded) == 1)
    if as_json:
        typer.echo(json.dumps(results[0] if len(results) == 1 else results))
    verdicts = {result["verdict"] for result in results}
    return next(code for verdict, code in EXIT_CODES.items() if verdict in verdicts)


def _load(name: str) -> Loaded | FsmSpecError:
    try:
        return load(name)
    except FsmSpecError as error:
        return error


def _faulty(name: str, error: FsmSpecError) -> dict[str, Any]:
    """Give a file that cannot be checked as JSON values."""
    if isinstance(error, SpecFindings):
        findings = [asdict(finding) for finding in error.findings]
        return {"file": findings[0]["file"], "verdict": FAULTY, "findings": findings}
    return {"file": name, "verdict": FAULTY, "findings": [], "error": str(error)}


def _refuse_unknown(settings: Mapping[str, int], specs: Sequence[Spec]) -> None:
    """Refuse a parameter that none of the specs has."""
    known = {name for spec in specs for name in spec.params}
    for name in settings:
        if specs and name not in known:
            told = ", ".join(spec.spec for spec in specs)
            raise UserError(f"{told}: no parameter is called {name!r}{nearest(name, known)}")


def _checked(
    found: Loaded, settings: Mapping[str, int], policies: Sequence[str], most_states: int
) -> Checked:
    own = {name: value for name, value in settings.items() if name in found.spec.params}
    table = table_of(found, own, check=True)
    with _progress(found.spec.spec) as tick:
        return check.check(table, policies, most_states, tick)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int], None] | None]:
    """Show the states searched so far on a terminal's standard error."""
    if not sys.stderr.isatty():
        yield None
        return
    with Console(stderr=True).status(f"{name}: searching") as status:
        yield lambda states: status.update(f"{name}: {states:,} states")


def _print(console: Console, result: Checked, *, everything: bool) -> None:
    total = sum(searched.states for searched in result.searches)
    moves = sum(searched.transitions for searched in result.searches)
    counts = f"{len(result.properties)} properties, {total:,} states, {moves:,} transitions"
    verdict = (result.verdict, _STYLES[result.verdict])
    console.print(Text.assemble((f"{result.spec}: ", "bold"), verdict, f"  {counts}, {result.seconds:.2f} s"))
    for line in _bounds_lines(result):
        console.print(f"  {line}", markup=False)
    if everything:
        for line in _search_lines(result):
            console.print(line, style="dim", markup=False)
        for decided in result.properties:
            word = (f"{_WORDS[decided.verdict]:<13}", _STYLES[decided.verdict])
            console.print(Text.assemble("  ", word, f"{decided.kind:<11} {decided.name}"))
    _print_refuted(console, result)
    if result.verdict == check.UNDETERMINED:
        console.print("  A search was given up; a larger --max-states may decide it.")


def _search_lines(result: Checked) -> list[str]:
    rows = [["policy", "requests", "pages", "states", "transitions", "depth", ""]]
    for searched in result.searches:
        pages = "" if searched.pages is None else str(searched.pages)
        counts = [f"{searched.states:,}", f"{searched.transitions:,}", str(searched.depth)]
        ended = "" if searched.complete else "given up"
        rows.append([searched.policy or "", str(searched.requests), pages, *counts, ended])
    return columns(rows)


def _bounds_lines(result: Checked) -> list[str]:
    """Print the bounds as a sentence; nothing is said beyond them."""
    bounds = result.bounds
    params = "".join(f", {name} = {value}" for name, value in bounds["params"].items())
    lead = f"bounds: 1 and 2 requests{params}"
    if bounds["pool"] is None:
        return [f"{lead}; single events of each, interleaved; no pool, no scheduler"]
    prompts, limits, pool = bounds["prompts"], bounds["limits"], bounds["pool"]
    pages = " or ".join(map(str, pool["pages"]))
    two = ", ".join(map(str, limits["2"]))
    by_policy = bounds["prefill_tokens"]
    tokens = ", ".join(f"{count} ({name})" for name, count in by_policy.items())
    if len(set(by_policy.values())) == 1:
        tokens = str(next(iter(by_policy.values())))
    return [
        f"{lead}; prompts of {prompts[0]} to {prompts[-1]} tokens, limits 0 to {limits['1'][-1]} (two: {two});",
        f"        {pages} pages of {pool['page_size']} slots; abort at every round; rows an iteration {tokens}",
    ]


def _print_refuted(console: Console, result: Checked) -> None:
    printed: list[object] = []
    for decided in result.refuted:
        console.print(
            Text.assemble("\n  ", ("refuted ", "bold red"), (decided.name, "bold"), f"  ({decided.kind})")
        )
        example = decided.counterexample
        if example is None:
            console.print("    it never happens within the bounds")
        elif (example.setting, example.steps) in printed:
            console.print(f"    by the same steps as above; {example.why}", markup=False)
        else:
            printed.append((example.setting, example.steps))
            for line in example.lines():
                console.print(f"    {line}", markup=False)
