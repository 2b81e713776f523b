"""Live requests by number, and those of a group with what stays the same about them round after round."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from fsm_spec.executor.carry import Carries
from fsm_spec.executor.operators import Sampling
from fsm_spec.executor.request import Request, Tokens
from fsm_spec.kernels.law import SamplingParams, SamplingRows
from fsm_spec.table import NO_STOP

# Stands where a request has fewer stop tokens than another: no token, and not what stands behind a run either.
_NEVER = np.iinfo(np.int64).min

_MOST_GROUPS = 1024


@lru_cache(maxsize=1024)
def _alike(params: SamplingParams, requests: int) -> SamplingRows:
    """Give the same parameters for so many requests: most sample alike, in groups that change round after round."""
    return SamplingRows.of([params] * requests)


@lru_cache(maxsize=1024)
def _stop_table(sets: tuple[frozenset[int], ...]) -> NDArray[np.int64]:
    """Lay out sets of stop tokens, [sets, most]."""
    table = np.full((len(sets), max(map(len, sets))), _NEVER, np.int64)
    for line, stop_ids in zip(table, sets, strict=True):
        line[: len(stop_ids)] = list(stop_ids)
    return table


class Members:
    """Hold n live requests, with the lines of their carries, int64 [n]."""

    def __init__(self, requests: Sequence[Request], lines: Sequence[int]) -> None:
        self.requests = requests
        self.lines = np.array(lines, np.int64)
        # The lines of their block tables, once somebody has asked for them.
        self.tables: NDArray[np.int64] | None = None

    @cached_property
    def sampling(self) -> Sampling:
        """Give the sampling parameters and seeds."""
        seeds = torch.from_numpy(np.array([request.seed for request in self.requests], np.int64))
        params = [request.sampling for request in self.requests]
        alike = params.count(params[0]) == len(params)
        return Sampling(_alike(params[0], len(params)) if alike else SamplingRows.of(params), seeds)

    @cached_property
    def _stop_ids(self) -> NDArray[np.int64]:
        """Give the stop tokens of each request, [n, most]; of one for all where they are the same: [1, most]."""
        sets = [request.stop_ids for request in self.requests]
        return _stop_table(tuple(sets[:1] if sets.count(sets[0]) == len(sets) else sets))

    def stops(self, runs: Tokens) -> NDArray[np.int32]:
        """Count the tokens before the first stop token of each run [n, longest]; NO_STOP without one: int32 [n]."""
        first = np.full(len(runs), NO_STOP, np.int32)
        for place in range(self._stop_ids.shape[1]):
            hits = runs == self._stop_ids[:, place : place + 1]
            if hits.any():
                found = np.where(hits.any(1), hits.argmax(1), NO_STOP).astype(np.int32)
                np.minimum(first, found, out=first)
        return first


class Roster:
    """Know all live requests by the engine's numbers, with the lines of their carries."""

    def __init__(self, carries: Carries) -> None:
        self.carries = carries
        self.requests: dict[int, Request] = {}
        self._lines: dict[int, int] = {}
        # For as long as nobody comes, ends or gives its pages back.
        self._known: dict[bytes, Members] = {}

    def add(self, number: int, request: Request) -> None:
        """Make a request known."""
        self.requests[number] = request
        self._lines[number] = self.carries.take()
        # A number names another request in a new engine only.
        self._known.clear()

    def forget(self, number: int) -> None:
        """Drop a request that is at its end, and its carries."""
        self.carries.give_back(self._lines.pop(number))
        del self.requests[number]

    def part(self) -> None:
        """Forget who went together, since block tables have changed hands."""
        self._known.clear()

    def members(self, numbers: NDArray[np.int64]) -> Members:
        """Gather requests, [n]."""
        key = numbers.tobytes()
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_GROUPS:
                self._known.clear()
            listed = numbers.tolist()
            found = Members(
                [self.requests[number] for number in listed], [self._lines[number] for number in listed]
            )
            self._known[key] = found
        return found
