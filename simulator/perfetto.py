"""A run for the Perfetto viewer (ui.perfetto.dev): a track a request, and counters of what is held over time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fsm_spec.errors import UserError
from fsm_spec.simulator.metrics import UNSET, RequestLog
from fsm_spec.simulator.simulation import Results

REQUESTS, COUNTERS = 1, 2  # process numbers of the two groups of tracks
MOST_TRACKS = 5_000  # requests shown; the viewer takes no more with ease
COUNTED = ("running", "waiting", "pages", "committed", "provisional", "scratch")


def write_perfetto(path: Path, results: Results, name: str) -> None:
    """Write Chrome trace events, which Perfetto reads; raises UserError where that cannot be.

    A request's spans are waiting (arrival to admission), prefill (to the first token) and decode (to the end).
    """
    events = [
        {"ph": "M", "pid": REQUESTS, "name": "process_name", "args": {"name": f"{name}: requests"}},
        {"ph": "M", "pid": COUNTERS, "name": "process_name", "args": {"name": f"{name}: replica"}},
        *_spans(results.log),
        *_levels(results),
    ]
    try:
        path.write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}), encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); give another place with --perfetto"
        ) from error


def _spans(log: RequestLog) -> Iterator[dict[str, Any]]:
    """Yield the spans of the first requests."""
    columns = (log.arrival_ns, log.admitted_ns, log.first_token_ns, log.finish_ns)
    for index, times in enumerate(zip(*(column[:MOST_TRACKS].tolist() for column in columns), strict=True)):
        known = {
            "prompt": int(log.prompt[index]),
            "emitted": int(log.emitted[index]),
            "rounds": int(log.rounds[index]),
            "preemptions": int(log.preemptions[index]),
        }
        names = ("waiting", "prefill", "decode")
        for name, start, end in zip(names, times[:-1], times[1:], strict=True):
            if UNSET in (start, end):
                break
            yield {
                "ph": "X",
                "pid": REQUESTS,
                "tid": log.first + index,
                "name": name,
                "ts": start / 1e3,
                "dur": (end - start) / 1e3,
                "args": known,
            }


def _levels(results: Results) -> Iterator[dict[str, Any]]:
    """Yield the mean of each level in each bucket of the timeline, from its start."""
    line = results.timeline
    starts = [0, *line.edges_ns[:-1]]
    for name in COUNTED:
        for start, value in zip(starts, line.mean_levels(name), strict=False):
            yield {
                "ph": "C",
                "pid": COUNTERS,
                "name": name,
                "ts": start / 1e3,
                "args": {"value": round(value, 3)},
            }
