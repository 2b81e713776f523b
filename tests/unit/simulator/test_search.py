"""Searches: bisection with confidence, fewest replicas, tiers, fronts, limits; over made-up results, without runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fsm_spec.errors import UserError
from fsm_spec.simulator.hardware import load_hardware
from fsm_spec.simulator.metrics import RequestLog
from fsm_spec.simulator.money import energy_joules, price_per_million
from fsm_spec.simulator.scenario import Scenario
from fsm_spec.simulator.search import RateSearch, front, interval, judge, max_rate, min_gpus, tiers
from fsm_spec.simulator.slo import Slo, goodput, parse_slos, spelled_out
from fsm_spec.simulator.workers import Workers

BASE = Scenario(spec="ar", model="m", hardware="h", arrivals="gamma:1:cv=2", requests=10)
SLOS = parse_slos(["ttft_p95=100ms"])


@dataclass
class Queue(Workers):
    """Give each run the waiting time of a queue that serves `capacity` requests a second, with noise by seed."""

    capacity: float = 8.0
    noise: float = 0.0
    runs: list[str] = field(default_factory=list)

    def run(self, scenarios: Sequence[Scenario], slos: Sequence[Slo] = ()) -> list[dict[str, Any]]:
        """Answer without a simulation."""
        results = []
        for each in scenarios:
            rate = float(each.arrivals.split(":")[1])
            self.runs.append(each.arrivals)
            wait = 1e9 if rate >= self.capacity else 10 / (1 - rate / self.capacity)
            latency = wait * (1 + self.noise * (each.seed % 3 - 1))
            speed = 16 * min(rate, self.capacity)
            results.append({"error": "", "verdicts": [], slos[0].name: latency, "steady_tok_s_gpu": speed})
        return results


def test_the_highest_rate_is_bracketed() -> None:
    """10 / (1 - r/8) = 100 at r = 7.2; the answer lies within the precision, and arrivals keep their family."""
    workers = Queue()
    found = max_rate(RateSearch(BASE, SLOS, workers, precision=0.01))
    assert found["max_rate_req_s"] <= 7.2 <= found["broken_at_req_s"] <= found["max_rate_req_s"] * 1.0101
    assert all(text.startswith("gamma:") and text.endswith(":cv=2") for text in workers.runs)


def test_more_seeds_are_taken_in_the_balance() -> None:
    """A load whose interval lies across the limit is run again; undecided counts as broken."""
    workers = Queue(noise=0.2)
    noisy = RateSearch(BASE, SLOS, workers, precision=0.01)
    exact = RateSearch(BASE, SLOS, Queue(), precision=0.01)
    assert noisy.run()[0] < exact.run()[0]
    assert len(workers.runs) > 3 * len(noisy.tried)
    undecided = [judged.rate for judged in noisy.tried if judged.verdict == "undecided"]
    assert all(rate > noisy.run()[0] for rate in undecided)


class Swinging(Queue):
    """Serve a tenth less in the run that an answer is held to, as a run of another seed may."""

    def run(self, scenarios: Sequence[Scenario], slos: Sequence[Slo] = ()) -> list[dict[str, Any]]:
        """Answer as a queue, and say what a request takes."""
        results = []
        for each in scenarios:
            self.capacity = 7.2 if each.seed == 9 else 8.0
            results += [found | {"e2e_ms_mean": 1000.0} for found in super().run([each], slos)]
            self.asked = each
        return results


def test_an_answer_holds_in_a_longer_run_with_another_seed() -> None:
    """10 / (1 - r/7.2) = 100 at r = 6.48, below what the searching seeds say; runs grow with what requests take."""
    workers = Swinging()
    base = BASE.model_copy(update={"requests": 200})
    found = max_rate(RateSearch(base, SLOS, workers, steady=True))
    assert 6.48 / 1.03 <= found["max_rate_req_s"] <= 6.48 < found["broken_at_req_s"] < 7.2
    wanted = round(100 * found["max_rate_req_s"])
    assert abs(found["requests"] - wanted) <= 1
    assert (found["requests"] // 10, 4 * found["requests"]) == (
        found["warm_up_requests"],
        found["checked"]["requests"],
    )
    assert (9, 0.1) == (workers.asked.seed, workers.asked.warm_up)
    found = min_gpus(RateSearch(base, SLOS, Swinging(), steady=True), 70.0)
    assert 11 == found["replicas"]


def test_a_limit_that_nothing_meets_is_named() -> None:
    """The sentence holds the limit and what a lone request has; a failed run is no latency."""
    with pytest.raises(UserError, match=r"no load meets ttft_p95=5ms \(10 ms at"):
        RateSearch(BASE, parse_slos(["ttft_p95=5ms"]), Queue()).run()

    class Failing(Workers):
        def run(self, scenarios: Sequence[Scenario], slos: Sequence[Slo] = ()) -> list[dict[str, Any]]:
            del slos
            return [{"error": "does not fit"} for _ in scenarios]

    with pytest.raises(UserError, match="ar: does not fit"):
        RateSearch(BASE, SLOS, Failing()).run()


def test_the_fewest_replicas_carry_a_rate() -> None:
    """Each carries at most 7.2 requests a second: 50 need seven; accelerators count tensor parallelism."""
    base = BASE.model_copy(update={"tensor_parallel": 2})
    found = min_gpus(RateSearch(base, SLOS, Queue()), 50.0)
    assert (7, 14) == (found["replicas"], found["gpus"])
    assert 1 == min_gpus(RateSearch(base, SLOS, Queue()), 1.0)["replicas"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttft_p95=500", "has no unit; write ttft_p95=500ms"),
        ("ttf_p95=500ms", '"ttf_p95" is no latency that a limit can be on; did you mean "ttft_p95"'),
        ("ttft_p95=0ms", "is no limit above 0"),
        ("ttft_p95=fast", '"fast" is no number with a unit'),
        ("x", "is no NAME=LIMIT"),
    ],
)
def test_each_wrong_part_of_a_limit_is_named(text: str, words: str) -> None:
    """A missing unit, a misspelt name, a limit of nothing: each has its own sentence."""
    with pytest.raises(UserError, match=words):
        parse_slos([text])


def test_intervals_and_verdicts() -> None:
    """Student's t over seeds; overload of most seeds is broken whatever the latency."""
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert (2.0, 2.0 - 2.4841, 2.0 + 2.4841) == pytest.approx((mean, low, high), abs=1e-3)
    assert (5.0, 5.0, 5.0) == interval([5.0])
    over = [{"error": "", "verdicts": ["overloaded"], "ttft_p95": 1.0}] * 2
    assert ("broken", True) == (judge(1.0, over, SLOS).verdict, judge(1.0, over, SLOS).overloaded)


def test_fronts_and_tiers() -> None:
    """Beaten and failed rows leave; equal best values join to one tier."""
    rows = [
        {"name": name, "a": a, "b": b, "error": error}
        for name, a, b, error in (("x", 1, 5, ""), ("y", 2, 4, ""), ("z", 1, 4, ""), ("e", 9, 9, "lost"))
    ]
    assert ["x", "y"] == [row["name"] for row in front(rows, (("a", 1), ("b", 1)))]
    assert ["x"] == [row["name"] for row in front(rows, (("a", -1), ("b", 1)))]
    grid = [
        {"users": users, "b": b, "speed": speed, "error": ""}
        for users, speeds in ((1, (1, 3, 9)), (8, (2, 3, 8)), (64, (5, 4, 1)))
        for b, speed in zip((2, 4, 8), speeds, strict=True)
    ]
    found = tiers(grid, "b", "speed")
    assert [(8, 8), (64, 2)] == [(tier["up_to"], tier["b"]) for tier in found]


def test_limits_are_read_and_refused() -> None:
    """Units, statistics and duplicates."""
    slos = parse_slos(["ttft_p95=0.5s", "tpot_mean=20ms", "e2e_max=7us"])
    assert [500.0, 20.0, 0.007] == [slo.limit_ms for slo in slos]
    for text in ("ttft=5ms", "ttft_p95=0ms", "ttft_p95=5", "itl_p95=5ms", "ttft_p95=1.2.3ms"):
        with pytest.raises(UserError, match="--slo"):
            parse_slos([text])
    with pytest.raises(UserError, match="given twice"):
        parse_slos(["ttft_p95=5ms", "ttft_p95=6ms"])


def test_limits_of_server_benchmarks_are_read_too() -> None:
    """`bench serve` takes what `simulate` takes, and the lists in milliseconds that it always took."""
    slos = parse_slos(spelled_out(["ttft:5000,tpot:0.8", "e2e_p95=10s"]))
    assert ["ttft_max=5000ms", "tpot_max=0.8ms", "e2e_p95=10000ms"] == [slo.describe() for slo in slos]
    with pytest.raises(UserError, match='--slo "ttft:fast" is no '):
        parse_slos(spelled_out(["ttft:fast"]))


def test_goodput_counts_requests_within_every_limit() -> None:
    """One of three is too slow to start, one too slow a token."""
    log = RequestLog(np.zeros(3, np.int64), np.ones(3, np.int64))
    log.first_token_ns = np.array([50, 50, 200]) * 1_000_000
    log.finish_ns = np.array([60, 150, 210]) * 1_000_000
    log.emitted = np.full(3, 11)
    assert 0.5 == goodput(log, parse_slos(["ttft_p95=100ms", "tpot_p95=5ms"]), 2.0)
    assert 1.5 == goodput(log, (), 2.0)


def test_money_and_energy() -> None:
    """A million tokens at 1,000 a second take 1,000 s; energy lies between idle and the board's limit."""
    assert 1.0 == price_per_million(3.6, 1000.0)
    assert price_per_million(3.6, 0.0) is None
    hardware = load_hardware("h100")
    assert 700.0 == pytest.approx(energy_joules(hardware, 10, 1.0, 0.0, 0.0))
    assert 7000.0 == pytest.approx(energy_joules(hardware, 10, 1.0, 1.0, 1.0))
