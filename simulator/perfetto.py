"""A run for the Perfetto viewer (ui.perfetto.dev): a track a request, and counters of what is held over time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fsm_spec.simulator.metrics import UNSET, RequestLog
from fsm_spec.simulator.rounds import RoundLog
from fsm_spec.simulator.simulation import Results
from fsm_spec.writing import writing

REQUESTS, COUNTERS, ITERATIONS = 1, 2, 3  # process numbers of the groups of tracks
MOST_TRACKS = 5_000  # requests shown; the viewer takes no more with ease
COUNTED = ("running", "waiting", "pages", "committed", "provisional", "scratch")


def write_perfetto(path: Path, results: Results, name: str, rounds: RoundLog | None = None) -> None:
    """Write Chrome trace events, which Perfetto reads; raises UserError where that cannot be.

    A request's spans are waiting (arrival to admission), prefill (to the first token) and decode (to the end); within
    them stand its rounds and chunks, and on a track of its own every iteration with its launches, where `rounds` has
    them.
    """
    events = [
        {"ph": "M", "pid": REQUESTS, "name": "process_name", "args": {"name": f"{name}: requests"}},
        {"ph": "M", "pid": COUNTERS, "name": "process_name", "args": {"name": f"{name}: replica"}},
        *_spans(results.log),
        *(_rounds(rounds, name) if rounds is not None else ()),
        *_levels(results),
    ]
    with writing(path, "--perfetto"):
        path.write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}), encoding="utf-8")


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
            yield _slice(REQUESTS, log.first + index, name, start, end, known)


def _rounds(rounds: RoundLog, name: str) -> Iterator[dict[str, Any]]:
    """Yield iterations with their launches, and what each request did in each."""
    left_out = (
        "" if rounds.until_ns is None else f" (rounds from {rounds.until_ns / 1e9:.3f} s on are left out)"
    )
    yield {
        "ph": "M",
        "pid": ITERATIONS,
        "name": "process_name",
        "args": {"name": f"{name}: iterations{left_out}"},
    }
    for number, (start, end, launches) in enumerate(rounds.iterations):
        yield _slice(ITERATIONS, 0, f"iteration {number}", start, end, {"launches": len(launches)})
        for launch in launches:
            words = [f"{state} x{count}" for state, count in launch.states.items()]
            words += [f"prefill {launch.chunk_tokens}"] if launch.chunk_tokens else []
            known = {**launch.states, "prefill tokens": launch.chunk_tokens, "rows": launch.rows}
            yield _slice(ITERATIONS, 0, " + ".join(words), launch.start_ns, launch.end_ns, known)
    for turn in rounds.turns:
        if turn.request >= MOST_TRACKS:
            continue
        title = " > ".join(turn.states) or f"chunk of {turn.chunk_tokens}"
        yield _slice(REQUESTS, turn.request, title, turn.start_ns, turn.end_ns, {"emitted": turn.emitted})


def _slice(
    process: int, track: int, name: str, start_ns: int, end_ns: int, known: dict[str, Any]
) -> dict[str, Any]:
    """Return one span of a track."""
    span = {"ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3}
    return {"ph": "X", "pid": process, "tid": track, "name": name, **span, "args": known}


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
