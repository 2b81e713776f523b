"""Time the start of `fsm-spec generate` with a fetched model: process start to first token, beyond `import torch`.

Run: `scripts/bench start`. Five processes, median given. Writes bench/results/start.json.
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median

from record import write_result

RUNS = 5
PROGRAM = """
import sys, time
import torch
started = time.perf_counter()
from fsm_spec.cli import application
try:
    application()(["generate", "ngram", "--prompt", "Hi there, who are you?", "--max-tokens", "1", "--json"])
finally:
    print(time.perf_counter() - started, file=sys.stderr)
"""


def main() -> None:
    """Start five processes and write the median."""
    seconds = []
    for _ in range(RUNS):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
        seconds.append(float(done.stderr.split()[-1]))
    print(f"first token after {median(seconds):.2f} s beyond import torch (median of {RUNS})")
    write_result("start", {"runs": RUNS, "median_s": median(seconds), "seconds": seconds})


if __name__ == "__main__":
    main()
