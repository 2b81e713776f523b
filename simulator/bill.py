"""What a run cost beside time: goodput, bursts, wasted work, energy, money, and which ceiling it ran against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fsm_spec.errors import UserError
from fsm_spec.simulator import roofline
from fsm_spec.simulator.cost import CostModel
from fsm_spec.simulator.metrics import UNSET, Latency, RequestLog, Summary, summarise
from fsm_spec.simulator.money import energy_joules, price_per_million
from fsm_spec.simulator.simulation import Results
from fsm_spec.simulator.slo import Slo, goodput

BOUNDS = {"compute": roofline.COMPUTE_NS, "memory": roofline.MEMORY_NS, "latency": roofline.FLOOR_NS}


@dataclass(frozen=True)
class Bill:
    """Hold what a run cost; shares are of 1, None where nothing is known.

    `burst_ms` is the time between the bursts of tokens that one request gets, its mean over its rounds.
    Shares of drafts count the rows that judged them and the draft model; `idle_share` is the time in which
    the accelerator waited for the host or for work.
    """

    burst_ms: Latency
    goodput_req_s: float | None
    drafts_flops_share: float | None
    wasted_flops_share: float | None
    drafts_bytes_share: float | None
    wasted_bytes_share: float | None
    bound_share: dict[str, float]
    part_share: dict[str, float]
    idle_share: float
    flops_utilisation: float
    bandwidth_utilisation: float
    energy_kj: float
    energy_j_token: float | None
    steady_tok_s: float | None
    """See `steady_tok_s`; of a run by the clock on one replica."""
    price_per_million: float | None

    def to_dict(self) -> dict[str, object]:
        """Return the numbers under their names."""
        return {
            "burst_ms": self.burst_ms.to_dict(),
            "goodput_req_s": self.goodput_req_s,
            "drafts_flops_share": self.drafts_flops_share,
            "wasted_flops_share": self.wasted_flops_share,
            "drafts_bytes_share": self.drafts_bytes_share,
            "wasted_bytes_share": self.wasted_bytes_share,
            "bound_share": self.bound_share,
            "part_share": self.part_share,
            "idle_share": self.idle_share,
            "flops_utilisation": self.flops_utilisation,
            "bandwidth_utilisation": self.bandwidth_utilisation,
            "energy_kj": self.energy_kj,
            "energy_j_token": self.energy_j_token,
            "steady_tok_s": self.steady_tok_s,
            "price_per_million_tokens": self.price_per_million,
        }


def bill(
    results: Results,
    cost: CostModel,
    slos: Sequence[Slo] = (),
    price_per_gpu_hour: float | None = None,
    paid_s: float | None = None,
    *,
    by_clock: bool = False,
) -> Bill:
    """Return what a run cost; goodput only with limits, money only with a price.

    `paid_s` are the seconds of all replicas together; those of one are the run's. Of one replica whose requests arrive
    `by_clock` the price is that of its steady part, where it has one.
    """
    summary, usage, gpus = results.summary, results.usage, cost.tensor_parallel
    parts, duration = usage.parts, summary.duration_s
    seconds = paid_s if paid_s is not None else duration
    flops, size = float(parts[:, roofline.FLOPS].sum()), float(parts[:, roofline.BYTES].sum())
    bounds = {name: float(parts[:, place].sum()) for name, place in BOUNDS.items()}
    by_part = parts[:, : roofline.FLOPS].sum(axis=1)
    total = sum(bounds.values()) or 1.0
    busy_s = usage.busy_ns / 1e9
    # At a ceiling: operations at the peak or bytes at the bandwidth, whichever takes longer.
    peak, bandwidth = cost.constants[roofline.BLOCKS_PEAK], cost.constants[roofline.BANDWIDTH]
    full_s = min(busy_s, max(flops / peak, size / bandwidth))
    energy = energy_joules(cost.hardware, gpus, seconds, busy_s, full_s)
    steady = steady_tok_s(results) if by_clock and paid_s is None else None
    whole = summary.emitted_tokens / seconds if seconds > 0 else 0.0
    per_gpu = (whole if steady is None else steady) / gpus
    return Bill(
        _bursts(results.rows) if results.rows is not None else Latency(0, 0, 0, 0, 0, 0, 0),
        round(goodput(results.rows, slos, duration), 6) if slos and results.rows is not None else None,
        *_drafts(summary, cost, parts),
        {name: round(value / total, 4) for name, value in bounds.items()},
        {
            name: round(float(value) / total, 4)
            for name, value in zip(roofline.PARTS, by_part, strict=True)
            if value > 0
        },
        round(max(0.0, 1 - busy_s / seconds), 4) if seconds > 0 else 0.0,
        round(flops / peak / seconds, 4) if seconds > 0 else 0.0,
        round(size / bandwidth / seconds, 4) if seconds > 0 else 0.0,
        round(energy / 1e3, 3),
        round(energy / summary.emitted_tokens, 4) if summary.emitted_tokens else None,
        None if steady is None else round(steady, 3),
        price_per_million(price_per_gpu_hour, per_gpu) if price_per_gpu_hour is not None else None,
    )


def _bursts(log: RequestLog) -> Latency:
    """Return the mean time between bursts of each request that finished after a round."""
    done = log.finished & (log.rounds > 0) & (log.first_token_ns != UNSET)
    return Latency.of((log.finish_ns - log.first_token_ns)[done] / log.rounds[done])


def _drafts(
    summary: Summary, cost: CostModel, parts: NDArray[np.float64]
) -> tuple[float | None, float | None, float | None, float | None]:
    """Return the shares of operations that drafts and rejected drafts took, then those of bytes.

    A judged draft costs a row of the target; its bytes are its logits and its KV, as weights are read for all rows.
    Drafts cost what the draft model does, too, rejected ones their part of it; drafting passes of the target are not
    counted.
    """
    if not summary.drafted:
        return None, None, None, None
    model, found = cost.model, []
    row = {
        roofline.FLOPS: 2.0
        * (model.gemm_parameters + model.experts_a_row * model.expert_parameters + model.head_parameters),
        roofline.BYTES: 4.0 * model.vocab_size + model.kv_bytes(cost.kv_dtype),
    }
    for column, each in row.items():
        total, drafter = float(parts[:, column].sum()), float(parts[roofline.DRAFTER, column])
        wasted = (summary.drafted - summary.accepted) / summary.drafted
        share = min(1.0, (summary.drafted * each + drafter) / total) if total > 0 else 0.0
        found += [round(share, 4), round(wasted * share, 4)]
    return found[0], found[1], found[2], found[3]


def steady_tok_s(results: Results) -> float | None:
    """Return emitted tokens a second while requests came and went; None where the run has no such part.

    It begins when a request that came first has had the time that requests take, and ends with the last arrival: before
    it the machine fills, after it nobody comes, and both would make a short run look slow.
    """
    log = results.rows
    if log is None or not log.finished.any():
        return None
    takes_ns = int(results.summary.e2e_ms.mean * 1e6)
    start, end = int(log.arrival_ns.min()) + takes_ns, int(log.arrival_ns.max())
    return results.timeline.rate_between("tokens", start, end) if end - start > takes_ns else None


def without_warm_up(results: Results, warm_up_s: float) -> Results:
    """Return results whose latencies and throughput leave out requests that arrived before `warm_up_s`."""
    late = results.log.arrival_ns >= round(warm_up_s * 1e9)
    if late.all():
        raise UserError(f"no request arrived in the first {warm_up_s:g} s; leave out --warm-up, or give more")
    if not late.any():
        raise UserError(f"every request arrived in the first {warm_up_s:g} s; give a shorter --warm-up")
    return _only(results, late)


def warmed(requests: int, share: float) -> int:
    """Return how many requests are a warm-up of that share; at least one is left."""
    return min(int(requests * share), requests - 1)


def without_first(results: Results, share: float) -> Results:
    """Return results whose latencies and throughput leave out that share of the requests, the first to arrive."""
    order = np.argsort(results.log.arrival_ns, kind="stable")
    late = np.ones(len(order), np.bool_)
    late[order[: warmed(len(order), share)]] = False
    return _only(results, late)


def _only(results: Results, counted: NDArray[np.bool_]) -> Results:
    """Return results of these requests alone."""
    log = results.log
    kept = RequestLog(log.arrival_ns[counted], log.prompt[counted])
    for name, column in vars(log).items():
        if isinstance(column, np.ndarray):
            setattr(kept, name, column[counted])
    summary = summarise(kept, results.timeline.now_ns, results.summary.kv)
    return replace(results, summary=summary, rows=kept)
