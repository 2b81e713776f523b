"""Compute the exact output law of every spec that claims sampling, larger than CI has time for.

All random outcomes of engine and runner on a toy target of four tokens, three of them possible after every text, are
enumerated under drawn targets, sampling parameters and preemption; the law of the output is compared with that of the
target's own text. Run: `scripts/bench exact_law`; `python bench/exact_law.py --specs isd ngram --targets 1` is a trial.
Writes bench/results/exact_law.json; exit code 1 where a law differs by 1e-9 or more.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from record import write_result

from fsm_spec.compile import compile_table
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.load import load, shipped

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "property"))
from exact_run import Preempting, distance

EXACT = 1e-9
PARAMS = {
    "temperature 1": SamplingParams(1.0),
    "temperature 0.7, top_k 3, top_p 0.9": SamplingParams(0.7, 3, 0.9),
    "temperature 1.5, top_p 0.8, min_p 0.3": SamplingParams(1.5, 0, 0.8, 0.3),
}


def main() -> int:
    """Enumerate and write the result."""
    specs = {name: load(path).spec for name, path in sorted(shipped().items())}
    claiming = [name for name, spec in specs.items() if spec.lossless and spec.lossless.claim == "sampling"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--specs", nargs="*", default=claiming, help="specs that claim sampling")
    parser.add_argument("--tokens", type=int, default=4, help="tokens of the output that are compared")
    parser.add_argument("--targets", type=int, default=1, help="targets drawn")
    given = parser.parse_args()
    cases = []
    for name in given.specs:
        table = compile_table(specs[name], check=True)
        # Where masks are filled in passes, every pass draws all of them anew.
        fewer = any(op.op == "unmask" for plan in table.forwards.values() for op in plan.operators)
        started, worst = time.perf_counter(), 0.0
        for seed in range(given.targets):
            for params in PARAMS.values():
                for planner in (None, Preempting()):
                    worst = max(
                        worst,
                        distance(table, params, given.tokens - fewer, 3, seed, planner=planner),
                    )
        cases.append(
            {
                "spec": name, "digest": table.digest, "params": dict(table.params),
                "tokens": given.tokens - fewer, "largest_difference": worst,
                "seconds": round(time.perf_counter() - started, 1),
            }
        )  # fmt: skip
        print(f"{name:24} largest difference {worst:.1e}, {cases[-1]['seconds']:6.1f} s", flush=True)
    about = {
        "targets": given.targets,
        "sampling": list(PARAMS),
        "preemption": "none, and after the first round",
    }
    write_result("exact_law", {**about, "bound": EXACT, "cases": cases})
    return int(any(case["largest_difference"] >= EXACT for case in cases))


if __name__ == "__main__":
    sys.exit(main())
