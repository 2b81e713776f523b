"""The answers of `fsm-spec plan` on a terminal: settings first, then a table for each goal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fsm_spec.simulator.chart import short
from fsm_spec.simulator.point import Result
from fsm_spec.simulator.study import PARAM
from fsm_spec.simulator.terminal_table import add_column, flowed, plain_table, print_table, small_table
from fsm_spec.wording import counted

NAMED = ("spec", "hardware")


def print_plan(console: Console, document: dict[str, Any]) -> None:
    """Print what was asked, the answer as tables, and what failed."""
    console.print(flowed(document["settings"], console.width), markup=False, highlight=False)
    for warning in document["warnings"]:
        console.print(warning, markup=False, highlight=False)
    if "results" in document:
        print_table(console, _rates(document))
        for row in document["results"]:
            if "error" in row:
                told = f"{row['spec']} on {row['hardware']}: {row['error']}"
                console.print(told, markup=False, highlight=False)
        return
    if "front" in document:
        print_table(console, _front(document["front"]))
    for spec, found in document.get("tiers", {}).items():
        print_table(console, _tiers(spec, document["parameter"], found, document["with_tiers"][spec]))
    failed = document["failed"]
    if failed:
        console.print(
            f"{counted(len(failed), 'point')} failed, the first with: {failed[0]['error']}", markup=False
        )


def _rates(document: dict[str, Any]) -> Table:
    """Return the answers of a search by rate."""
    goal, found = document["goal"], [row for row in document["results"] if "error" not in row]
    priced = any("price_per_million_tokens" in row for row in found)
    above = "the next load that was tried" if goal == "max-rate" else "one replica fewer, where there is one,"
    caption = f"mean over seeds, and its 95 % interval; {above} breaks a limit; runs: requests of each seed's"
    if any("checked" in row for row in found):
        caption += ", and of a longer run with another seed, which held the limits too"
    table = plain_table(caption=caption)
    limits = [slo.partition("=")[0] for slo in document["slos"]]
    prices = (["an hour"] if goal == "min-gpus" else []) + ["a million"]
    answer = "requests/s" if goal == "max-rate" else "GPUs"
    for column in (*NAMED, answer, "runs"):
        add_column(table, column, named=column in NAMED)
    for column in limits:
        table.add_column(column, justify="right", min_width=8)  # an interval may go over several lines
    for column in prices if priced else ():
        add_column(table, column)
    for row in found:
        value = f"{row['max_rate_req_s']:.4g}" if goal == "max-rate" else str(row["gpus"])
        ends = [_interval(*interval) for interval in row["intervals_ms"].values()]
        costs = [f"{row['price_per_hour']:.2f}"] if "price_per_hour" in row else []
        costs += [_price(row)] if priced else []
        table.add_row(row["spec"], _place(row), value, _runs(row), *map(escape, ends), *costs)
    return table


def _runs(row: Result) -> str:
    """Write the requests of the runs behind an answer, a line each."""
    counts = [row["requests"], *([row["checked"]["requests"]] if "checked" in row else [])]
    return "\n".join(f"{count:,}" for count in counts)


def _interval(mean: float, low: float, high: float) -> str:
    """Write a mean and its interval in milliseconds, in one unit."""
    factor, unit = (1000, "s") if mean >= 1000 else (1, "ms")
    return f"{mean / factor:.3g} [{low / factor:.3g}, {high / factor:.3g}] {unit}"


def _price(row: Result) -> str:
    price = row["price_per_million_tokens"]
    return "-" if price is None else f"{price:.3f}"


def _front(rows: Sequence[Result]) -> Table:
    """Return the points that nothing else beats."""
    priced = any("price_per_million_tokens" in row for row in rows)
    table = plain_table(
        "what nothing else beats in speed of a user and of a GPU",
        "a user: tokens over its whole time; a GPU: tok/s of one; bound: by what most of the time"
        + ("; a million: price of so many tokens" if priced else ""),
    )
    for column in (*NAMED, "users", "a user", "a GPU", "bound", *(["a million"] if priced else [])):
        add_column(table, column, named=column in NAMED)
    for row in sorted(rows, key=lambda row: row["users"]):
        bound = max(("compute", "memory", "latency"), key=lambda name: float(row[f"bound_{name}"]))
        params = [
            f"{name.removeprefix(PARAM)}={row[name]}" for name in row if name.startswith(PARAM) and row[name]
        ]
        cells = [" ".join([row["spec"], *params]), _place(row), str(row["users"])]
        cells += [short(row["user_tok_s"]), short(row["throughput_tok_s_gpu"]), bound]
        table.add_row(*cells, *([_price(row)] if priced else []))
    return table


def _place(row: dict[str, Any]) -> str:
    """Write the accelerators of a replica."""
    parallel = row["tensor_parallel"]
    return f"{row['hardware']} x {parallel}" if parallel > 1 else str(row["hardware"])


def _tiers(spec: str, name: str, found: Sequence[dict[str, Any]], checked: dict[int, float | str]) -> Table:
    """Return the tiers of one spec, with what each fixed value would give."""
    values = sorted({value for tier in found for at in tier["at"].values() for value in at["of"]})
    fixed = [f"{name}={value}" for value in values]
    table = small_table("users", f"best {name}", *fixed, *(["tiers"] if checked else []))
    table.title = f"{spec}: best {name} by users"
    for tier in found:
        for users, at in tier["at"].items():
            cells = [short(at["of"][value]) if value in at["of"] else "-" for value in values]
            if checked:
                tiered = checked.get(users, "-")
                cells.append(tiered if isinstance(tiered, str) else short(tiered))
            table.add_row(str(users), str(tier[name]), *cells)
    limits = ", ".join(f"{tier[name]} up to {tier['up_to']}" for tier in found)
    last = "; the last column is their policy, simulated" if checked else ""
    table.caption = f"tok/s a GPU; tiers: {limits}{last}"
    return table
