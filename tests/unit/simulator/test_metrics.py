"""Results: exact time-weighted series of bounded size, and summaries in stable order."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_spec.simulator.metrics import UNSET, KvUse, Latency, RequestLog, summarise
from fsm_spec.simulator.timeline import Timeline


def test_timeline_weighs_by_time() -> None:
    """A level counts as long as it holds, across buckets."""
    line = Timeline(("pages",), ("tokens",), points=4, width_ns=10)
    line.record(0, (2,))
    line.record(5, (6,), (3,))
    line.record(25, (0,), (1,))
    line.close(40)
    assert [10, 20, 30, 40] == line.edges_ns
    assert [4.0, 6.0, 3.0, 0.0] == line.mean_levels("pages")
    assert [3e8, 0.0, 1e8, 0.0] == line.rates("tokens")
    assert (130 / 40, 6) == (line.mean("pages"), line.peak("pages"))


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(0, 99)), max_size=40))
def test_timeline_stays_bounded_and_exact(steps: list[tuple[int, int, int]]) -> None:
    """However long the run, the buckets add up to the exact integral and the exact amounts."""
    line = Timeline(("level",), ("amount",), points=8, width_ns=1000)
    now = integral = level = 0
    for gap, value, amount in steps:
        integral += level * gap
        now, level = now + gap, value
        line.record(now, (value,), (amount,))
    line.close(now + 17)
    integral += level * 17
    assert len(line.edges_ns) <= 8
    assert line.mean("level") == integral / (now + 17)
    spans = np.diff([0, *line.edges_ns])
    assert np.dot(line.mean_levels("level"), spans) == pytest.approx(integral)
    assert np.dot(line.rates("amount"), spans) / 1e9 == pytest.approx(sum(amount for _, _, amount in steps))


def test_timeline_refuses_nonsense() -> None:
    """Time does not go back, and columns do not go missing; an empty series has a mean of 0."""
    line = Timeline(("a", "b"))
    assert line.mean("a") == 0.0
    assert line.mean_levels("a") == []
    line.record(5, (1, 2))
    with pytest.raises(ValueError, match="time goes back"):
        line.record(4, (1, 2))
    with pytest.raises(ValueError, match="one value is needed"):
        line.record(6, (1,))


def test_summary_of_a_hand_made_run() -> None:
    """Each number follows from three requests: finished, one token only, and never started."""
    log = RequestLog(np.array([0, 1_000_000_000, UNSET]), np.array([10, 10, 10]))
    log.first_token_ns[:2] = [100_000_000, 1_200_000_000]
    log.finish_ns[:2] = [1_100_000_000, 1_200_000_000]
    log.emitted[:2], log.prefill_emitted[:2] = [11, 1], 1
    log.rounds[0], log.forwards[0], log.accepted[0], log.drafted[0] = 4, 8, 6, 12
    log.preemptions[1] = 2
    summary = summarise(log, 2_000_000_000)
    assert (2, 2, 4, 2.0) == (summary.requests, summary.finished, summary.rounds, summary.duration_s)
    assert (6.0, 1.0) == (summary.throughput_tok_s, summary.throughput_req_s)
    assert (150.0, 100.0) == (summary.ttft_ms.mean, summary.tpot_ms.mean)
    assert (2, 1) == (summary.ttft_ms.count, summary.tpot_ms.count)
    assert 650.0 == summary.e2e_ms.p50
    assert (2.5, 1.25) == (summary.acceptance_length, summary.tokens_per_forward)
    assert 2 == summary.preemptions
    written = summary.to_dict()
    assert {"drafted": 12, "accepted": 6, "wasted": 6, "acceptance_rate": 0.5} == written["drafts"]
    assert list(written)[:4] == ["requests", "finished", "rounds", "duration_s"]
    assert json.dumps(written) == json.dumps(summarise(log, 2_000_000_000).to_dict())


def test_summary_of_nothing() -> None:
    """A run without finished requests has counts of 0 and no ratios."""
    log = RequestLog(np.array([0]), np.array([10]))
    summary = summarise(log, 0)
    assert (0, None, None) == (summary.finished, summary.acceptance_length, summary.tokens_per_forward)
    assert 0 == Latency.of(np.array([])).count
    assert not log.finished.any()


def test_kv_use_reads_the_timeline() -> None:
    """Means are time-weighted and shares are of the pool."""
    line = Timeline(("pages", "committed", "scratch"))
    line.record(0, (10, 500, 100))
    line.record(100, (0, 0, 0))
    line.close(200)
    use = KvUse.of(line, pages=20, page_size=64).to_dict()
    assert (5.0, 10, 0.25, 0.5) == tuple(
        use[key] for key in ("mean_pages", "peak_pages", "mean_share", "peak_share")
    )
    assert {"committed": 250.0, "scratch": 50.0} == use["mean_slots"]
    assert {"committed": 500, "scratch": 100} == use["peak_slots"]
