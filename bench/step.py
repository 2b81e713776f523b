"""Time one event of `step` for 1, 32 and 256 requests on numpy, beside the cost of numpy calls alone (its floor).

Run: `scripts/bench step`. Writes bench/results/step.json.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from record import write_result

from fsm_spec.compile import compile_table
from fsm_spec.load import find, load
from fsm_spec.step import source_text, step
from fsm_spec.table import NO_STOP, Table

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 4_000
REPEATS = 9


def best_us(run: Callable[[], Any]) -> float:
    """Give the least time of a call over several repeats, in microseconds."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(CALLS):
            run()
        best = min(best, time.perf_counter() - start)
    return best / CALLS * 1e6


def requests(table: Table, event: str, count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make columns and arguments of so many requests in the state whose forward completes."""
    values = {"state": table.codes[event], "prompt": 10, "limit": 1_000, "emitted": 5, "kv": 14}
    columns = {name: np.full(count, values.get(name, 0), np.int32) for name in table.column_names}
    args = {arg.name: np.full(count, 1, np.int32) for arg in table.events[event].args}
    return columns, {**args, "stop": np.full(count, NO_STOP, np.int32)}


def main() -> None:
    """Measure the verify event of each shipped spec that has one."""
    rows = []
    for name in ("ar", "ngram", "isd", "linear_spec", "uno_linear"):
        table = compile_table(load(find(name)).spec)
        event = [event.name for event in table.events.values() if event.emits and event.name in table.codes][
            -1
        ]
        calls = source_text(table, event).count("\n    t")
        for count in (1, 32, 256):
            columns, args = requests(table, event, count)
            taken = best_us(partial(step, table, columns, event, args, np))
            floor = calls * best_us(partial(np.add, columns["kv"], columns["emitted"]))
            rows.append(
                {
                    "spec": name,
                    "event": event,
                    "digest": table.digest,
                    "requests": count,
                    "step_us": round(taken, 2),
                    "array_operations": calls,
                    "floor_us": round(floor, 2),
                    "ratio_to_floor": round(taken / floor, 2),
                    "limit_us": {1: 10, 32: 15, 256: 40}[count],
                }
            )
            print(f"{name:12} {event:8} {count:4} requests  {taken:6.2f} us  floor {floor:6.2f} us")
    write_result("step", {"rows": rows})


if __name__ == "__main__":
    main()
