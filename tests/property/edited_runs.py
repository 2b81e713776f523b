"""Edited specs: what loader and checker let pass must run as plain decoding does, with its books of pages right.

`.venv/bin/python tests/property/edited_runs.py SEED COUNT [SPEC ...]` draws so many edits of every spec, and says of
each whether the loader or the checker refuses it; those that are proved run on the toy. One that is proved and gives
other tokens, another law or wrong pages is a fault of the checker.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Final

from exact_run import distance
from hostile_cases import decoding_specs, draw_of
from hostile_runs import run_case
from single_edits import drawn_edits

from fsm_spec.checker.check import Bounds, check
from fsm_spec.compile import compile_table
from fsm_spec.errors import FsmSpecError
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.load import load, loads

RUNS: Final = 6
EXACT: Final = 1e-9
TOKENS: Final = 3
# Some edits make columns that grow for long.
MOST_STATES: Final = 100_000


def judged(text: str) -> str:
    """Say what becomes of an edited spec: at the loader, at the checker, or when it runs."""
    try:
        loaded = loads(text)
        table = compile_table(loaded.spec, check=True, line_of=loaded.line_of)
    except FsmSpecError:
        return "found by the loader"
    try:
        verdict = check(table, Bounds(requests=2, stop_first=True, max_states=MOST_STATES)).verdict
    except FsmSpecError:
        return "refused by the checker"
    if verdict != "proved":
        return f"{verdict} by the checker"
    return f"proved, and {ran(text)}"


def ran(text: str) -> str:
    """Run a spec on drawn cases, and by its exact law if it claims one; says what is wrong."""
    loaded = loads(text)
    for seed in range(RUNS):
        case = draw_of(seed, loaded)
        try:
            if case is not None:
                run_case(case)
        except Exception as error:  # noqa: BLE001 -- whatever goes wrong is what is looked for
            return f"WRONG: {case.describe() if case else ''} {type(error).__name__}: {str(error)[:300]}"
    claim = loaded.spec.lossless
    if claim is not None and claim.claim == "sampling":
        table = compile_table(loaded.spec, check=True, line_of=loaded.line_of)
        try:
            far = distance(table, SamplingParams(1.0), TOKENS)
        except Exception as error:  # noqa: BLE001 -- as above
            return f"WRONG LAW: {type(error).__name__}: {str(error)[:300]}"
        if far > EXACT:
            return f"WRONG LAW: {far}"
    return "right"


def main(seed: int, count: int, names: Sequence[str]) -> int:
    """Judge edits of specs, print those that are proved; gives how many are wrong."""
    verdicts: Counter[str] = Counter()
    wrong = 0
    for name in names:
        for told, text in drawn_edits(load(name).text, count, f"{seed} {name}"):
            verdict = judged(text)
            verdicts[verdict.split(":")[0]] += 1
            if verdict.startswith("proved"):
                print(f"{name}: {told}\n    {verdict}", flush=True)
            wrong += "WRONG" in verdict
    print(dict(verdicts))
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or decoding_specs())))
