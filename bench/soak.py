"""Run the server's fuzz and load tests at the size that CI has no time for, and record that they passed.

Run: `scripts/bench soak`; `python bench/soak.py --examples 1000 --requests 300` is a short trial.
Writes bench/results/soak.json; exit code 1 where a test fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from record import write_result

TESTS = {
    "examples": "tests/server/test_schema.py",
    "requests": "tests/server/test_load.py::test_crowd_of_all_kinds",
}


def main() -> int:
    """Run both and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=10_000, help="bodies made from the OpenAPI document")
    parser.add_argument("--requests", type=int, default=1_000, help="requests of a crowd of all kinds")
    given = vars(parser.parse_args())
    found = {}
    for name, test in TESTS.items():
        started = time.perf_counter()
        # -P: the project's folder stays off the path, as in scripts/test.
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
        environment = os.environ | {f"FSM_SPEC_SOAK_{name.upper()}": str(given[name]), "CI": "true"}
        done = subprocess.run(command, cwd=Path(__file__).parents[1], env=environment, check=False)
        found[name] = {
            "count": given[name],
            "passed": done.returncode == 0,
            "seconds": round(time.perf_counter() - started, 1),
        }
    write_result("soak", found)
    return int(not all(each["passed"] for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
