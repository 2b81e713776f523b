"""Searches over scenarios: the highest load within service levels, the fewest accelerators, tiers, the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import stats

from fsm_spec.errors import UserError
from fsm_spec.simulator.bill import warmed
from fsm_spec.simulator.overload import OVERLOADED
from fsm_spec.simulator.point import Result
from fsm_spec.simulator.scenario import Scenario
from fsm_spec.simulator.slo import Slo
from fsm_spec.simulator.workers import Workers

LOWEST_RATE, HIGHEST_RATE = 1e-3, 1e5  # requests a second
MOST_SEEDS_FACTOR = 3  # times the seeds that were asked for, where a decision hangs in the balance
LEVEL = 0.95
MOST_REPLICAS = 4096
# A load shows only in a run whose arrivals last many times as long as a request takes under it: in a shorter one what
# would fill for ever, places first and then the queue, has not filled yet, and slow swings of the load are not seen.
SPANS, MOST_REQUESTS = 100, 20_000
# The requests that fill an empty machine see less of a load than those after them: they are run and not counted, as
# benchmarks of servers do with requests to warm up. A tenth of the run is ten times as long as a request takes.
WARM_UP = 0.1
# Of the run with another seed that an answer is held to: so many times as long. A bisection takes the best of several
# noisy verdicts, so that what it finds is too high more often than too low.
CHECK = 4


@dataclass(frozen=True)
class Judged:
    """Hold how a load did over several seeds: whether every limit holds, and the interval of each statistic."""

    rate: float
    verdict: str  # holds, broken or undecided
    intervals: dict[str, tuple[float, float, float]]
    """Mean, low and high end at 95 % confidence over seeds, by statistic."""
    errors: tuple[str, ...] = ()
    overloaded: bool = False
    throughput_tok_s_gpu: float = 0.0
    """Mean over seeds."""
    requests: int = 0
    """Of each seed's run, those of its warm-up included."""


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return mean, low and high end of the mean at 95 % confidence (Student's t); one value has no width."""
    mean = float(np.mean(values))
    if len(values) < 2 or not np.isfinite(mean):
        return mean, mean, mean
    half = float(
        stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    )
    return mean, mean - half, mean + half


def judge(rate: float, results: Sequence[Result], slos: Sequence[Slo]) -> Judged:
    """Decide over the seeds of one load; an interval across a limit is undecided, a failed run is no latency."""
    errors = tuple(dict.fromkeys(str(result["error"]) for result in results if result["error"]))
    if errors:
        return Judged(rate, "broken", {}, errors)
    intervals = {slo.name: interval([result[slo.name] for result in results]) for slo in slos}
    over = [any(said.startswith(OVERLOADED) for said in result["verdicts"]) for result in results]
    if sum(over) * 2 > len(results):
        return Judged(rate, "broken", intervals, overloaded=True)
    verdict = "holds"
    for slo in slos:
        _, low, high = intervals[slo.name]
        if low > slo.limit_ms:
            return Judged(rate, "broken", intervals)
        if high > slo.limit_ms:
            verdict = "undecided"
    speed = float(np.mean([result["steady_tok_s_gpu"] for result in results]))
    return Judged(rate, verdict, intervals, throughput_tok_s_gpu=round(speed, 3))


@dataclass
class RateSearch:
    """Find the highest rate of an arrival process at which every limit holds, by bisection.

    `base` is a scenario whose arrivals are `KIND:RATE[...]`. Each load runs with `seeds` seeds, and with more where its
    interval lies across a limit; one that stays undecided counts as broken. With `steady`, a run that holds gets more
    requests than the base has, until its arrivals last `SPANS` times as long as its requests, the first of them do not
    count, and an answer must hold in a longer run with another seed. The answer and the next higher rate that is broken
    differ by at most the share `precision`.
    """

    base: Scenario
    slos: Sequence[Slo]
    workers: Workers
    seeds: int = 3
    precision: float = 0.03
    steady: bool = False
    tried: list[Judged] = field(default_factory=list)
    checked: Judged | None = None
    """The last answer that was held to a longer run."""

    def run(self) -> tuple[float, Judged]:
        """Return the best rate and how it did; raises UserError if no load meets the limits."""
        held: dict[float, Judged] = {}
        high, rate = math.inf, 1.0
        while LOWEST_RATE <= rate <= HIGHEST_RATE:
            found = self.load(rate)
            if found.verdict == "holds":
                held[rate] = found
            else:
                self.refuse_hopeless(found)
                high = rate
            while held and high <= max(held) * (1 + self.precision):
                if self.confirms(held[max(held)]):
                    return max(held), held[max(held)]
                high = max(held)
                del held[high]
            rate = _next(max(held, default=0.0), high)
        if not held:
            raise UserError(self.hopeless())
        return max(held), held[max(held)]

    def load(self, rate: float) -> Judged:
        """Judge one rate, with more seeds while it is undecided."""
        count, requests = self.seeds, self.base.requests or 0
        while True:
            points = [self._at(rate, seed, requests) for seed in range(count)]
            results = self.workers.run(points, self.slos)
            found = replace(judge(rate, results, self.slos), requests=requests)
            if found.verdict != "broken" and (wanted := self._steady(rate, results)) > requests:
                requests = min(MOST_REQUESTS, max(wanted, 2 * requests))
            elif found.verdict != "undecided" or count >= MOST_SEEDS_FACTOR * self.seeds:
                self.tried.append(found)
                return found
            else:
                count += self.seeds

    def confirms(self, found: Judged) -> bool:
        """Say whether a load that holds does so in a longer run, with a seed that judged no load; note one that not."""
        if not self.steady:
            return True
        requests = CHECK * found.requests
        point = self._at(found.rate, MOST_SEEDS_FACTOR * self.seeds, requests)
        longer = judge(found.rate, self.workers.run([point], self.slos), self.slos)
        self.checked = replace(longer, requests=requests)
        if longer.verdict == "holds":
            return True
        self.tried[self.tried.index(found)] = self.checked
        return False

    def _steady(self, rate: float, results: Sequence[Result]) -> int:
        """Give the requests with which arrivals last long enough for those latencies."""
        if not self.steady:
            return 0
        seconds = max(float(result["e2e_ms_mean"]) for result in results) / 1e3
        return min(MOST_REQUESTS, math.ceil(SPANS * rate * seconds))

    def _at(self, rate: float, seed: int, requests: int) -> Scenario:
        kind, _, rest = self.base.arrivals.partition(":")
        tail = rest.partition(":")[2]
        arrivals = ":".join(word for word in (kind, f"{rate:.6g}", tail) if word)
        fields = {"arrivals": arrivals, "seed": self.base.seed + seed, "requests": requests}
        return self.base.model_copy(update=fields | ({"warm_up": WARM_UP} if self.steady else {}))

    def left_out(self, requests: int) -> int:
        """Return how many requests of a run are its warm-up."""
        return warmed(requests, WARM_UP) if self.steady else 0

    def refuse_hopeless(self, found: Judged) -> None:
        """Raise UserError where a run failed for a reason that no other load changes."""
        if found.errors:
            raise UserError(f"{self.base.spec}: {found.errors[0]}")

    def hopeless(self) -> str:
        """Say which limit even the lowest load breaks."""
        last = min(self.tried, key=lambda judged: judged.rate)
        broken = [
            f"{slo.describe()} ({last.intervals[slo.name][0]:.4g} ms at {last.rate:.3g} requests/s)"
            for slo in self.slos
            if last.intervals[slo.name][2] > slo.limit_ms
        ]
        return (
            f"{self.base.spec} on {self.base.hardware}: no load meets {' and '.join(broken) or 'the limits'};"
            " give a larger limit, other hardware or more --tp"
        )


def _next(low: float, high: float) -> float:
    """Give the rate to try between one that holds (0: none does) and one that is broken (infinite: none is)."""
    if low == 0.0:
        return high / 4
    return low * 4 if high == math.inf else math.sqrt(low * high)


def _runs(search: RateSearch, best: Judged) -> dict[str, Any]:
    """Say how long the runs behind an answer are, and what the longer one with another seed had."""
    checked = search.checked
    told: dict[str, Any] = {"requests": best.requests, "warm_up_requests": search.left_out(best.requests)}
    if checked is not None:
        ms = {name: round(ends[0], 3) for name, ends in checked.intervals.items()}
        told["checked"] = {"requests": checked.requests, "ms": ms}
    return told


def max_rate(search: RateSearch) -> dict[str, Any]:
    """Return the highest rate within the limits, its bracket and intervals, and all loads that were tried."""
    rate, best = search.run()
    above = [judged.rate for judged in search.tried if judged.rate > rate]
    return {
        "spec": search.base.spec,
        "hardware": search.base.hardware,
        "tensor_parallel": search.base.tensor_parallel,
        "max_rate_req_s": round(rate, 4),
        "broken_at_req_s": round(min(above), 4) if above else None,
        "seeds": search.seeds,
        **_runs(search, best),
        "throughput_tok_s_gpu": best.throughput_tok_s_gpu,
        "intervals_ms": {name: [round(value, 3) for value in ends] for name, ends in best.intervals.items()},
        "tried": [
            {"rate": round(judged.rate, 4), "verdict": judged.verdict, "overloaded": judged.overloaded}
            for judged in sorted(search.tried, key=lambda judged: judged.rate)
        ],
    }


def min_gpus(search: RateSearch, rate: float) -> dict[str, Any]:
    """Return the fewest replicas that carry a rate; each takes an equal share, of the same kind of arrivals."""
    low, high = 0, 1
    while search.load(rate / high).verdict != "holds":
        search.refuse_hopeless(search.tried[-1])
        low, high = high, high * 2
        if high > MOST_REPLICAS:
            raise UserError(search.hopeless())
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if search.load(rate / middle).verdict == "holds" else (middle, high)
    best = next(judged for judged in reversed(search.tried) if judged.rate == rate / high)
    while not (best.verdict == "holds" and search.confirms(best)):
        high += 1
        best = search.load(rate / high)
    return {
        "spec": search.base.spec,
        "hardware": search.base.hardware,
        "tensor_parallel": search.base.tensor_parallel,
        "replicas": high,
        "gpus": high * search.base.tensor_parallel,
        "rate_a_replica_req_s": round(rate / high, 4),
        **_runs(search, best),
        "throughput_tok_s_gpu": best.throughput_tok_s_gpu,
        "intervals_ms": {name: [round(value, 3) for value in ends] for name, ends in best.intervals.items()},
    }


def front(rows: Iterable[Result], better: Sequence[tuple[str, int]]) -> list[Result]:
    """Return the rows that none beats, that is, equals in all of `better` (name, 1 or -1) and exceeds in one."""
    rows = [row for row in rows if not row["error"] and all(row[name] is not None for name, _ in better)]

    def beats(one: Result, other: Result) -> bool:
        gains = [(one[name] - other[name]) * sign for name, sign in better]
        return bool(min(gains) >= 0 and max(gains) > 0)

    return [row for row in rows if not any(beats(other, row) for other in rows)]


def tiers(rows: Sequence[Result], name: str, better: str) -> list[dict[str, Any]]:
    """Return the best value of a parameter for each number of users, runs of equal ones joined: up to how many users.

    `rows` have `users`, the parameter `name`, and `better` to be as large as possible.
    """
    found: list[dict[str, Any]] = []
    for users in sorted({row["users"] for row in rows}):
        here = [row for row in rows if row["users"] == users and not row["error"]]
        if not here:
            continue
        best = max(here, key=lambda row: (row[better], -row[name]))
        worst_fixed = {row[name]: row[better] for row in here}
        if found and found[-1][name] == best[name]:
            found[-1]["up_to"] = users
        else:
            found.append({"up_to": users, name: best[name]})
        found[-1].setdefault("at", {})[users] = {"best": best[better], "of": worst_fixed}
    return found
