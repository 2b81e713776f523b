"""Several specs and concurrencies (`closed:1,4,16`) in one command, and their results as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from fsm_spec.compile import compile_table
from fsm_spec.errors import FsmSpecError, UserError
from fsm_spec.language.findings import nearest
from fsm_spec.load import load
from fsm_spec.simulator.chart import short
from fsm_spec.simulator.outcome_options import needs
from fsm_spec.simulator.report import Scenario as Reported
from fsm_spec.simulator.report import duration, shared_settings
from fsm_spec.simulator.scenario import Scenario
from fsm_spec.simulator.slo import Slo
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
    """Read `SPEC=VALUE`, or a value for all specs, of each option; raises UserError for other names.

    A spec may be named as it was given, or as it calls itself.
    """
    return {option: _by_spec(texts, specs, f"--{option}") for option, texts in options.items()}


def _by_spec(texts: Sequence[str], specs: Sequence[str], option: str) -> dict[str, str]:
    of_all = [text for text in texts if "=" not in text]
    if len(of_all) > 1:
        raise UserError(f"{option} is given {len(of_all)} times for all specs; give one, or SPEC=VALUE")
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        named = [spec for spec in specs if name in {spec, _called(spec)}] if equals else []
        if equals and not named:
            raise UserError(f'{option} "{text}": {name} is not among {", ".join(specs)}; name one of them')
        if found.keys() & named:
            raise UserError(f'{option} "{text}": {name} has a value already; give each spec one')
        found |= dict.fromkeys(named, value)
    return {**dict.fromkeys(specs, of_all[0]), **found} if of_all else found


def _called(spec: str) -> str:
    """Give the name that a spec calls itself, which tables show; none where it cannot be read, which is said later."""
    try:
        return load(spec).spec.spec
    except FsmSpecError:
        return ""


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


def limits_table(scenarios: Sequence[Reported]) -> Table | None:
    """Return a line a run of what limits and a price say of it; None where neither was given."""
    slos = scenarios[0].slos
    priced = any(each.bill and each.bill.price_per_million is not None for each in scenarios)
    if not slos and not priced:
        return None
    table = plain_table(
        caption="goodput: requests/s within every limit" * bool(slos)
        + "; " * (bool(slos) and priced)
        + "a million: price of so many tokens" * priced
    )
    add_column(table, "spec", named=True)
    add_column(table, "users")
    for slo in slos:
        table.add_column(f"{slo.title}, at most {duration(slo.limit_ms)}", justify="right", min_width=15)
    for column in (*(["goodput"] if slos else []), *(["a million"] if priced else [])):
        add_column(table, column)
    for each in scenarios:
        bill = each.bill
        cells = [each.name, each.settings["arrivals"].removeprefix("closed:")]
        cells += [_held(slo, each) for slo in slos]
        if slos:
            good = bill.goodput_req_s if bill else None
            cells.append("-" if good is None else f"{good:.2f}")
        if priced:
            price = bill.price_per_million if bill else None
            cells.append("-" if price is None else f"{price:.3f}")
        table.add_row(*cells)
    return table


def _held(slo: Slo, run: Reported) -> str:
    """Write what a run had, and whether that is within the limit that stands above."""
    value = slo.value_ms(run.summary)
    word = "held" if value <= slo.limit_ms else "broken"
    return f"{duration(value)} {word}" if value < float("inf") else word


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
    limits = limits_table(scenarios)
    if limits is not None:
        print_table(console, limits)


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
