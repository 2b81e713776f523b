"""The overlapped loop: the host plans a round while the device runs the one before.

The plan reads columns that are one round old, under a policy with `lag: 1`, which takes pages ahead for what the host
cannot see; `fsm-spec check --lag 1` proves it (`fsm_spec/checker/lag.py`). A request that has ended unseen is planned
once more: the device finds it at its end, and nothing of it changes. What takes a line away (preemption, abort, a
stop string, another size of a tier) waits for the round in flight first, so that no late result meets another
request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fsm_spec import life_cycle, prefix_cache
from fsm_spec.engine import Engine, Iteration
from fsm_spec.executor.device.runner import DeviceRunner, Ticket
from fsm_spec.launch import Chunk
from fsm_spec.policy import Plan, Policy, plan
from fsm_spec.step import step
from fsm_spec.table import NO_STOP, STOP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fsm_spec.step import Columns


@dataclass(frozen=True)
class Flight:
    """Hold a round that runs: what it will say, its prefill chunks, and its launches."""

    ticket: Ticket
    chunks: tuple[Chunk, ...]
    launches: int


class OverlappedEngine(Engine):
    """Drive requests one round ahead of what the host has seen; its backend is the resident runner."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- as the engine's
        super().__init__(*args, **kwargs)
        assert isinstance(self.backend, DeviceRunner), "only a device runs while the host plans"
        self.device = self.backend
        if kwargs.get("planner") is None:
            self.planner = lambda _: self.decide()
        self._flight: Flight | None = None
        # What was seen where nobody could be told: the next iteration reports it.
        self._late = Iteration()

    @property
    def has_work(self) -> bool:
        """Tell whether any request waits or lives, or has ended without being reported."""
        return super().has_work or not self._late.idle

    def decide(self) -> Plan:
        """Let the policy decide by what the host has seen, and by prefills in flight as if no token stopped."""
        columns = self._gather(self.live)
        for chunk in self._flight.chunks if self._flight is not None else ():
            index = np.flatnonzero(self.requests[self.live] == chunk.request)
            if len(index):
                self._foresee(columns, index, chunk)
        if self.prefixes is not None:
            return prefix_cache.decide(self, self.prefixes, columns)
        waiting = [self.waiting[request] for request in self.waiting.head()]
        return plan(self.table, self.policy, self.pool, columns, self.pages[self.live], waiting)

    def _foresee(self, columns: Columns, index: NDArray[np.int64], chunk: Chunk) -> None:
        """Move the columns of a request that is being prefilled to where they will be."""
        own = {name: values[index] for name, values in columns.items()}
        if not chunk.last:
            args = {"n": np.array([chunk.tokens], np.int32)}
            done = step(self.table, own, life_cycle.CHUNK, args, np)
        else:
            done = step(self.table, own, life_cycle.FIRST, {STOP: np.array([NO_STOP], np.int32)}, np)
        for name, values in done.columns.items():
            columns[name][index] = values

    def iterate(self) -> Iteration:
        """Put a round in flight, then follow the one before."""
        report, self._late = self._late, Iteration()
        if self.device.follows:
            # What a grammar allows follows from the round in flight.
            self._land(report)
            return report.followed_by(super().iterate())
        if self.policy.tier is not None:
            self._land(report)
        decision = self.planner(self)
        if self._flight is not None and decision.preempt:
            self._land(report)
            decision = self.planner(self)
        running, chunks = self._enact(decision, report)
        riding = tuple(self._next_chunk(slot, tokens) for slot, tokens in chunks)
        before, self._flight = self._flight, None
        if len(running) or riding:
            ticket = self.device.fly(self.requests[running], riding)
            launches = len(self.device.levels()) if len(running) else 1
            self._flight = Flight(ticket, riding, launches)
            report.launches += launches
        self._follow(before, report)
        self._release_ended(report)
        self.iterations += 1
        return report

    def _next_chunk(self, slot: int, tokens: int) -> Chunk:
        """Describe a chunk behind those in flight."""
        ahead = 0
        for chunk in self._flight.chunks if self._flight is not None else ():
            ahead += chunk.tokens if chunk.request == self.requests[slot] else 0
        own = self._chunk(slot, ahead + tokens)
        return Chunk(own.request, own.start + ahead, tokens, own.last)

    def _land(self, report: Iteration) -> None:
        """Follow the round in flight, if there is one; those who ended in it give their pages back."""
        before, self._flight = self._flight, None
        self._follow(before, report)
        self._release_ended(report)

    def _follow(self, flight: Flight | None, report: Iteration) -> None:
        """Wait for a round, and step its requests as the device did."""
        if flight is None:
            return
        report.launches = report.launches or flight.launches
        chunks = {chunk.request: chunk for chunk in flight.chunks}
        arrived = self.device.receive(flight.ticket)
        for chunk in flight.chunks:
            if not chunk.last:
                self._prefilled(chunk, report)
        for results in arrived:
            if not len(results.numbers):
                continue
            if results.form.event == life_cycle.FIRST:
                for number in results.numbers.tolist():
                    self._prefilled(chunks[number], report)
                continue
            slots = np.array([self._slot_of[number] for number in results.numbers.tolist()])
            self._apply(results.form.event, slots, results.args, report)
        assert not self._mid_round[self.columns["state"][self.live]].any(), "a round came to its end"

    def abort(self, request: int) -> None:
        """End a request that nobody waits for any more, behind the round in flight."""
        self._land(self._late)
        super().abort(request)

    def halt(self, request: int, at: int) -> None:
        """End a request at a stop string, behind the round in flight: `at` emitted tokens stay."""
        self._land(self._late)
        super().halt(request, at)

    def switch(self, policy: Policy) -> None:
        """Put another policy in force, behind the round in flight."""
        self._land(self._late)
        super().switch(policy)
