"""Time the search of the checker beside Spin's on the common model, in one run, and the check of every shipped spec.

Run: `python bench/checker.py path/to/kvpool.pml` (about two minutes; needs spin and gcc). The model that Spin reads is
the common one, with N and POLICY (3: holdback) to be set by -D; without a path Spin reads our own export of it.
Both search all states for safety without reduction, Spin built with -O2 -DNOREDUCE -DSAFETY. Repeats alternate; every
search runs in a process of its own, so that its peak memory is its own. Writes bench/results/checker.json.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from record import write_result

from fsm_spec.checker.automaton import Automaton
from fsm_spec.checker.interleaving import Interleaving
from fsm_spec.checker.packed_actions import ActionsPacking
from fsm_spec.compile import compile_table
from fsm_spec.load import load, shipped
from fsm_spec.policy import Pool
from fsm_spec.policy_file import load_policy
from fsm_spec.promela.export import promela
from fsm_spec.table import Table

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "tests/models/kvpool.yaml"
SPIN = shutil.which("spin") or "spin"
POLICY = "holdback"
PAGE_SIZE = 2
REPEATS = 5
# (requests, symmetry, beside Spin, what is asked for: share of Spin's time and memory, or seconds).
CASES: list[tuple[int, bool, bool, dict[str, float]]] = [
    (4, False, True, {"time_ratio": 1 / 3}),
    (5, False, True, {"time_ratio": 1 / 3, "memory_ratio": 1.0}),
    (6, True, False, {"seconds": 0.5}),
]


def composed(requests: int) -> tuple[Table, Interleaving]:
    """Compose the common model with three pages a request."""
    loaded = load(MODEL)
    table = compile_table(
        loaded.spec, {"b": 2, "l": 4}, check=True, page_size=PAGE_SIZE, line_of=loaded.line_of
    )
    pool = Pool(3 * requests, PAGE_SIZE)
    return table, Interleaving(Automaton(table), load_policy(POLICY), pool, requests, abort=False)


def search(requests: int, *, symmetry: bool) -> dict[str, Any]:
    """Search once in this process; what numba loads or compiles is timed apart, on one request."""
    started = time.perf_counter()
    from fsm_spec.checker.compiled import search_actions  # noqa: PLC0415 - its loading is what is timed

    search_actions(0, *ActionsPacking(composed(1)[1]).model, 1_000)
    compiled = time.perf_counter()
    base = peak_mb()
    packing = ActionsPacking(composed(requests)[1], symmetry=symmetry)
    packed = time.perf_counter()
    states, transitions, levels, *_, complete = search_actions(0, *packing.model, 1 << 40)
    ended = time.perf_counter()
    assert complete
    return {
        "states": len(states),
        "transitions": int(transitions),
        "depth": len(levels) - 1,
        "seconds": ended - packed,
        "pack_seconds": packed - compiled,
        "load_or_compile_seconds": compiled - started,
        "peak_rss_mb": peak_mb(),
        "rss_before_mb": base,
    }


def peak_mb() -> float:
    """Give the most memory this process had so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def ours(requests: int, *, symmetry: bool) -> dict[str, Any]:
    """Search once in a process of its own."""
    command = [sys.executable, __file__, "--search", str(requests), str(int(symmetry))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def build(model: Path, folder: Path, requests: int) -> Path:
    """Build Spin's verifier of a model."""
    flags = [f"-DN={requests}", "-DPOLICY=3"] if model.suffix == ".pml" and model.parent != folder else []
    subprocess.run([SPIN, "-a", *flags, str(model)], cwd=folder, check=True, capture_output=True)
    command = ["/usr/bin/env", "gcc", "-O2", "-w", "-DNOREDUCE", "-DSAFETY", "-o", "pan", "pan.c"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "pan"


def spin(pan: Path) -> dict[str, Any]:
    """Run Spin's verifier once; seconds are its own, from the first state to the last.

    Its default depth of 10,000 is enough here, and a larger one would count as memory.
    """
    log = pan.with_name("pan.log")
    with log.open("w") as output:
        child = subprocess.Popen([str(pan)], stdout=output, stderr=subprocess.STDOUT, cwd=pan.parent)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    text = log.read_text()

    def number(pattern: str) -> float:
        found = re.search(pattern, text)
        assert found, text
        return float(found[1])

    return {
        "states": int(number(r"(\d+) states, stored")),
        "transitions": int(number(r"(\d+) transitions")),
        "errors": int(number(r"errors: (\d+)")),
        "seconds": number(r"elapsed time ([\d.e+-]+) seconds"),
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_rss_mb": usage.ru_maxrss / 1024,
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Give counts, which all runs share, medians of the rest, and all times."""
    found: dict[str, Any] = {}
    for name, first in runs[0].items():
        values = [run[name] for run in runs]
        if isinstance(first, int):
            assert len(set(values)) == 1, (name, values)
            found[name] = first
        else:
            found[name] = round(median(values), 4)
    found["all_seconds"] = [round(run["seconds"], 4) for run in runs]
    found["states_a_second"] = round(found["states"] / found["seconds"])
    return found


def compare(requests: int, *, symmetry: bool, model: Path | None, beside: bool) -> dict[str, Any]:
    """Measure one case, ours and Spin's in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pan = None
        if beside:
            if model is None:
                model = folder / "model.pml"
                model.write_text(promela(composed(requests)[1]))
            pan = build(model, folder, requests)
        mine, theirs = [], []
        for _ in range(REPEATS):
            mine.append(ours(requests, symmetry=symmetry))
            if pan is not None:
                theirs.append(spin(pan))
    case: dict[str, Any] = {"requests": requests, "symmetry": symmetry, "ours": summary(mine)}
    if theirs:
        case["spin"] = summary(theirs)
        # Spin counts the way into the start state as a transition.
        assert case["spin"]["states"] == case["ours"]["states"]
        assert case["spin"]["transitions"] == case["ours"]["transitions"] + 1
        case["time_ratio"] = round(case["ours"]["seconds"] / case["spin"]["seconds"], 3)
        case["memory_ratio"] = round(case["ours"]["peak_rss_mb"] / case["spin"]["peak_rss_mb"], 3)
    return case


def judged(case: dict[str, Any], targets: dict[str, float]) -> dict[str, Any]:
    """Say of each target whether it is met."""
    measured = {**case, "seconds": case["ours"]["seconds"]}
    return {
        name: {"at_most": round(most, 3), "met": measured[name] <= most} for name, most in targets.items()
    }


def check(spec: str) -> dict[str, Any]:
    """Check a shipped spec as `fsm-spec check` does, in a process of its own."""
    program = ROOT / ".venv/bin/fsm-spec"
    started = time.perf_counter()
    done = subprocess.run(
        [str(program), "check", spec, "--json"], capture_output=True, text=True, check=False
    )
    wall = time.perf_counter() - started
    found = json.loads(done.stdout)
    found = found[0] if isinstance(found, list) else found
    names = (
        "digest",
        "verdict",
        "states",
        "transitions",
        "depth",
        "seconds",
        "liveness_seconds",
        "compile_seconds",
    )
    return {
        "spec": spec,
        **{name: found[name] for name in names if name in found},
        "wall_seconds": round(wall, 2),
    }


def spin_version() -> str:
    """Name the version of Spin."""
    return subprocess.run([SPIN, "-V"], capture_output=True, text=True, check=True).stdout.strip()


def main(arguments: list[str]) -> None:
    """Measure everything, print a line each, and write the result."""
    model = Path(arguments[0]).resolve() if arguments else None
    cases = []
    for requests, symmetry, beside, targets in CASES:
        case = compare(requests, symmetry=symmetry, model=model, beside=beside)
        case["targets"] = judged(case, targets)
        cases.append(case)
        ratios = (
            f", {case['time_ratio']:.2f} of Spin's time, {case['memory_ratio']:.2f} of its memory"
            if beside
            else ""
        )
        mine = case["ours"]
        print(
            f"N={requests} symmetry={symmetry}: {mine['states']:,} states in {mine['seconds']:.3f} s{ratios}"
        )
    specs = [check(name) for name in shipped()]
    for each in specs:
        print(
            f"{each['spec']}: {each.get('verdict')}, {each.get('states'):,} states, {each['wall_seconds']} s in all"
        )
    result = {
        "model": "the common model, holdback, three pages of two slots a request",
        "digest": composed(1)[0].digest,
        "spin": spin_version(),
        "spin_reads": model.name if model else "our export",
        "repeats": REPEATS,
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "cases": cases,
        "specs": specs,
    }
    write_result("checker", result)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--search"]:
        print(json.dumps(search(int(sys.argv[2]), symmetry=bool(int(sys.argv[3])))))
    else:
        main(sys.argv[1:])
