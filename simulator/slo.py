"""Service levels as limits on latencies of a run: `ttft_p95=500ms`, `tpot_p95=20ms`, `e2e_mean=10s`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fsm_spec.errors import UserError
from fsm_spec.language.findings import closest, quoted
from fsm_spec.simulator.metrics import UNSET, Latency, RequestLog, Summary

METRICS = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2e": "e2e_ms"}
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
UNITS = {"ms": 1.0, "s": 1000.0, "us": 0.001}
FORM = "ttft_p95=500ms, tpot_mean=20ms or e2e_p99=10s"
SHORT = re.compile(r"^(ttft|tpot|e2e):([0-9.]+)$")
NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+) ?(ms|s|us)?")


@dataclass(frozen=True)
class Slo:
    """Hold one limit: a statistic of a latency may be at most `limit_ms`."""

    metric: str
    statistic: str
    limit_ms: float

    def value_ms(self, summary: Summary) -> float:
        """Return what a run had; infinite where no request got that far."""
        latency: Latency = getattr(summary, METRICS[self.metric])
        return float(getattr(latency, self.statistic)) if latency.count else float("inf")

    @property
    def name(self) -> str:
        """Return the name of what is limited."""
        return f"{self.metric}_{self.statistic}"

    @property
    def title(self) -> str:
        """Return what a reader of a report calls it."""
        return f"{self.metric.upper() if self.metric != 'e2e' else 'end-to-end'} {self.statistic}"

    def describe(self) -> str:
        """Return the option that gives this limit."""
        return f"{self.name}={self.limit_ms:g}ms"


def parse_slos(texts: Sequence[str]) -> tuple[Slo, ...]:
    """Read limits; raises UserError with the right form, or for two limits of one statistic."""
    found: dict[str, Slo] = {}
    for text in texts:
        slo = _parse(text)
        if slo.name in found:
            raise UserError(f"--slo {slo.name} is given twice; give one limit")
        found[slo.name] = slo
    return tuple(found.values())


def spelled_out(texts: Sequence[str]) -> list[str]:
    """Part lists at commas, and write `ttft:200` (milliseconds), as benchmarks of servers do, in our own form."""
    parts = [part.strip() for text in texts for part in text.split(",")]
    return [SHORT.sub(r"\1_max=\2ms", part) for part in parts]


def _parse(text: str) -> Slo:
    """Read one limit; raises UserError that says which part of it is wrong."""
    name, equals, value = text.strip().partition("=")
    metric, _, statistic = name.partition("_")
    if not equals:
        raise UserError(f'--slo "{text}" is no NAME=LIMIT; write {FORM}')
    if metric not in METRICS or statistic not in STATISTICS:
        known = [f"{each}_{one}" for each in METRICS for one in STATISTICS]
        match = closest(name, known)
        meant = f'; did you mean "{match}"?' if match else f"; write {FORM}"
        raise UserError(f'--slo "{text}": {quoted(name)} is no latency that a limit can be on{meant}')
    found = NUMBER.fullmatch(value.strip())
    if found is None:
        raise UserError(f'--slo "{text}": {quoted(value)} is no number with a unit; write {FORM}')
    if not found[2]:
        raise UserError(f'--slo "{text}" has no unit; write {name}={found[1]}ms, or s or us')
    limit = float(found[1]) * UNITS[found[2]]
    if limit <= 0:
        raise UserError(f'--slo "{text}" is no limit above 0; write {FORM}')
    return Slo(metric, statistic, limit)


def goodput(log: RequestLog, slos: Sequence[Slo], seconds: float) -> float:
    """Return requests a second that kept every limit."""
    return kept(log, slos) / seconds if seconds > 0 else 0.0


def kept(log: RequestLog, slos: Sequence[Slo]) -> int:
    """Count requests that finished within every limit, each read as one of that request's own latency."""
    done = log.finished & (log.arrival_ns >= 0) & (log.first_token_ns != UNSET)
    tokens = np.maximum(1, log.emitted - 1)
    own = {
        "ttft": (log.first_token_ns - log.arrival_ns) / 1e6,
        "tpot": (log.finish_ns - log.first_token_ns) / tokens / 1e6,
        "e2e": (log.finish_ns - log.arrival_ns) / 1e6,
    }
    good = done.copy()
    for slo in slos:
        good &= own[slo.metric] <= slo.limit_ms
    return int(good.sum())
