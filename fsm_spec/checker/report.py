"""What `check` prints: a line a spec and their bounds, or one spec in full; then counterexamples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.text import Text

from fsm_spec.checker import check
from fsm_spec.drawing.show import columns
from fsm_spec.language.findings import SpecFindings
from fsm_spec.wording import counted

if TYPE_CHECKING:
    from rich.console import Console

    from fsm_spec.checker.check import Checked, Decided
    from fsm_spec.checker.verdict import Answer

_STYLES: Final = {
    check.PROVED: "green",
    check.REFUTED: "bold red",
    check.UNDETERMINED: "yellow",
    "faulty": "red",
}
# With so many limits or fewer they are listed.
_FEW: Final = 3
Command = Callable[["Answer", "Decided"], str]


def report(console: Console, answers: Sequence[Answer], command: Command, *, verbose: bool) -> None:
    """Print the answers; `command` gives what replays a counterexample."""
    if len(answers) > 1:
        _print_overview(console, answers)
    for answer in answers:
        if answer.error:
            # Findings are the answer; any other error is about the question.
            typer.echo(str(answer.error), err=not isinstance(answer.error, SpecFindings))
        elif answer.result:
            if len(answers) == 1 or verbose:
                _print_whole(console, answer.result)
            _print_refuted(console, answer, command, named=len(answers) > 1 and not verbose)
        if answer.expected:
            lead = f"{answer.result.table.name}: " if len(answers) > 1 and answer.result else ""
            for index, line in enumerate(answer.expected.lines()):
                console.print(f"  {lead if index == 0 else ''}{line}", markup=False)


def _print_overview(console: Console, answers: Sequence[Answer]) -> None:
    heads = [
        "spec",
        "verdict",
        "properties",
        "states",
        "transitions",
        "depth",
        "seconds",
        "pages",
        "parameters",
    ]
    rows = [heads]
    for answer in answers:
        result = answer.result
        if result is None:
            rows.append([answer.found.spec.spec if answer.found else answer.name, answer.verdict, *[""] * 7])
            continue
        params = ", ".join(f"{name} = {value}" for name, value in result.table.params.items())
        rows.append(
            [
                result.table.name,
                result.verdict,
                str(len(result.properties)),
                f"{result.states:,}",
                f"{result.transitions:,}",
                str(max(searched.depth for searched in result.searches)),
                f"{result.seconds:.2f}",
                " or ".join(map(str, result.bounds["pages"])),
                params,
            ]
        )
    lines = columns(rows, indent="")
    console.print(lines[0], style="dim", markup=False)
    for line, answer in zip(lines[1:], answers, strict=True):
        text = Text(line)
        text.highlight_words([f" {answer.verdict} "], style=_STYLES[answer.verdict])
        console.print(text)
    told = [answer.result.bounds for answer in answers if answer.result]
    if told:
        for line in _common_bounds(told[0]):
            console.print(line, style="dim", markup=False)


def _common_bounds(bounds: dict[str, Any]) -> list[str]:
    """Print what all specs of one run share."""
    moves = " single events of each, interleaved;" if bounds["interleave"] == "action" else ""
    return [
        f"bounds: {_requests(bounds['requests'])}; policies {', '.join(bounds['policies'])};{moves}",
        f"        pages of {_slots(bounds)}: {bounds['pool']};",
        f"        {_switches(bounds)}",
        "one spec alone, or --verbose, lists properties and limits",
    ]


def _switches(bounds: dict[str, Any]) -> str:
    """Say which freedoms were on."""
    states = {
        "abort": bounds["abort"],
        "chunks": bounds["chunks"],
        "lag": bounds["lag"] > 0,
        "prefix": bounds["prefix"],
    }
    on = [name for name, is_on in states.items() if is_on]
    off = [name for name, is_on in states.items() if not is_on]
    parts = [f"{', '.join(on)} on"] if on else []
    parts += [f"{', '.join(off)} off"] if off else []
    return "; ".join([*parts, "requests interchangeable" if bounds["symmetry"] else "requests told apart"])


def _listed(values: Sequence[object]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last


def _print_whole(console: Console, result: Checked) -> None:
    counts = ", ".join(
        (
            counted(len(result.properties), "property", "properties"),
            counted(result.states, "state"),
            counted(result.transitions, "transition"),
        )
    )
    verdict = (result.verdict, _STYLES[result.verdict])
    console.print(
        Text.assemble((f"{result.table.name}: ", "bold"), verdict, f"  {counts}, {result.seconds:.2f} s")
    )
    for line in _bounds_lines(result):
        console.print(f"  {line}", markup=False)
    for line in _search_lines(result):
        console.print(line, style="dim", markup=False)
    for decided in result.properties:
        word = (f"{decided.verdict:<13}", _STYLES[decided.verdict])
        console.print(Text.assemble("  ", word, f"{decided.kind:<11} {decided.name}"))
    for note in result.notes:
        console.print(f"  note         {note}", style="yellow", markup=False)
    given_up = [searched for searched in result.searches if not searched.complete]
    if given_up and result.verdict == check.UNDETERMINED:
        covered = min(searched.depth for searched in given_up)
        moves = counted(covered, "move")
        console.print(
            f"  Given up: all states fewer than {moves} from the start are covered; "
            "a larger --max-states or --max-memory may decide more."
        )


def _bounds_lines(result: Checked) -> list[str]:
    """Print the bounds as a sentence; nothing is said beyond them."""
    bounds = result.bounds
    params = "".join(f", {name} = {value}" for name, value in bounds["params"].items())
    pool = f"{_listed(bounds['pages'])} pages of {_slots(bounds)}"
    policies = ", ".join(bounds["policies"])
    lines = [
        f"bounds: {_requests(bounds['requests'])}{params}; policies {policies};",
        f"        {pool}: {bounds['pool']};",
    ]
    if "limits" in bounds:
        prompts = bounds["prompts"]
        limits = dict.fromkeys(tuple(values) for values in bounds["limits"].values())
        told = "; ".join(_limits(values, several=len(limits) > 1) for values in limits)
        lines.append(f"        prompts of {prompts[0]} to {prompts[-1]} tokens, limits {told};")
    if bounds["interleave"] == "action":
        lines.append("        single events of each, interleaved;")
    lines += [
        f"        tiers of the policy {policy}: {told};" for policy, told in bounds.get("tiers", {}).items()
    ]
    return [*lines, f"        {_switches(bounds)}"]


def _slots(bounds: dict[str, Any]) -> str:
    return counted(bounds["page_size"], "slot")


def _requests(counts: Sequence[int]) -> str:
    return f"{_listed(counts)} request{'' if list(counts) == [1] else 's'}"


def _limits(values: Sequence[int], *, several: bool) -> str:
    """Say which limits requests have: one alone has all up to some value, more have a few."""
    if len(values) > _FEW:
        return f"{values[0]} to {values[-1]}" + (" (one request alone)" if several else "")
    return _listed(values)


def _search_lines(result: Checked) -> list[str]:
    rows = [["policy", "requests", "pages", "states", "transitions", "depth", "seconds", ""]]
    for searched in result.searches:
        counts = [f"{searched.states:,}", f"{searched.transitions:,}", str(searched.depth)]
        ended = "" if searched.complete else "given up"
        seconds = f"{searched.seconds:.3f}"
        rows.append([searched.policy, str(searched.requests), str(searched.pages), *counts, seconds, ended])
    return columns(rows)


def _print_refuted(console: Console, answer: Answer, command: Command, *, named: bool) -> None:
    assert answer.result is not None
    printed: list[object] = []
    for decided in answer.result.refuted:
        spec = (f"{answer.result.table.name}: ", "bold") if named else ""
        console.print(
            Text.assemble("\n", spec, ("refuted ", "bold red"), (decided.name, "bold"), f"  ({decided.kind})")
        )
        example = decided.counterexample
        if example is None:
            console.print("  it never happens within the bounds")
            continue
        if (example.setting, example.steps) in printed:
            console.print(f"  by the same steps as above; {example.why}", markup=False)
            continue
        printed.append((example.setting, example.steps))
        for line in example.lines():
            console.print(f"  {line}", markup=False)
        console.print(f"  replay: {command(answer, decided)}", style="dim", markup=False)
