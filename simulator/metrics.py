"""What a run measured: columns of its requests, and the summary that is printed and written.

Inside, time is integer nanoseconds. Nothing here may vary between two runs of one seed: wall-clock time,
memory, machine and paths belong under the key `run` of a result, which the command writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fsm_spec.plan import KINDS
from fsm_spec.simulator import roofline
from fsm_spec.simulator.sketch import MOST_EXACT, Sketch
from fsm_spec.simulator.timeline import Timeline
from fsm_spec.simulator.workload import Requests
from fsm_spec.table import END, Table

UNSET = -1  # a time that has not come
QUANTILES = (50, 90, 95, 99)
LEVELS = ("pages", *KINDS, "running", "waiting")  # pages in use, KV slots by kind, requests
BOUNDS = (
    "compute",
    "memory",
    "latency",
)  # what binds a launch: operations, bytes, starts and shortest kernels
AMOUNTS = ("tokens", *BOUNDS)  # emitted tokens, nanoseconds of launches by what binds them

Integers = NDArray[np.int64]


@dataclass
class RequestLog:
    """Hold one row a request, int64 [requests] each; the loop writes the columns, also by index arrays.

    Row 0 is request number `first`. `emitted` counts every token that the user got, `prefill_emitted` those of
    them that a prefill emitted. `rounds` are decode rounds; `forwards` are target-model forwards of those rounds
    (a draft by the target counts). `accepted` and `drafted` count judged drafts. Times are UNSET until they come.
    """

    arrival_ns: Integers
    prompt: Integers
    first: int = 0
    admitted_ns: Integers = field(init=False)
    first_token_ns: Integers = field(init=False)
    finish_ns: Integers = field(init=False)
    emitted: Integers = field(init=False)
    prefill_emitted: Integers = field(init=False)
    rounds: Integers = field(init=False)
    forwards: Integers = field(init=False)
    preemptions: Integers = field(init=False)
    accepted: Integers = field(init=False)
    drafted: Integers = field(init=False)

    def __post_init__(self) -> None:
        """Start with zero counts and no times."""
        count = len(self.arrival_ns)
        for name in ("admitted_ns", "first_token_ns", "finish_ns"):
            setattr(self, name, np.full(count, UNSET, dtype=np.int64))
        for name in (
            "emitted",
            "prefill_emitted",
            "rounds",
            "forwards",
            "preemptions",
            "accepted",
            "drafted",
        ):
            setattr(self, name, np.zeros(count, dtype=np.int64))

    @classmethod
    def of(cls, requests: Requests) -> RequestLog:
        """Return an empty log of a workload's requests."""
        return cls(requests.arrival_ns.copy(), requests.prompt_tokens.copy())

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Say which requests finished."""
        return np.asarray(self.finish_ns != UNSET)


def bound_shares(line: Timeline) -> dict[str, list[float]]:
    """Return, by bucket, the shares of the time of launches that ended there by what binds them; 0 where none did."""
    spent = {name: line.rates(name) for name in BOUNDS if name in line.amounts}
    totals = [sum(column) for column in zip(*spent.values(), strict=True)]
    return {
        name: [value / total if total else 0.0 for value, total in zip(values, totals, strict=True)]
        for name, values in spent.items()
    }


@dataclass(frozen=True)
class Latency:
    """Summarise times of many requests, in milliseconds; all 0 and count 0 where there are none."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, times_ns: NDArray[np.generic]) -> Latency:
        """Return mean, percentiles (interpolated) and maximum of times in nanoseconds."""
        sketch = Sketch(len(times_ns))
        sketch.add(np.asarray(times_ns, dtype=np.float64))
        return cls.read(sketch)

    @classmethod
    def read(cls, sketch: Sketch) -> Latency:
        """Return what a sketch of nanoseconds says."""
        if not sketch.count:
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        p50, p90, p95, p99 = (value / 1e6 for value in sketch.percentiles(QUANTILES))
        return cls(sketch.count, sketch.mean() / 1e6, p50, p90, p95, p99, sketch.largest() / 1e6)

    def to_dict(self) -> dict[str, int | float]:
        """Return the numbers under their names, rounded to nanoseconds."""
        numbers = ("mean", "p50", "p90", "p95", "p99", "max")
        return {"count": self.count, **{name: round(getattr(self, name), 6) for name in numbers}}


@dataclass(frozen=True)
class KvUse:
    """Summarise KV pool use over time; slots are token positions, time-weighted means."""

    pages: int
    page_size: int
    mean_pages: float
    peak_pages: int
    mean_slots: dict[str, float]
    peak_slots: dict[str, int]
    tiers: dict[int, dict[str, float]] = field(default_factory=dict)
    """By a tier's size: what its rounds held, as shares of the run's means, and how much of it was empty."""

    @property
    def unused_share(self) -> float:
        """Return the share of the reserved slots that hold nothing: ends of pages, and room for drafts to come."""
        return unused(self.mean_pages * self.page_size, sum(self.mean_slots.values()))

    @classmethod
    def of(
        cls,
        timeline: Timeline,
        pages: int,
        page_size: int,
        tiers: Mapping[int, Sequence[int]] | None = None,
    ) -> KvUse:
        """Read a timeline with the levels `pages` (in use) and slots by kind; `tiers` are integrals of LEVELS."""
        kinds = [name for name in KINDS if name in timeline.levels]
        return cls(
            pages,
            page_size,
            timeline.mean("pages"),
            timeline.peak("pages"),
            {kind: timeline.mean(kind) for kind in kinds},
            {kind: timeline.peak(kind) for kind in kinds},
            {
                size: _tier(totals, timeline.now_ns, page_size)
                for size, totals in sorted((tiers or {}).items())
            },
        )

    def to_dict(self) -> dict[str, object]:
        """Return the numbers under their names; shares are of the pool."""
        return {
            "pages": self.pages,
            "page_size": self.page_size,
            "mean_pages": round(self.mean_pages, 6),
            "peak_pages": self.peak_pages,
            "mean_share": round(self.mean_pages / self.pages, 6),
            "peak_share": round(self.peak_pages / self.pages, 6),
            "mean_slots": {kind: round(value, 6) for kind, value in self.mean_slots.items()},
            "peak_slots": dict(self.peak_slots),
            "unused_share": round(self.unused_share, 6),
            "tiers": {str(size): dict(use) for size, use in self.tiers.items()},
        }


def unused(reserved: float, used: float) -> float:
    """Return the share of reserved slots that hold nothing."""
    return max(0.0, 1 - used / reserved) if reserved > 0 else 0.0


def add_tier(tiers: dict[int, list[int]], size: int, totals: Sequence[int], before: Sequence[int]) -> None:
    """Add to a tier what the levels' integrals grew by; `before` are those at the last change of tier."""
    known = tiers.setdefault(size, [0] * len(LEVELS))
    tiers[size] = [have + now - then for have, now, then in zip(known, totals, before, strict=True)]


def _tier(totals: Sequence[int], span_ns: int, page_size: int) -> dict[str, float]:
    """Return what one tier held, as means over the whole run, and the share of its reserved slots that hold nothing."""
    held = dict(zip(LEVELS, totals, strict=True))
    used = sum(held[kind] for kind in KINDS)
    return {
        "mean_pages": round(held["pages"] / span_ns, 6) if span_ns else 0.0,
        "mean_running": round(held["running"] / span_ns, 6) if span_ns else 0.0,
        "unused_share": round(unused(held["pages"] * page_size, used), 6),
    }


@dataclass(frozen=True)
class Usage:
    """Say what the accelerator was busy with, and in which states requests spent their time.

    `parts` is float64 [parts, COLUMNS], a row a part of `roofline.PARTS`: nanoseconds bound by compute, by memory and
    by starts and shortest kernels, operations, and compulsory bytes. `dwell_ns` sums over requests, by state.
    """

    busy_ns: int
    parts: NDArray[np.float64]
    dwell_ns: dict[str, int]

    @classmethod
    def of(cls, table: Table, busy_ns: int, parts: NDArray[np.float64], dwell_ns: Sequence[int]) -> Usage:
        """Name the states of what was counted by code; after its end a request spends no time."""
        names = [state.name for state in table.states]
        dwell = {name: ns for name, ns in zip(names, dwell_ns, strict=True) if name != END}
        return cls(busy_ns, parts, dwell)

    def to_dict(self) -> dict[str, object]:
        """Return the numbers under their names."""
        bounds = self.parts[:, : roofline.FLOPS].sum(axis=0) / 1e9
        return {
            "busy_s": round(self.busy_ns / 1e9, 9),
            "bound_s": {
                name: round(float(bounds[place]), 6)
                for name, place in (
                    ("compute", roofline.COMPUTE_NS),
                    ("memory", roofline.MEMORY_NS),
                    ("latency", roofline.FLOOR_NS),
                )
            },
            "part_s": {
                name: round(float(row[: roofline.FLOPS].sum()) / 1e9, 6)
                for name, row in zip(roofline.PARTS, self.parts, strict=True)
            },
            "flops": float(self.parts[:, roofline.FLOPS].sum()),
            "bytes": float(self.parts[:, roofline.BYTES].sum()),
            "dwell_s": {name: round(ns / 1e9, 6) for name, ns in self.dwell_ns.items()},
        }


@dataclass(frozen=True)
class Summary:
    """Hold the results of one scenario; throughput runs from the first arrival to the end."""

    requests: int
    finished: int
    rounds: int
    duration_s: float
    throughput_tok_s: float
    throughput_req_s: float
    ttft_ms: Latency
    tpot_ms: Latency
    e2e_ms: Latency
    per_token_ms: Latency
    """End-to-end time over emitted tokens, by request: vLLM's normalised latency (SOSP 2023, section 6)."""
    emitted_tokens: int
    acceptance_length: float | None
    """Emitted tokens a decode round (the prefill's own token left out); none without rounds."""
    tokens_per_forward: float | None
    """Emitted tokens a target-model forward of the decode rounds; none without rounds."""
    drafted: int
    accepted: int
    preemptions: int
    kv: KvUse | None

    @property
    def user_tok_s(self) -> float | None:
        """Return the tokens a second that the median user sees, over the whole time of a request.

        1 / TPOT leaves out the time to the first token, and all tokens but one that come with it: a block at once.
        """
        return 1e3 / self.per_token_ms.p50 if self.per_token_ms.count and self.per_token_ms.p50 else None

    def to_dict(self) -> dict[str, object]:
        """Return the results under their names, always in this order."""
        return {
            "requests": self.requests,
            "finished": self.finished,
            "rounds": self.rounds,
            "duration_s": round(self.duration_s, 9),
            "throughput_tok_s": round(self.throughput_tok_s, 6),
            "throughput_req_s": round(self.throughput_req_s, 6),
            "ttft_ms": self.ttft_ms.to_dict(),
            "tpot_ms": self.tpot_ms.to_dict(),
            "e2e_ms": self.e2e_ms.to_dict(),
            "per_token_ms": self.per_token_ms.to_dict(),
            "emitted_tokens": self.emitted_tokens,
            "acceptance_length": None if self.acceptance_length is None else round(self.acceptance_length, 6),
            "tokens_per_forward": None
            if self.tokens_per_forward is None
            else round(self.tokens_per_forward, 6),
            "drafts": {
                "drafted": self.drafted,
                "accepted": self.accepted,
                "wasted": self.drafted - self.accepted,
                "acceptance_rate": round(self.accepted / self.drafted, 6) if self.drafted else None,
            },
            "preemptions": self.preemptions,
            "kv": None if self.kv is None else self.kv.to_dict(),
        }


COUNTS = (
    "emitted",
    "prefill_emitted",
    "rounds",
    "forwards",
    "preemptions",
    "accepted",
    "drafted",
)


class Tally:
    """Add up requests as they finish, in the order of their numbers; latencies go to sketches.

    TTFT counts requests that got a token, end-to-end those that finished; TPOT = (last - first) / (n - 1)
    those that finished with two tokens or more. Requests of a closed loop that never started have no arrival
    and do not count.
    """

    def __init__(self, most_exact: int = MOST_EXACT) -> None:
        self._requests = self._finished = 0
        self._start_ns: int | None = None
        self._counts = dict.fromkeys(COUNTS, 0)
        self._ttft, self._tpot, self._e2e, self._per_token = (Sketch(most_exact) for _ in range(4))

    @property
    def exact(self) -> bool:
        """Tell whether percentiles are exact; else they are within `sketch.ACCURACY`."""
        return all(sketch.exact for sketch in (self._ttft, self._tpot, self._e2e, self._per_token))

    def add(self, log: RequestLog) -> None:
        """Add the requests of a log."""
        started = log.arrival_ns >= 0
        begun = started & (log.first_token_ns != UNSET)
        done = started & log.finished
        several = done & (log.emitted > 1)
        if started.any():
            first = int(log.arrival_ns[started].min())
            self._start_ns = first if self._start_ns is None else min(self._start_ns, first)
        self._requests += int(started.sum())
        self._finished += int(done.sum())
        for name in COUNTS:
            self._counts[name] += int(getattr(log, name).sum())
        window = (log.finish_ns - log.first_token_ns)[several]
        self._ttft.add((log.first_token_ns[begun] - log.arrival_ns[begun]).astype(np.float64))
        self._tpot.add(window / (log.emitted[several] - 1))
        whole = (log.finish_ns - log.arrival_ns).astype(np.float64)
        self._e2e.add(whole[done])
        some = done & (log.emitted > 0)
        self._per_token.add(whole[some] / log.emitted[some])

    def summary(self, end_ns: int, kv: KvUse | None = None) -> Summary:
        """Return the summary of a run that ended at `end_ns`."""
        seconds = (end_ns - (self._start_ns or 0)) / 1e9
        counts = self._counts
        decoded = counts["emitted"] - counts["prefill_emitted"]
        rounds, forwards = counts["rounds"], counts["forwards"]
        return Summary(
            requests=self._requests,
            finished=self._finished,
            rounds=rounds,
            duration_s=seconds,
            throughput_tok_s=counts["emitted"] / seconds if seconds > 0 else 0.0,
            throughput_req_s=self._finished / seconds if seconds > 0 else 0.0,
            ttft_ms=Latency.read(self._ttft),
            tpot_ms=Latency.read(self._tpot),
            e2e_ms=Latency.read(self._e2e),
            per_token_ms=Latency.read(self._per_token),
            emitted_tokens=counts["emitted"],
            acceptance_length=decoded / rounds if rounds else None,
            tokens_per_forward=decoded / forwards if forwards else None,
            drafted=counts["drafted"],
            accepted=counts["accepted"],
            preemptions=counts["preemptions"],
            kv=kv,
        )


def summarise(log: RequestLog, end_ns: int, kv: KvUse | None = None) -> Summary:
    """Return the summary of a run that ended at `end_ns`, of a log that holds all its requests."""
    tally = Tally(max(MOST_EXACT, len(log.emitted)))
    tally.add(log)
    return tally.summary(end_ns, kv)
