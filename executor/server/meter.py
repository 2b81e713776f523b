"""Counts of what the engine does, read off its own steps: a backend that passes everything on and counts.

Only emitted tokens of live requests count: an accepted draft behind a stop token or the limit is none.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fsm_spec import life_cycle
from fsm_spec.launch import Args, Backend, Launch
from fsm_spec.step import Columns, Step, evaluate
from fsm_spec.table import END, Table

# States remembered of a request for those who watch.
_PATH = 8
PREFILLING = "prefill"


@dataclass
class Counts:
    """Hold what was counted since the last look.

    `transitions` by code, `rounds` by round state, `runs` emitted tokens of a round, `places` accepted drafts by place,
    `phases` seconds by what ran together, `prefilled` slots of prompts that were run and `firsts` tokens that prefills
    emitted, `looked_up` prompt tokens of requests admitted for the first time and `found`
    those of them whose KV was there.
    """

    transitions: Counter[int] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)
    runs: Counter[int] = field(default_factory=Counter)
    places: Counter[int] = field(default_factory=Counter)
    phases: dict[str, float] = field(default_factory=dict)
    judged: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    prefilled: int = 0
    firsts: int = 0
    looked_up: int = 0
    found: int = 0


class Meter:
    """Stand between an engine and its backend and count; `paths` are kept while somebody watches."""

    def __init__(self, table: Table, backend: Backend) -> None:
        self.table = table
        self.backend = backend
        self.counts = Counts()
        self.paths: dict[int, deque[str]] = {}
        self.watched_until = 0.0
        self._phases = {state.name: state.phase for state in table.states}
        self._end = table.codes[END]
        self._judges = {state.name: table.judge(state.name) for state in table.states}
        self._args: dict[str, Args] = {}
        # What each request's last round counted, for a stop string that takes tokens of it back.
        self._last: dict[int, tuple[int, int, int]] = {}

    def take(self) -> Counts:
        """Give the counts since the last look."""
        counts, self.counts = self.counts, Counts()
        self._last.clear()
        return counts

    def launch(self, launch: Launch) -> list[Args]:
        """Run a launch and count its time."""
        begun = time.perf_counter()
        results = self.backend.launch(launch)
        seconds = time.perf_counter() - begun
        phases = [self._phases[group.state] for group in launch.groups]
        name = "+".join(dict.fromkeys([*phases, *([PREFILLING] if launch.chunks else [])]))
        self.counts.phases[name] = self.counts.phases.get(name, 0.0) + seconds
        self._args = {group.state: args for group, args in zip(launch.groups, results, strict=True)}
        return results

    def stops(
        self, event: str, requests: NDArray[np.int64], columns: Columns, args: Args
    ) -> NDArray[np.int32]:
        """Pass on; what was counted is noted here too, as a host that plans ahead launches past this backend."""
        self._args[event] = args
        return self.backend.stops(event, requests, columns, args)

    def settle(self, event: str, requests: NDArray[np.int64], before: Columns, done: Step) -> None:
        """Follow a step, and count it."""
        self.backend.settle(event, requests, before, done)
        counts = self.counts
        counts.transitions.update(done.transition.tolist())
        if event == life_cycle.PREEMPT:
            counts.preemptions += len(requests)
        if event == life_cycle.ADMIT:
            new = before["emitted"] == 0
            counts.looked_up += int(before["prompt"][new].sum())
            counts.found += int(done.columns["kv"][new].sum())
        if event in (life_cycle.CHUNK, life_cycle.FIRST):
            counts.prefilled += int((done.columns["kv"] - before["kv"]).sum())
            counts.firsts += int(done.emitted.sum())
        if event == life_cycle.HALT:
            self._take_back(requests, before["emitted"] - done.columns["emitted"])
        if event in self._phases and self.table.state(event).forward is not None:
            self._count_rounds(before, done)
            self._count_drafts(event, requests, before, done)
        if self.watched_until:
            self._follow(requests, done)

    def resize(self, request: int, pages: int) -> None:
        """Pass on."""
        self.backend.resize(request, pages)

    def use(self, table: Table) -> None:
        """Count under the table of the tier that the scheduler chose: it has the same states and rows."""
        self.backend.use(table)
        self.table = table
        self._judges = {state.name: table.judge(state.name) for state in table.states}

    def _count_rounds(self, before: Columns, done: Step) -> None:
        """Count rounds where they begin, and runs of tokens where they are emitted."""
        for code in before["state"].tolist():
            state = self.table.states[code]
            if state.round:
                self.counts.rounds[state.name] += 1
        self.counts.runs.update(count for count in done.emitted.tolist() if count)

    def _take_back(self, requests: NDArray[np.int64], back: NDArray[np.int32]) -> None:
        """Take back what lies behind a stop string: it was never emitted to anybody."""
        for request, tokens in zip(requests.tolist(), back.tolist(), strict=True):
            run, kept, lead = self._last.get(request, (0, 0, 0))
            if not (tokens and run):
                continue
            left = run - tokens
            self.counts.runs[run] -= 1
            self.counts.runs[left] += left > 0
            still = min(kept, max(0, left - lead))
            self.counts.accepted -= kept - still
            self.counts.places.subtract(range(still, kept))

    def _count_drafts(self, event: str, requests: NDArray[np.int64], before: Columns, done: Step) -> None:
        """Count drafts judged and those of the accepted that were emitted."""
        judge = self._judges[event]
        if judge is None:
            for request, run in zip(requests.tolist(), done.emitted.tolist(), strict=True):
                self._last[request] = (run, 0, 0)
            return
        count = judge.counts[0]
        args = self._args.get(event, {})
        drafted = evaluate(self.table, count.most, before, np)
        each = np.broadcast_to(np.asarray(drafted), done.emitted.shape)
        for index, accepted in enumerate(args[count.name].tolist()):
            row = int(done.transition[index]) // 2
            lead = self.table.leads.get(row)
            kept = accepted if lead is None else min(accepted, max(0, int(done.emitted[index]) - lead))
            self.counts.judged += int(each[index]) > 0
            self.counts.drafted += int(each[index])
            self.counts.accepted += kept
            self.counts.places.update(range(kept))
            self._last[int(requests[index])] = (int(done.emitted[index]), kept, lead or 0)

    def _follow(self, requests: NDArray[np.int64], done: Step) -> None:
        """Remember the way of each request, while somebody looks."""
        if time.monotonic() > self.watched_until:
            self.watched_until = 0.0
            self.paths.clear()
            return
        for request, state in zip(requests.tolist(), done.columns["state"].tolist(), strict=True):
            if state == self._end:
                self.paths.pop(request, None)
            else:
                path = self.paths.setdefault(request, deque(maxlen=_PATH))
                path.append(self.table.states[state].name)
