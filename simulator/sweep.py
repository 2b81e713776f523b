"""Several specs and concurrencies (`closed:1,4,16`) in one command, and their results as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.language.findings import nearest
from fsm_spec.load import load
from fsm_spec.simulator.chart import short
from fsm_spec.simulator.outcome_options import needs
from fsm_spec.simulator.report import Scenario as Reported
from fsm_spec.simulator.report import duration, shared_settings
from fsm_spec.simulator.scenario import Scenario
from fsm_spec.simulator.terminal_table import add_column, flowed, plain_table, print_table
from fsm_spec.simulator.workload import parse_arrivals


def sweep_arrivals(text: str) -> list[str]:
    """Split a list of concurrencies into arrivals; other arrivals stay one; raises UserError."""
    kind, _, values = text.strip().partition(":")
    if kind != "closed" or "," not in values:
        return [text]
    result = [f"closed:{value.strip()}" for value in values.split(",")]
    for index, each in enumerate(result):
        parse_arrivals(each)
        if each in result[:index]:
            raise UserError(f'--arrivals "{text}": {each} stands there twice; give each concurrency once')
    return result


def by_spec(options: Mapping[str, Sequence[str]], specs: Sequence[str]) -> dict[str, dict[str, str]]:
    """Read `SPEC=VALUE`, or a value for all specs, of each option; raises UserError for other names."""
    return {option: _by_spec(texts, specs, f"--{option}") for option, texts in options.items()}


def _by_spec(texts: Sequence[str], specs: Sequence[str], option: str) -> dict[str, str]:
    of_all = [text for text in texts if "=" not in text]
    if len(of_all) > 1:
        raise UserError(f"{option} is given {len(of_all)} times for all specs; give one, or SPEC=VALUE")
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if equals and name not in specs:
            raise UserError(f'{option} "{text}": {name} is not among {", ".join(specs)}; name one of them')
        if name in found:
            raise UserError(f'{option} "{text}": {name} has a value already; give each spec one')
        if equals:
            found[name] = value
    return {**dict.fromkeys(specs, of_all[0]), **found} if of_all else found


def compare(
    specs: Sequence[str],
    arrivals: Sequence[str],
    base: Mapping[str, Any],
    named: Mapping[str, Mapping[str, str]],
) -> list[Scenario]:
    """Spread options over several specs and arrivals, specs outermost; each option goes to the specs it affects.

    `base` holds the other fields of `Scenario`, `named` those that differ, by spec. An
    option that has an effect on none of the specs goes to all, and is
    refused by `prepare`. Raises UserError for a parameter that no spec has.
    """
    if len(specs) == 1:
        own_fields = {option: values[specs[0]] for option, values in named.items() if specs[0] in values}
        return [Scenario(**{**base, **own_fields, "spec": specs[0], "arrivals": each}) for each in arrivals]
    loaded = {spec: load(spec).spec for spec in specs}
    params: Mapping[str, int] = base.get("params", {})
    for name in params:
        if not any(name in spec.params for spec in loaded.values()):
            known = {known for spec in loaded.values() for known in spec.params}
            raise UserError(
                f"--set {name}: none of {', '.join(specs)} has this parameter{nearest(name, known)}"
            )
    own = {
        spec: {name: value for name, value in params.items() if name in loaded[spec].params} for spec in specs
    }
    wanted = {spec: needs(compile_table(loaded[spec], own[spec])) for spec in specs}
    result = []
    for spec in specs:
        fields = {**base, "spec": spec, "params": own[spec]}
        fields |= {option: values[spec] for option, values in named.items() if spec in values}
        for option, here in wanted[spec].items():
            if not here and any(other[option] for other in wanted.values()):
                fields[option] = None
        result += [Scenario(**{**fields, "arrivals": each}) for each in arrivals]
    return result


def sweep_table(scenarios: Sequence[Reported]) -> Table:
    """Return one line a run of closed loops: throughput of all and of one user, latencies, acceptance, KV."""
    table = plain_table(
        caption="a user: tok/s of one request, first token included; TTFT, TPOT: medians; accepted: tokens a round"
        " (acceptance length); forward: tokens per forward; KV: peak of the pool",
    )
    for column in ("spec", "users", "tok/s", "a user", "TTFT", "TPOT", "accepted", "forward", "KV"):
        add_column(table, column, named=column == "spec")
    before = ""
    for scenario in scenarios:
        if before and scenario.name != before:
            table.add_section()
        table.add_row("" if scenario.name == before else scenario.name, *_cells(scenario))
        before = scenario.name
    return table


def print_sweep(console: Console, scenarios: Sequence[Reported]) -> None:
    """Print the settings that all runs share, those that all runs of a spec share, and the table."""
    shared = {key: value for key, value in shared_settings(scenarios).items() if key != "arrivals"}
    console.print(flowed(shared, console.width), markup=False, highlight=False)
    for name in dict.fromkeys(scenario.name for scenario in scenarios):
        own = shared_settings([scenario for scenario in scenarios if scenario.name == name])
        own = {key: value for key, value in own.items() if key not in {*shared, "arrivals"}}
        if own:
            console.print(f"{name}: {flowed(own, console.width)}", markup=False, highlight=False)
    print_table(console, sweep_table(scenarios))


def _cells(scenario: Reported) -> tuple[str, ...]:
    summary = scenario.summary
    tpot = summary.tpot_ms.p50
    return (
        scenario.settings["arrivals"].removeprefix("closed:"),
        short(summary.throughput_tok_s),
        "-" if summary.user_tok_s is None else short(summary.user_tok_s),
        duration(summary.ttft_ms.p50) if summary.ttft_ms.count else "-",
        duration(tpot) if summary.tpot_ms.count else "-",
        "-" if summary.acceptance_length is None else f"{summary.acceptance_length:.2f}",
        "-" if summary.tokens_per_forward is None else f"{summary.tokens_per_forward:.2f}",
        f"{100 * summary.kv.peak_pages / summary.kv.pages:.0f} %" if summary.kv else "-",
    )
