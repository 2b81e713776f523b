"""What `fsm-spec plan` does: lay out points, search, print tables and write files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fsm_spec.errors import UserError
from fsm_spec.simulator.arrivals import RATES
from fsm_spec.simulator.command import show
from fsm_spec.simulator.faults import Faults
from fsm_spec.simulator.money import price_fault, price_per_million
from fsm_spec.simulator.plan_report import print_plan
from fsm_spec.simulator.plan_settings import plan_settings
from fsm_spec.simulator.point import Result
from fsm_spec.simulator.search import RateSearch, front, max_rate, min_gpus, tiers
from fsm_spec.simulator.slo import parse_slos
from fsm_spec.simulator.study import PARAM, Study
from fsm_spec.simulator.sweep import by_spec
from fsm_spec.simulator.workers import Workers
from fsm_spec.writing import writing

REQUESTS_OF_A_RATE = (
    200  # of one seed at least: enough for a p95; a search takes more where arrivals are fast
)
# What the front is of: speed of all on an accelerator against speed of one user.
FRONT = (("throughput_tok_s_gpu", 1), ("user_tok_s", 1))


@dataclass(frozen=True)
class Asked:
    """Hold what was asked for, as it was written; `given` names the options that were; `base` holds what all share."""

    goal: str
    specs: tuple[str, ...]
    slos: tuple[str, ...]
    hardware: tuple[str, ...]
    tp: str
    arrivals: str
    rate: float | None
    users: str
    accept: tuple[str, ...]
    acceptance: tuple[str, ...]
    drafter: tuple[str, ...]
    vary: tuple[str, ...]
    price: float | None
    policy_out: Path | None
    seeds: int
    precision: float
    given: frozenset[str]
    base: dict[str, Any]


def execute(
    asked: Asked,
    *,
    workers: int,
    ray: str | None,
    resume: Path | None,
    csv: Path | None,
    parquet: Path | None,
    as_json: bool,
    faults: Faults,
) -> None:
    """Search, print and write; raises UserError for options that do not fit the goal."""
    by_rate = asked.goal in ("max-rate", "min-gpus")
    _check(asked, faults)
    faults.raise_any()
    with _progress() as progress, Workers(workers, ray, resume, progress) as pool:
        document = _by_rate(asked, pool) if by_rate else _by_users(asked, pool, csv, parquet)
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        show(lambda console: print_plan(console, document))


# Options that say nothing to a goal.
NO_EFFECT = {
    "max-rate": ("users", "vary", "rate", "policy_out", "csv", "parquet"),
    "min-gpus": ("users", "vary", "policy_out", "csv", "parquet"),
    "tiers": ("arrivals", "rate", "seeds", "precision"),
    "pareto": ("arrivals", "rate", "seeds", "precision", "policy_out"),
}
OPTIONS = {"price": "price-per-gpu-hour", "policy_out": "policy-out"}


def _check(asked: Asked, faults: Faults) -> None:
    """Note options without effect, missing ones, and faulty ones, for the goal."""
    goal, limits = asked.goal, asked.goal in ("max-rate", "min-gpus")
    for name in NO_EFFECT[goal]:
        if name in asked.given:
            faults.note(f"--{OPTIONS.get(name, name)} would have no effect on --goal {goal}; leave it out")
    wrong = {
        f"--goal {goal} needs limits; give, for example, --slo ttft_p95=500ms": limits and not asked.slos,
        "--goal min-gpus needs the load to carry; give, for example, --rate 20": goal == "min-gpus"
        and asked.rate is None,
        "--rate is a load above 0; mend it": asked.rate is not None and not asked.rate > 0,
        "--goal tiers needs one --vary, such as --vary b=4,8,16": goal == "tiers" and len(asked.vary) != 1,
        "--policy-out holds the tiers of one spec; give one spec": asked.policy_out is not None
        and len(asked.specs) > 1,
        f"--precision {asked.precision:g} lies outside 0.001 to 1; write 0.03": not 0.001
        <= asked.precision
        <= 1,
    }
    for sentence, holds in wrong.items():
        if holds:
            faults.note(sentence)
    if priced := price_fault(asked.price):
        faults.note(priced)
    _check_values(asked, faults, limits=limits)


def _check_values(asked: Asked, faults: Faults, *, limits: bool) -> None:
    """Note what cannot be read of the options that hold lists."""
    faults.take(lambda: parse_slos(asked.slos))
    faults.take(lambda: _named(asked))
    lists = [("--tp", asked.tp)] if limits else [("--tp", asked.tp), ("--users", asked.users)]
    for option, text in lists:
        for word in text.split(","):
            faults.take(partial(_count, word, option))
    for text in asked.vary:
        faults.take(partial(_varied, text))
    if limits:
        faults.take(lambda: _arrivals(asked.arrivals))


# By rate --------------------------------------------------------------------------------------------------------


def _by_rate(asked: Asked, workers: Workers) -> dict[str, Any]:
    """Search every spec on every accelerator; one that fails has its sentence, and loses no other."""
    slos = parse_slos(asked.slos)
    study = _study(asked, {"arrivals": [_arrivals(asked.arrivals)]}, workers)
    found: list[dict[str, Any]] = []
    for values, scenario in study.points:
        requests = scenario.requests or REQUESTS_OF_A_RATE
        base = scenario.model_copy(update={"requests": requests})
        steady = scenario.requests is None
        search = RateSearch(base, slos, workers, asked.seeds, asked.precision, steady=steady)
        try:
            if asked.goal == "max-rate":
                row = max_rate(search)
            else:
                assert asked.rate is not None
                row = min_gpus(search, asked.rate)
        except UserError as error:
            row = {"spec": values["spec"], "hardware": values["hardware"], "error": str(error)}
            row["tensor_parallel"] = values["tensor_parallel"]
        found.append(_priced(row | {"spec": values["spec"]}, asked.price))
    if all("error" in row for row in found):
        raise UserError("\n".join(dict.fromkeys(row["error"] for row in found)))
    settings, warnings = plan_settings(asked, (scenario for _, scenario in study.points))
    return {
        "goal": asked.goal,
        "settings": settings,
        "warnings": warnings,
        "slos": [slo.describe() for slo in slos],
        "results": found,
    }


def _priced(row: dict[str, Any], price: float | None) -> dict[str, Any]:
    """Add what the found load costs, where a price is known."""
    if price is None or "error" in row:
        return row
    row["price_per_million_tokens"] = price_per_million(price, row["throughput_tok_s_gpu"])
    return row | ({"price_per_hour": round(price * row["gpus"], 6)} if "gpus" in row else {})


def _arrivals(text: str) -> str:
    """Turn a kind of arrivals into a form with a rate, which the search replaces."""
    kind, _, rest = text.strip().partition(":")
    if kind == "trace":
        raise UserError(
            f'--arrivals "{text}" has a rate of its own, and a plan tries many; leave it out, and take the lengths of'
            " the trace, one a line, with --input file:FILE and --output file:FILE"
        )
    if kind not in RATES:
        raise UserError(f'--arrivals "{text}" is no kind of arrivals with a rate; write {", ".join(RATES)}')
    return ":".join(word for word in (kind, "1", rest) if word)


# By users -------------------------------------------------------------------------------------------------------


def _by_users(asked: Asked, workers: Workers, csv: Path | None, parquet: Path | None) -> dict[str, Any]:
    """Run every point of a grid over users, and pick from it."""
    users = [_count(word, "--users") for word in asked.users.split(",")]
    over: dict[str, Sequence[Any]] = {"arrivals": [f"closed:{count}" for count in users]}
    for text in asked.vary:
        name, values = _varied(text)
        over[f"{PARAM}{name}"] = values
    study = _study(asked, over, workers).run()
    for row in study.rows:
        _complete(row, asked.price)
    if csv is not None:
        study.write_csv(csv)
    if parquet is not None:
        study.write_parquet(parquet)
    if study.rows and len(study.failed) == len(study.rows):
        raise UserError("\n".join(dict.fromkeys(str(row["error"]) for row in study.failed)))
    rows = [row for row in study.rows if _within(row, asked)]
    settings, warnings = plan_settings(asked, (scenario for _, scenario in study.points))
    document: dict[str, Any] = {"goal": asked.goal, "settings": settings, "warnings": warnings}
    document |= {"points": study.rows, "failed": study.failed}
    if asked.goal == "pareto":
        return {**document, "front": front(rows, FRONT)}
    name = asked.vary[0].partition("=")[0].strip()
    for row in rows:
        row[name] = row[f"{PARAM}{name}"]
    parts = {
        spec: tiers([row for row in rows if row["spec"] == spec], name, "throughput_tok_s_gpu")
        for spec in dict.fromkeys(row["spec"] for row in rows)
    }
    checked = {spec: _checked(asked, spec, name, found, study) for spec, found in parts.items()}
    if asked.policy_out is not None:
        _write_policy(asked.policy_out, name, next(iter(parts.values())))
    return {**document, "parameter": name, "tiers": parts, "with_tiers": checked}


def policy_of(name: str, found: Sequence[dict[str, Any]]) -> str:
    """Write the policy file of tiers that were found; the last one holds for any larger number."""
    steps = [{"to": tier["up_to"], "value": tier[name]} for tier in found[:-1]]
    steps.append({"value": found[-1][name]})
    tier = {"param": name, "steps": steps, "check": [{"value": 2}]}
    return yaml.safe_dump({"policy": "planned", "admit": "holdback", "tier": tier}, sort_keys=False)


def _write_policy(path: Path, name: str, found: Sequence[dict[str, Any]]) -> None:
    """Write the policy file; raises UserError where that cannot be."""
    with writing(path, "--policy-out"):
        path.write_text(policy_of(name, found), encoding="utf-8")


def _checked(
    asked: Asked, spec: str, name: str, found: Sequence[dict[str, Any]], study: Study
) -> dict[int, float | str]:
    """Run the policy of the tiers at every number of users; give its speed, or why it cannot run."""
    if len(found) < 2:
        return {}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "planned.yaml"
        path.write_text(policy_of(name, found), encoding="utf-8")
        chosen = {
            values["arrivals"]: scenario
            for values, scenario in study.points
            if values["spec"] == spec and scenario.hardware == asked.hardware[0]
        }
        points = []
        for scenario in chosen.values():
            params = {key: value for key, value in scenario.params.items() if key != name}
            points.append(scenario.model_copy(update={"policy": str(path), "params": params}))
        results = Workers(1).run(points)
    return {
        int(arrivals.removeprefix("closed:")): result["error"] or result["throughput_tok_s_gpu"]
        for arrivals, result in zip(chosen, results, strict=True)
    }


def _complete(row: Result, price: float | None) -> None:
    """Add what follows from a point's results: its users, the speed of one, the price."""
    row["users"] = int(row["arrivals"].removeprefix("closed:"))
    if row["error"]:
        return
    row["user_tok_s"] = round(1e3 / row["per_token_ms_p50"], 3) if row["per_token_ms_p50"] else None
    if price is not None:
        row["price_per_million_tokens"] = price_per_million(price, row["throughput_tok_s_gpu"])


def _within(row: Result, asked: Asked) -> bool:
    """Say whether a point succeeded within all limits."""
    return not row["error"] and all(row[slo.name] <= slo.limit_ms for slo in parse_slos(asked.slos))


def _study(asked: Asked, over: dict[str, Sequence[Any]], workers: Workers) -> Study:
    """Lay out specs, accelerators and their numbers around what a goal varies."""
    return Study(
        asked.base,
        over={
            "spec": list(asked.specs),
            "hardware": list(asked.hardware),
            "tensor_parallel": [_count(word, "--tp") for word in asked.tp.split(",")],
            **over,
        },
        named=_named(asked),
        slos=asked.slos,
        workers=workers,
    )


def _named(asked: Asked) -> dict[str, dict[str, str]]:
    """Read the options that differ by spec."""
    texts = {"accept": asked.accept, "acceptance": asked.acceptance, "drafter": asked.drafter}
    return by_spec(texts, asked.specs)


def _varied(text: str) -> tuple[str, list[int]]:
    """Read `NAME=V1,V2`."""
    name, equals, values = text.partition("=")
    if not equals or not name.strip():
        raise UserError(f'--vary "{text}" is no NAME=V1,V2; write, for example, --vary b=4,8,16')
    return name.strip(), [_count(word, "--vary") for word in values.split(",")]


def _count(word: str, option: str) -> int:
    """Read a whole number of at least 1."""
    if not word.strip().isdigit() or not 1 <= int(word) <= 1_000_000:
        raise UserError(f'{option}: "{word}" is no whole number from 1 to 1000000; write 1,8,64, for example')
    return int(word)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr of the points that are done; searches add points as they go."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("points", total=None)
        yield lambda done, asked: bar.update(task, completed=done, total=asked)
