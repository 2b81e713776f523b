"""What the regimes of `fidelity.py` share: closed loops, and the lines of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fsm_spec.simulator.workload import ON_FINISH, Requests


def closed_loop(concurrency: int, requests: Requests, ramp_s: float) -> Requests:
    """Return the requests as a closed loop whose users start over some time."""
    places = np.arange(len(requests))
    starts = np.rint(places * (ramp_s * 1e9 / concurrency))
    arrival = np.where(places < concurrency, starts, ON_FINISH).astype(np.int64)
    return replace(requests, arrival_ns=arrival, concurrency=concurrency)


def show(title: str, lines: Sequence[str]) -> None:
    """Print a part of the report."""
    print(f"\n{title}")
    for line in lines:
        print(f"  {line}")


def percent(value: float) -> str:
    """Write a share with a sign."""
    return f"{100 * value:+.1f} %"
