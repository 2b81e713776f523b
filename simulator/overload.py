"""Whether requests of an open loop arrive faster than they are served, and what a run that is full is full of.

A closed loop cannot be overloaded: its users wait. It can be saturated: more of them wait longer, and no more is done.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fsm_spec.simulator.timeline import Timeline

# Load counts as too much when requests of the last third wait twice as long for admission as those of the first,
# and more of them wait when the last one arrives than this many, and than this share of all.
GROWTH, WAITING, SHARE = 2.0, 8, 0.02

# A run counts as full of pages or places where they are taken to these shares on average while a request waits.
PAGES_FULL, PLACES_FULL = 0.85, 0.9
OVERLOADED = "overloaded"

Integers = NDArray[np.int64]


class Overload:
    """Watch how long the requests of a run wait for admission; `arrival_ns` are those of all requests."""

    def __init__(self, arrival_ns: Integers, *, closed: bool) -> None:
        self._count = len(arrival_ns)
        self._closed = closed or self._count < 3
        self._first_ns, self._last_ns = (int(arrival_ns[0]), int(arrival_ns[-1])) if self._count else (0, 0)
        self._waits_ns = [0, 0]
        self._behind = 0
        self._taken_ns = 0

    def add(self, first: int, arrival_ns: Integers, admitted_ns: Integers, finish_ns: Integers) -> None:
        """Watch some requests, of which the first is number `first`."""
        if self._closed:
            return
        third = self._count // 3
        waits = admitted_ns - arrival_ns
        self._waits_ns[0] += int(waits[: max(0, third - first)].sum())
        self._waits_ns[1] += int(waits[max(0, self._count - third - first) :].sum())
        self._behind += int((admitted_ns > self._last_ns).sum())
        self._taken_ns += int((finish_ns - arrival_ns).sum())

    def verdicts(self) -> tuple[str, ...]:
        """Say in words that the load is too much; nothing where it is not."""
        count, behind = self._count, self._behind
        if self._closed:
            return ()
        first, last = (total / 1e9 / (count // 3) for total in self._waits_ns)
        span, taken = (self._last_ns - self._first_ns) / 1e9, self._taken_ns / count / 1e9
        if behind <= max(WAITING, SHARE * count) or last < GROWTH * first:
            # Places fill before anybody waits for one.
            short = (
                f"too short to tell: requests arrive for {span:.3g} s and take {taken:.3g} s each, so more than can be"
                " served would not show; give more --requests"
            )
            return (short,) if span < taken else ()
        served = (count - behind) / span if span > 0 else 0.0
        rate = count / span if span > 0 else float("inf")
        message = (
            f"{OVERLOADED}: requests arrive at {rate:.3g}/s and are admitted at {served:.3g}/s; those of the last third"
            f" wait {last:.3g} s for admission, those of the first {first:.3g} s; latencies grow with the length of the"
            f" run"
        )
        return (message,)


def saturation(timeline: Timeline, pages: int, places: int) -> tuple[str, ...]:
    """Say in words what requests wait for on average, pages of the pool or places to run; nothing where none does."""
    waiting, running = timeline.mean("waiting"), timeline.mean("running")
    if waiting < 1:
        return ()
    share = timeline.mean("pages") / pages
    if running >= PLACES_FULL * places:
        what = f"{running:.3g} of {places} places are taken; raise --max-running"
    elif share >= PAGES_FULL:
        what = f"{100 * share:.0f} % of the KV pages are taken; take more memory or a smaller --kv-dtype"
    else:
        return ()
    return (f"saturated: {waiting:.3g} requests wait on average, and {what}, or send less",)
