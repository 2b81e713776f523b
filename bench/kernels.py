"""Compile every Triton kernel for every target, without a GPU, and hold what it takes to committed budgets.

Run: `scripts/kernel_report`, or for some of it `scripts/kernel_report --only attend_part --targets sm_90`.
A run over everything writes bench/results/kernels.json. Exit code 1 where a kernel uses stack, spills vector
registers, does not compile, or takes more than `bench/kernel_budgets.yaml` allows; `--accept` writes what was
compiled into that file.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml
from record import write_result
from rich.console import Console
from rich.table import Table

BUDGETS = Path(__file__).resolve().parent / "kernel_budgets.yaml"
# Stack and vector spills go through memory in the inner loop: for them there is no budget but 0.
BUDGETED = ("registers", "scalar_spills", "shared", "narrow_loads")
Budgets = Mapping[str, Mapping[str, Mapping[str, int]]]


@dataclass(frozen=True)
class Line:
    """Hold what one form of a kernel takes on one target."""

    form: str
    target: str
    took: dict[str, int]
    """Empty where it did not compile"""
    error: str
    compile_s: float


def judge(line: Line, budgets: Budgets) -> list[str]:
    """Say what is over budget; a form without a budget is."""
    if line.error:
        return [f"does not compile: {line.error}"]
    took = line.took
    faults = [f"{name} {took[name]}" for name in ("stack", "spills") if took[name]]
    budget = budgets.get(line.form, {}).get(line.target)
    if budget is None:
        return [*faults, "no budget; write one with --accept"]
    return faults + [
        f"{name} {took[name]} > {budget[name]}" for name in BUDGETED if took[name] > budget[name]
    ]


def compile_all(only: list[str], targets: list[str]) -> Iterator[Line]:
    """Compile the forms whose name holds one of `only`, all if it is empty."""
    from fsm_spec.kernels.triton.resources import compile_for, forms  # noqa: PLC0415 -- after the environment is judged

    for name, form in forms():
        if only and not any(part in name for part in only):
            continue
        for target in targets:
            started = time.perf_counter()
            took, error = {}, ""
            try:
                took = asdict(compile_for(form, target))
            except Exception as raised:  # noqa: BLE001 -- whatever a compiler raises belongs in its line
                error = str(raised).strip().partition("\n")[0] or type(raised).__name__
            yield Line(name, target, took, error, round(time.perf_counter() - started, 2))


def show(lines: list[Line], faults: list[list[str]]) -> None:
    """Print one row a form and target."""
    table = Table("kernel", "target")
    for head in (
        "registers",
        "stack",
        "spills",
        "scalar spills",
        "shared bytes",
        "narrow loads",
        "compile s",
    ):
        table.add_column(head, justify="right")
    table.add_column("budget")
    for line, wrong in zip(lines, faults, strict=True):
        took = (
            line.took.get(name, "-")
            for name in ("registers", "stack", "spills", "scalar_spills", "shared", "narrow_loads")
        )
        table.add_row(
            line.form, line.target, *map(str, took), str(line.compile_s), "; ".join(wrong) or "kept"
        )
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(table)


def write_budgets(lines: list[Line], kept: dict[str, dict[str, dict[str, int]]]) -> None:
    """Write what was taken as the new budgets, beside those kept of forms that were not compiled."""
    budgets = kept
    for line in lines:
        if line.took:
            budgets.setdefault(line.form, {})[line.target] = {name: line.took[name] for name in BUDGETED}
    head = "# The most that a kernel may take on a target, written by scripts/kernel_report --accept.\n"
    BUDGETS.write_text(head + yaml.safe_dump(budgets, sort_keys=False, default_flow_style=None, width=110))


def main() -> int:
    """Compile, print, judge; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="TEXT", help="kernels whose name holds one of these"
    )
    parser.add_argument(
        "--targets", nargs="+", default=[], metavar="TARGET", help="of sm_80 sm_90 sm_100 gfx942"
    )
    parser.add_argument("--budgets", type=Path, default=BUDGETS, help="file of budgets to hold kernels to")
    parser.add_argument("--accept", action="store_true", help="write what kernels take as their budgets")
    given = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET=1 is set, under which Triton compiles nothing; unset it")
    from fsm_spec.kernels.triton.resources import TARGETS  # noqa: PLC0415 -- after the environment is judged

    if unknown := set(given.targets) - TARGETS.keys():
        parser.error(f"no target {min(unknown)}; there are {', '.join(TARGETS)}")
    whole = not given.only and not given.targets
    if given.accept and given.budgets != BUDGETS:
        parser.error("--accept writes the committed budgets; leave out --budgets")
    lines = list(compile_all(given.only, given.targets or list(TARGETS)))
    if not lines:
        parser.error(f"no kernel's name holds {' or '.join(given.only)}")
    if given.accept:
        write_budgets(lines, {} if whole else yaml.safe_load(BUDGETS.read_text(encoding="utf-8")))
    budgets = yaml.safe_load(given.budgets.read_text(encoding="utf-8"))
    faults = [judge(line, budgets) for line in lines]
    show(lines, faults)
    over = sum(map(bool, faults))
    print(f"{len(lines)} form{'s' if len(lines) != 1 else ''} compiled, {over} over budget")
    if whole:
        from triton import __version__  # noqa: PLC0415 -- as above

        from fsm_spec.kernels.triton.resources import digest_of_sources  # noqa: PLC0415 -- as above

        found = {
            "triton": __version__,
            "sources": digest_of_sources(),
            "forms": [asdict(line) for line in lines],
        }
        write_result("kernels", found)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
