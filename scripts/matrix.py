"""Write the table of specs and what has been shown of each, from the results of tests and nothing else.

`scripts/test --matrix tests/data/matrix.json` writes the results, `scripts/matrix.py` writes docs/reference/matrix.md
from them, `scripts/matrix.py --check` says whether the page is up to date.
A result counts for the table it was found with: once a spec has changed, its cells read `not run` until tests ran.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fsm_spec.compile import compile_table
from fsm_spec.load import load, shipped

PROJECT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = "tests/data/matrix.json"
PAGE: Final = "docs/reference/matrix.md"
# Kinds of tests, by the marker `shows`, and what passing them says.
KINDS: Final = {
    "valid": "the loader's rules find nothing",
    "checked": "proved for two requests in a small pool, with a host that sees results a round late",
    "simulated": "runs in the simulator, conserving slots and pages; its trace replays, and leads to itself",
    "run": "runs on the CPU: its trace replays, the simulator takes the same steps, company changes no token",
    "greedy-equal": "greedy output is that of `ar` on a random model and on SmolLM2: alone, batched, preempted",
    "exact law": "the law of its output, all random outcomes enumerated on toys, is the target's",
    "kernels compiled": "its kernels compile for four GPU targets without stack or spills; none has run on a GPU",
}
# What a spec must claim for a kind to be asked of it.
CLAIMS: Final = {"greedy-equal": {"greedy", "sampling"}, "exact law": {"sampling"}}
HEAD: Final = """<!-- Written by scripts/matrix.py from tests/data/matrix.json; change neither by hand. -->
# What has been shown of each spec

A cell is made from test results: `passed` with the number of tests, `FAILED`, or `not run`.
`not claimed` stands where a spec itself says that its output law is another one.
Results hold for the table they were found with; a spec that has changed since reads `not run`.

"""


def cell(kind: str, claim: str, digest: str, results: Mapping[str, Any]) -> str:
    """Say in a few words what the tests of one kind found of one spec."""
    if claim not in CLAIMS.get(kind, {claim}):
        return "not claimed"
    found = results.get(kind, {})
    if found.get("table") != digest:
        return "not run"
    if found.get("failed"):
        return "FAILED"
    passed = found.get("passed", 0)
    return f"passed ({passed})" if passed else "not run"


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Give the page of all shipped specs for the results of tests."""
    lines = ["| spec | claims | " + " | ".join(KINDS) + " |", "|---" * (len(KINDS) + 2) + "|"]
    for name in sorted(shipped()):
        spec = load(name).spec
        claim = spec.lossless.claim if spec.lossless else "no"
        digest = compile_table(spec).digest
        cells = [cell(kind, claim, digest, results.get(name, {})) for kind in KINDS]
        lines.append(" | ".join([f"| `{name}`", claim, *cells]) + " |")
    meanings = [f"- **{kind}**: {meaning}." for kind, meaning in KINDS.items()]
    return HEAD + "\n".join([*lines, "", *meanings]) + "\n"


def main() -> int:
    """Write the page, or compare it; exit code 1 where it is out of date."""
    parser = argparse.ArgumentParser(description="Write the table of specs and test results.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    parser.add_argument("--results", type=Path, default=PROJECT / RESULTS, help="the file of test results")
    parser.add_argument("--page", type=Path, default=PROJECT / PAGE, help="the page to write")
    asked = parser.parse_args()
    text = page(json.loads(asked.results.read_text(encoding="utf-8")) if asked.results.exists() else {})
    if asked.page.exists() and asked.page.read_text(encoding="utf-8") == text:
        return 0
    if asked.check:
        print(f"{asked.page.name} is out of date; run scripts/matrix.py")
        return 1
    asked.page.write_text(text, encoding="utf-8")
    print(f"{asked.page.name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
