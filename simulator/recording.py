"""Acceptance profiles from traces: how often each draft was accepted, by position and by the judgement before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsm_spec import life_cycle
from fsm_spec.counts import most_drafts
from fsm_spec.errors import UserError
from fsm_spec.language.expression import evaluate
from fsm_spec.replay import read_trace, table_of
from fsm_spec.simulator.acceptance_file import AcceptanceFile, ProfileEntry
from fsm_spec.simulator.outcomes import drawn
from fsm_spec.simulator.places import AFTER_ALL, AFTER_REJECTION, AT_START, LASTS
from fsm_spec.table import Table
from fsm_spec.tiers import tiers_of
from fsm_spec.trace import VERSION
from fsm_spec.trace_records import fault_of, fault_of_header

# A list for one judgement before needs so many of them; fewer say nothing, and the rates over all hold.
FEWEST = 20
# Rates of fewer judgements than these are told with a warning: the standard error of 0.5 is 0.05.
FEW = 100
# A spread over requests needs so many requests that judged drafts.
FEWEST_REQUESTS = 8

Integers = NDArray[np.int64]


@dataclass
class Counts:
    """Count judgements: `judged` and `accepted` int64 [LASTS, drafts], and both of each request's, [drafts] each."""

    drafts: int
    requests: list[tuple[Integers, Integers]] = field(default_factory=list)
    judgements: int = 0
    lookups: int = 0
    found: int = 0

    def __post_init__(self) -> None:
        """Start with nothing."""
        self.judged = np.zeros((LASTS, self.drafts), np.int64)
        self.accepted = np.zeros((LASTS, self.drafts), np.int64)

    def add(self, last: int, live: int, taken: int, own: tuple[Integers, Integers]) -> None:
        """Count one judgement of `live` drafts, of which `taken` were accepted."""
        self.judgements += 1
        reached = min(taken + 1, live)
        for judged, accepted in ((self.judged[last], self.accepted[last]), own):
            judged[:reached] += 1
            accepted[:taken] += 1


def record(traces: Sequence[tuple[str, Path]]) -> AcceptanceFile:
    """Make a profile of each name from traces of one spec under the same parameters; raises UserError."""
    found: dict[str, Counts] = {}
    first: tuple[Table, Path, str] | None = None
    for name, path in traces:
        table, source = _read(path, name, found)
        if first is None:
            first = table, path, source
        elif table.digest != first[0].digest:
            raise UserError(
                f"{path} was written under another spec or other parameters than {first[1]}; give each a file"
            )
    assert first is not None
    table, _, source = first
    entries = tuple(_entry(name, counts) for name, counts in found.items())
    files = ", ".join(path.name for _, path in traces)
    return AcceptanceFile(
        source=f"traces of the {source}: {files}",
        spec=table.name,
        params=dict(table.params),
        profiles=entries,
    )


def _read(path: Path, name: str, found: dict[str, Counts]) -> tuple[Table, str]:
    """Count the judgements of a trace -> (its table, who wrote it)."""
    records = read_trace(path)
    _, head = next(records, (0, {}))
    fault = f"is no trace of version {VERSION}" if head.get("trace") != VERSION else fault_of_header(head)
    if fault:
        raise UserError(f"{path}: {fault}; give a file that generate --trace wrote")
    table, policy, _ = table_of(head, str(path))
    drafts = most_drafts(tiers_of(table, policy).largest, "accept")
    if not drafts:
        raise UserError(f"{path}: {table.name} judges no drafts, so there is no acceptance to record")
    counts = found.setdefault(name, Counts(drafts))
    if counts.drafts == drafts:
        _count(table, policy, records, counts, path)
    return table, str(head.get("source", ""))


def _count(
    table: Table,
    policy: Any,  # noqa: ANN401 - as the header's
    records: Iterable[tuple[int, Mapping[str, Any]]],
    counts: Counts,
    path: Path,
) -> None:
    """Follow every request of a trace and count its judgements."""
    tiers = tiers_of(table, policy)
    table = tiers.largest
    columns: dict[int, Mapping[str, int]] = {}
    last: dict[int, int] = {}
    own: dict[int, tuple[Integers, Integers]] = {}
    for number, step in records:
        fault = fault_of(step)
        if fault:
            raise UserError(f"{path}:{number}: {fault}; the record is cut or damaged")
        if "arrive" in step:
            columns[step["arrive"]] = table.new_request(step["prompt"], step["limit"])
        elif "plan" in step:
            size = step["plan"].get("tier")
            table = tiers.of_size(size) if size is not None else table
        else:
            request, event = step["request"], step["event"]
            if event == life_cycle.PREEMPT:
                last[request] = AT_START
            for draw in drawn(table).draws.get(event, ()):
                if draw.op == "lookup" and evaluate(draw.most, columns[request]) > 0:
                    counts.lookups += 1
                    counts.found += int(step["args"][draw.name]) > 0
                live = evaluate(draw.most, columns[request]) if draw.op == "accept" else 0
                if live > 0:
                    taken = min(int(step["args"][draw.name]), live)
                    zeros = (np.zeros(counts.drafts, np.int64), np.zeros(counts.drafts, np.int64))
                    counts.add(last.get(request, AT_START), live, taken, own.setdefault(request, zeros))
                    last[request] = AFTER_REJECTION if taken < live else AFTER_ALL
            columns[request] = step["columns"]
    counts.requests += own.values()


def _entry(name: str, counts: Counts) -> ProfileEntry:
    """Turn counts into rates; raises UserError where a position was never reached."""
    judged, accepted = counts.judged.sum(axis=0), counts.accepted.sum(axis=0)
    if not judged.all():
        place = int(np.flatnonzero(judged == 0)[0]) + 1
        raise UserError(
            f"{name}: draft {place} was never judged in {counts.judgements} judgements, as one before it was always"
            f" rejected; record longer texts"
        )
    rates = accepted / judged
    usual = _rates(counts, AFTER_ALL, rates)
    rest = counts.judged[AFTER_ALL] if usual else judged
    return ProfileEntry(
        name=name,
        rates=usual or tuple(rates.round(6).tolist()),
        after_rejection=_rates(counts, AFTER_REJECTION, rates),
        at_start=_rates(counts, AT_START, rates),
        weight=float(len(counts.requests)),
        concentration=concentration_of(counts.requests, rates),
        requests=len(counts.requests),
        judgements=counts.judgements,
        judged=tuple(rest.tolist()),
        lookup=round(counts.found / counts.lookups, 6) if counts.lookups else None,
        lookups=counts.lookups or None,
    )


def warnings_of(entries: Iterable[ProfileEntry]) -> Iterator[str]:
    """Say which rates rest on few judgements or lookups."""
    for entry in entries:
        fewest = min((*entry.judged, entry.lookups or FEW))
        if fewest < FEW:
            lookups = f", that of lookups on {entry.lookups}" if entry.lookups is not None else ""
            yield (
                f"{entry.name}: rates rest on {', '.join(map(str, entry.judged))} judgements by position{lookups};"
                f" fewer than {FEW} say little, so record longer texts or more of them"
            )


def _rates(counts: Counts, last: int, rates: NDArray[np.float64]) -> tuple[float, ...]:
    """Give the rates for one judgement before; positions that it never reached keep those over all."""
    judged = counts.judged[last]
    if judged[0] < FEWEST:
        return ()
    found = np.where(judged > 0, counts.accepted[last] / np.maximum(judged, 1), rates)
    return tuple(found.round(6).tolist())


def concentration_of(
    requests: Sequence[tuple[Integers, Integers]], rates: NDArray[np.float64]
) -> float | None:
    """Estimate how close requests are together; None where they differ by no more than chance, or are too few.

    Moments of a beta-binomial: with n judgements the variance of a request's share is r (1 - r) (1 + (n - 1) rho) / n,
    and rho = 1 / (concentration + 1) (Kleinman, JASA 1973), here summed over the positions.
    """
    if len(requests) < FEWEST_REQUESTS:
        return None
    judged, accepted = (np.array([each[i] for each in requests], np.float64) for i in range(2))
    spread = ((accepted - judged * rates) ** 2).sum()
    chance = judged * rates * (1 - rates)
    more = (chance * np.maximum(judged - 1, 0)).sum()
    if more <= 0 or spread <= chance.sum():
        return None
    rho = float((spread - chance.sum()) / more)
    return round(max(0.1, 1 / min(rho, 0.9) - 1), 3)
