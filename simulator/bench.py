"""What `fsm-spec bench serve` does: measure a server, and print, write and draw what `simulate` would."""

from __future__ import annotations

import asyncio
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fsm_spec.screen import Screen
from fsm_spec.simulator import report
from fsm_spec.simulator.command import over_time
from fsm_spec.simulator.measure import Measured, Target, failures, measure
from fsm_spec.simulator.metrics import Summary
from fsm_spec.simulator.page import write_page
from fsm_spec.simulator.prompts import Prompts
from fsm_spec.simulator.result_file import read_results
from fsm_spec.simulator.slo import Slo, goodput, kept, parse_slos, spelled_out
from fsm_spec.simulator.workload import Requests, Workload, parse_arrivals, parse_lengths

RANDOM_WORDS = (
    "prompts are random words, on which a model soon repeats itself, so that drafts are guessed too easily:"
    " acceptance and all speeds are not those of real text, and win no comparison; give real prompts"
    " with --dataset, and --no-ignore-eos"
)


@dataclass(frozen=True)
class Bench:
    """Hold the options of one `bench serve`."""

    target: Target
    arrivals: str
    input: str | None
    output: str | None
    requests: int | None
    dataset: Path | None
    seed: int
    slo: tuple[str, ...]

    def workload(self, prompts: Prompts) -> Requests:
        """Draw the requests, as the simulator does; a closed loop takes 4 a user."""
        arrivals = parse_arrivals(self.arrivals)
        trace = arrivals.kind == "trace"
        count = self.requests
        if count is None and arrivals.kind == "closed":
            count = 4 * arrivals.concurrency
        # A data set has its own prompts, and may have its own limits.
        prompt = self.input or ("1" if self.dataset else None)
        output = self.output or ("128" if self.dataset else None)
        workload = Workload(
            arrivals,
            None if trace or prompt is None else parse_lengths(prompt, "--input"),
            None if trace or output is None else parse_lengths(output, "--output"),
            count,
            self.seed,
        )
        return prompts.outputs(workload.generate())

    def settings(self, requests: Requests, about: dict[str, Any]) -> dict[str, str]:
        """Say in words what was measured."""
        parameters = " ".join(f"{name}={value}" for name, value in about.get("params", {}).items())
        given = {
            "model": self.target.model or about.get("model", ""),
            "hardware": f"measured: {platform.machine()}",
            "parameters": parameters,
            "arrivals": parse_arrivals(self.arrivals).describe(),
            "input": self.input or "",
            "output": self.output or "",
            "prompts": self.dataset.name if self.dataset else "random words",
            "requests": str(len(requests)),
            "temperature": f"{self.target.temperature:g}" if self.target.temperature else "",
            "policy": about.get("policy", {}).get("policy", ""),
            "synthetic": " ".join(
                f"{name} {rates}" for name, rates in (about.get("synthetic") or {}).items()
            ),
            "pool": "{pages} pages of {page_size}".format(**about["pool"]) if about else "",
            "seed": str(self.seed),
        }
        return {name: value for name, value in given.items() if value}


def guessable(summary: Summary) -> bool:
    """Tell whether rounds emit as many tokens as the text allows, so that numbers hold for texts like it."""
    return summary.drafted > 0 or (summary.acceptance_length or 1.0) != 1.0


def execute(bench: Bench, *, page: Path | None, beside: list[Path], as_json: bool) -> int:
    """Measure, then print and write; gives the number of requests that failed; raises UserError."""
    others = [scenario for path in beside for scenario in read_results(path)]
    slos = parse_slos(spelled_out(bench.slo))
    prompts = Prompts.read(bench.dataset, bench.seed, chat=bench.target.chat)
    requests = bench.workload(prompts)
    measured = _watched(bench, requests, prompts)
    settings = bench.settings(requests, measured.about)
    name = f"{measured.about.get('spec', bench.target.url)}"
    failed = {cause: each.count for cause, each in measured.failed.items()}
    # Under synthetic rates no text matters.
    told = prompts.rows or measured.about.get("synthetic")
    invented = not told and guessable(measured.summary)
    scenario = report.Scenario(
        f"{name}, measured",
        settings,
        measured.summary,
        measured.timeline,
        notes=failures(measured.failed),
        warnings=(RANDOM_WORDS,) if invented else (),
        failed=failed,
        measured=True,
        comparable=not invented,
    )
    if page is not None:
        write_page(page, [scenario, *others], "Measured and simulated" if others else "Measured")
    value = content(bench, measured, scenario, slos)
    if as_json:
        sys.stdout.write(json.dumps(value, indent=1) + "\n")
        return sum(failed.values())
    screen = Screen(highlight=False)
    report.print_report(screen, [scenario, *others])
    report.print_warnings(screen, [scenario, *others])
    if slos:
        good = value["goodput"]
        screen.print(
            f"goodput {good['req_s']:.3g} requests/s: {good['kept']} of {good['of']} kept {good['slo']}"
        )
    if page is not None:
        screen.print(f"report in {page}", soft_wrap=True)
    return sum(failed.values())


def content(
    bench: Bench,
    measured: Measured,
    scenario: report.Scenario,
    slos: Sequence[Slo],
) -> dict[str, Any]:
    """Give a measurement in the form of a simulation's result."""
    about, summary = measured.about, measured.summary
    value: dict[str, Any] = {
        "spec": about.get("spec"),
        "digest": about.get("digest"),
        "params": about.get("params", {}),
        "scenario": scenario.settings,
        **summary.to_dict(),
        "iterations": None,
        "launches": measured.launches,
        "recomputed_slots": None,
        "verdicts": list(scenario.notes),
        "warnings": list(scenario.warnings),
        "comparable": scenario.comparable,
        "over_time": over_time(measured.timeline),
        "run": {
            "source": "measured",
            "url": bench.target.url,
            "machine": platform.machine(),
            "python": platform.python_version(),
            "failed": scenario.failed,
        },
    }
    if slos:
        value["goodput"] = {
            "slo": ",".join(bench.slo),
            "kept": kept(measured.log, slos),
            "of": summary.requests,
            "req_s": round(goodput(measured.log, slos, summary.duration_s), 6),
        }
    return value


def _watched(bench: Bench, requests: Requests, prompts: Prompts) -> Measured:
    """Measure with a progress bar on standard error."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(bench.arrivals, total=len(requests))
        tick = partial(_advance, bar, task)
        return asyncio.run(measure(bench.target, requests, prompts, tick))


def _advance(bar: Progress, task: Any, ended: int) -> None:  # noqa: ANN401 -- rich's own identity of a task
    bar.update(task, completed=ended)
