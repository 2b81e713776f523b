"""The engine loop that simulator and executor share: queue, plan, launches, steps, pages, trace.

A backend says what a launch gives (counts of accepted drafts, stop tokens) and what it costs; everything else about
requests happens here, once. Time is the backend's: this file has no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from fsm_spec import life_cycle, prefix_cache
from fsm_spec.errors import UserError
from fsm_spec.launch import Chunk, Group, Launch
from fsm_spec.policy import (
    Plan,
    Policy,
    Pool,
    Waiting,
    fill_slots,
    plan,
    refuse_budget,
    refuse_impossible,
)
from fsm_spec.step import step
from fsm_spec.table import END, STOP, WAIT, Table, refuse_abstract
from fsm_spec.tiers import tiers_of
from fsm_spec.waiting import WaitingQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from fsm_spec.launch import Args, Backend
    from fsm_spec.prefix_cache import Prefixes
    from fsm_spec.step import Columns, Step
    from fsm_spec.trace import TraceWriter

_FIRST_CAPACITY: Final = 64


@dataclass
class Iteration:
    """Report one iteration: launches run, requests finished, preempted, admitted; emitted tokens by request."""

    launches: int = 0
    finished: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    # Requests and their emitted counts, one pair of arrays a step.
    runs: list[tuple[NDArray[np.int64], NDArray[np.int32]]] = field(default_factory=list)

    @property
    def emitted(self) -> dict[int, int]:
        """Count the tokens emitted in this iteration, by request."""
        totals: dict[int, int] = {}
        for requests, counts in self.runs:
            for request, count in zip(requests.tolist(), counts.tolist(), strict=True):
                if count:
                    totals[request] = totals.get(request, 0) + count
        return totals

    def followed_by(self, other: Iteration) -> Iteration:
        """Report two as one."""
        return Iteration(
            self.launches + other.launches,
            self.finished + other.finished,
            self.preempted + other.preempted,
            self.admitted + other.admitted,
            self.runs + other.runs,
        )

    @property
    def idle(self) -> bool:
        """Tell whether nothing moved: with work left, that is a deadlock of the policy."""
        return not (self.launches or self.finished or self.preempted or self.admitted)


def refuse(table: Table, policy: Policy, pool: Pool, prompt: int, limit: int) -> None:
    """Raise PoolExhausted if the pool could never carry a request, UserError for an empty prompt, a negative limit."""
    if prompt < 1:
        raise UserError("the prompt is empty; give at least one token")
    if limit < 0:
        raise UserError(f"the limit of new tokens is {limit}; give 0 or more")
    refuse_impossible(table, pool, prompt, limit, policy)


class Engine:
    """Drive requests through a table under a policy and a pool; all methods act between rounds.

    `planner` replaces the scheduler's decisions (replaying a recorded run). With `prefixes`, newcomers start behind
    the pages of their text that are there already, and requests share pages.
    """

    def __init__(
        self,
        table: Table,
        policy: Policy,
        pool: Pool,
        backend: Backend,
        trace: TraceWriter | None = None,
        planner: Callable[[Engine], Plan] | None = None,
        prefixes: Prefixes | None = None,
    ) -> None:
        refuse_abstract(table)
        refuse_budget(table, policy)
        self._base = table
        self.tiers = tiers_of(table, policy)
        # Carries are made once, in the largest shape of these sizes.
        self._room = self.tiers.carry
        # The table of the rounds that run now; with tiers another one may follow at each iteration.
        self.table = self.tiers.largest
        self.policy = policy
        self.pool = pool
        self.backend = backend
        self.trace = trace
        self.planner = planner or Engine.decide
        self.prefixes = prefixes
        self.iterations = 0
        # All columns in one array, a line each, so that one read gathers them; `columns` names its lines.
        self._lines = np.zeros((len(table.column_names), _FIRST_CAPACITY), np.int32)
        self.columns: Columns = dict(zip(table.column_names, self._lines, strict=True))
        # All pages that a request holds; those of them that an older one holds too are counted with that one.
        self.pages = np.zeros(_FIRST_CAPACITY, np.int32)
        self.shared = np.zeros(_FIRST_CAPACITY, np.int32)
        # When `shared` was counted last: changes of holders, and who lived.
        self._counted: tuple[int, bytes] = (-1, b"")
        self.requests = np.zeros(_FIRST_CAPACITY, np.int64)
        self._free_slots = list(range(_FIRST_CAPACITY - 1, -1, -1))
        # Slots of admitted requests, oldest request first.
        self.live = np.zeros(0, np.int64)
        self._slot_of: dict[int, int] = {}
        self.waiting = WaitingQueue()
        self._next_request = 0

    # Requests --------------------------------------------------------------------------------------------------

    def submit(self, prompt: int, limit: int) -> int:
        """Queue a request of `prompt` tokens that may emit `limit`; give its number.

        Raises PoolExhausted if the pool could never carry it, UserError for an empty prompt or a negative limit.
        """
        refuse(self.table, self.policy, self.pool, prompt, limit)
        request = self._next_request
        self._next_request += 1
        self.waiting.put(request, Waiting(prompt, limit, 0))
        if self.trace:
            self.trace.arrive(self.iterations, request, prompt, limit)
        return request

    def abort(self, request: int) -> None:
        """End a request that nobody waits for any more, and release what it holds."""
        if request in self.waiting:
            self._apply(life_cycle.ABORT, np.array([self._place(request)]), {})
        elif request in self._slot_of:
            self._apply(life_cycle.ABORT, np.array([self._slot_of[request]]), {})
        self._release_ended(Iteration())

    def halt(self, request: int, at: int) -> None:
        """End a live request at a stop string: `at` emitted tokens stay."""
        if request in self._slot_of:
            self._apply(life_cycle.HALT, np.array([self._slot_of[request]]), {"at": np.array([at], np.int32)})
        self._release_ended(Iteration())

    def switch(self, policy: Policy) -> None:
        """Put another policy in force from the next iteration on.

        Raises UserError for tiers beyond the sizes that this run was made for, PoolExhausted where a request that
        was taken could need more pages than there are.
        """
        refuse_budget(self._base, policy)
        tiers = tiers_of(self._base, policy)
        for carry, room in zip(tiers.carry, self._room, strict=True):
            if any(size > most for size, most in zip(carry.shape, room.shape, strict=True) if size and most):
                raise UserError(
                    f"the policy {policy.policy} asks for larger blocks than this run has room for; "
                    "start with that policy, then switch among smaller ones"
                )
        live = zip(self.columns["prompt"][self.live], self.columns["limit"][self.live], strict=True)
        sizes = [*live, *((entry.prompt, entry.limit) for entry in self.waiting.values())]
        for prompt, limit in sizes:
            refuse(tiers.largest, policy, self.pool, int(prompt), int(limit))
        self.policy, self.tiers, self.table = policy, tiers, tiers.largest
        self.backend.use(self.table)

    @property
    def has_work(self) -> bool:
        """Tell whether any request waits or lives."""
        return bool(self.waiting) or len(self.live) > 0

    @property
    def used_pages(self) -> int:
        """Count the pages that live requests hold, each once."""
        return int((self.pages[self.live] - self.count_shared()).sum())

    def count_shared(self) -> NDArray[np.int32]:
        """Count each live request's pages, oldest first, that an older one holds too; as last planned in a replay."""
        if self.prefixes is not None:
            seen = self.prefixes.changes, self.live.tobytes()
            if seen != self._counted:
                self._counted = seen
                common = (self.prefixes.common(request) for request in self.requests[self.live].tolist())
                self.shared[self.live] = prefix_cache.counted_before(common)
        return self.shared[self.live]

    # One iteration ---------------------------------------------------------------------------------------------

    def decide(self) -> Plan:
        """Let the policy decide the next iteration."""
        if self.prefixes is not None:
            return prefix_cache.decide(self, self.prefixes)
        waiting = [self.waiting[request] for request in self.waiting.head()]
        return plan(
            self.table, self.policy, self.pool, self._gather(self.live), self.pages[self.live], waiting
        )

    def iterate(self) -> Iteration:
        """Run one iteration: one round of every request that runs, and the prefill chunks that ride along."""
        report = Iteration()
        running, chunks = self._enact(self.planner(self), report)
        self._run(running, chunks, report)
        self._release_ended(report)
        self.iterations += 1
        return report

    def _enact(self, decision: Plan, report: Iteration) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
        """Follow a plan up to its launches; give the slots that run, and those prefilled with their tokens."""
        self._enter(decision.tier)
        live = self.live
        numbers = self.requests[live]
        queue = self.waiting.head()
        admitted = queue[: len(decision.admit)]
        self._record(decision, numbers, admitted)
        chunks = [(int(live[index]), tokens) for index, tokens in decision.chunks]
        running = live[decision.run]
        pages, planned = decision.pages, live
        common = decision.shared[len(live) :] or (0,) * len(admitted)
        hits = decision.hits or (0,) * len(admitted)
        if decision.preempt:
            self._preempt(live[list(decision.preempt)], report)
            live, pages = np.delete(live, decision.preempt), np.delete(pages, decision.preempt)
        # Only now: while pages go back, they are counted as they were shared before this plan.
        self.shared[planned] = decision.shared[: len(planned)] or 0
        self._hold(admitted, hits)
        self._take_pages(live, pages)
        for request, taken, tokens, hit, counted in zip(
            admitted, decision.admit, decision.admit_chunks, hits, common, strict=True
        ):
            slot = self._admit(request, taken, hit, counted)
            report.admitted.append(request)
            if tokens:
                chunks.append((slot, tokens))
        return running, chunks

    def _enter(self, tier: int | None) -> None:
        """Run this iteration's rounds under the table of the size that the plan chose."""
        if tier != self.tiers.size(self.table):
            self.table = self.tiers.of_size(tier)
            self.backend.use(self.table)

    def _record(self, decision: Plan, numbers: NDArray[np.int64], admitted: list[int]) -> None:
        if self.trace is None:
            return
        self.trace.plan(
            self.iterations,
            preempt=[int(numbers[index]) for index in decision.preempt],
            pages=[[int(number), int(pages)] for number, pages in zip(numbers, decision.pages, strict=True)],
            run=numbers[decision.run].tolist(),
            chunks=[[int(numbers[index]), tokens] for index, tokens in decision.chunks],
            admit=[
                list(entry) for entry in zip(admitted, decision.admit, decision.admit_chunks, strict=True)
            ],
            blocked=[int(numbers[index]) for index in decision.blocked],
            **({} if decision.tier is None else {"tier": decision.tier}),
            **_by_request("hits", admitted, decision.hits),
            **_by_request("shared", [*numbers.tolist(), *admitted], decision.shared),
        )

    def _hold(self, admitted: list[int], hits: Sequence[int]) -> None:
        """Let newcomers hold the pages that they found, before others take pages that nobody holds."""
        for request, hit in zip(admitted, hits, strict=True):
            if self.prefixes is not None and hit:
                self.prefixes.hold(request, self.prefixes.find(request)[:hit])

    def _preempt(self, slots: NDArray[np.int64], report: Iteration) -> None:
        self._apply(life_cycle.PREEMPT, slots, {})
        for slot in slots.tolist():
            request = int(self.requests[slot])
            values = {name: int(self.columns[name][slot]) for name in ("prompt", "limit", "emitted")}
            self.waiting.put_back(request, Waiting(**values))
            report.preempted.append(request)
            self._vacate(slot)

    def _take_pages(self, live: NDArray[np.int64], pages: NDArray[np.int32]) -> None:
        owned = self.pages[live]
        changed = (owned != pages).nonzero()[0]
        if not len(changed):
            return
        slots, more = live[changed], pages[changed] > owned[changed]
        self.pages[slots] = pages[changed]
        entries = zip(more.tolist(), self.requests[slots].tolist(), pages[changed].tolist(), strict=True)
        # Pages return before any are taken, so that the pool never runs over.
        for _, request, taken in sorted(entries, key=itemgetter(0)):
            self.backend.resize(request, taken)

    def _admit(self, request: int, pages: int, hit: int, shared: int) -> int:
        slot = self._place(request)
        self.pages[slot], self.shared[slot] = pages, shared
        if pages:
            self.backend.resize(request, pages)
        found = np.array([hit * self.pool.page_size], np.int32)
        self._apply(life_cycle.ADMIT, np.array([slot]), {"hit": found})
        return slot

    def _run(self, running: NDArray[np.int64], chunks: list[tuple[int, int]], report: Iteration) -> None:
        """Launch until every running request is back at a round state or at its end."""
        while len(running) or chunks:
            members = self._by_state(running)
            groups = [
                Group(self.table.states[code].name, self.requests[slots], self._gather(slots))
                for code, slots in members
            ]
            # Chunks ride with the first launch that reads the weights anyway.
            ride = bool(chunks) and (not groups or any(self._has_rows(group.state) for group in groups))
            riding = tuple(self._chunk(slot, tokens) for slot, tokens in chunks) if ride else ()
            results = self.backend.launch(Launch(tuple(groups), riding))
            report.launches += 1
            for (_, slots), group, args in zip(members, groups, results, strict=True):
                self._apply(group.state, slots, args, report, group)
            if ride:
                for chunk in riding:
                    self._prefilled(chunk, report)
                chunks = []
            state = self.columns["state"][running]
            running = running[self._mid_round[state]]

    def _prefilled(self, chunk: Chunk, report: Iteration) -> None:
        slots = np.array([self._slot_of[chunk.request]])
        if chunk.last:
            self._apply(life_cycle.FIRST, slots, {}, report)
        else:
            self._apply(life_cycle.CHUNK, slots, {"n": np.array([chunk.tokens], np.int32)})

    def _chunk(self, slot: int, tokens: int) -> Chunk:
        start = int(self.columns["kv"][slot])
        fill = fill_slots(self.table, int(self.columns["prompt"][slot]), int(self.columns["emitted"][slot]))
        return Chunk(int(self.requests[slot]), start, tokens, start + tokens == fill)

    def _by_state(self, slots: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """Part slots by their state, in the order of state codes."""
        state = self.columns["state"][slots]
        codes = sorted(set(state.tolist()))
        if len(codes) == 1:
            return [(codes[0], slots)]
        return [(code, slots[state == code]) for code in codes]

    # Steps -----------------------------------------------------------------------------------------------------

    def _apply(
        self,
        event: str,
        slots: NDArray[np.int64],
        args: Args,
        report: Iteration | None = None,
        group: Group | None = None,
    ) -> None:
        """Step the requests in `slots` by one event, and let backend and trace follow; `group` as it was launched."""
        before = self._gather(slots) if group is None else group.columns
        requests = self.requests[slots] if group is None else group.requests
        event_plan = self.table.events[event]
        if event_plan.emits:
            args = {**args, STOP: self.backend.stops(event, requests, before, args)}
        done = step(self.table, before, event, args, np)
        for name, values in done.columns.items():
            if values is not before[name]:
                self.columns[name][slots] = values
        self.backend.settle(event, requests, before, done)
        if report is not None and event_plan.emits:
            report.runs.append((requests, done.emitted))
        if self.trace is not None:
            self._trace_steps(event, slots, args, done)

    def _trace_steps(self, event: str, slots: NDArray[np.int64], args: Args, done: Step) -> None:
        assert self.trace is not None
        for index, slot in enumerate(slots.tolist()):
            state = self.table.states[int(done.columns["state"][index])].name
            self.trace.step(
                self.iterations,
                int(self.requests[slot]),
                event,
                {name: int(values[index]) for name, values in args.items()},
                int(done.transition[index]),
                {name: int(values[index]) for name, values in done.columns.items()},
                0 if state in (END, WAIT) else int(self.pages[slot]),
            )

    def _release_ended(self, report: Iteration) -> None:
        ended = self.live[self.columns["state"][self.live] == self.table.codes[END]]
        for slot in ended.tolist():
            report.finished.append(int(self.requests[slot]))
            self._vacate(slot)

    # Slots -----------------------------------------------------------------------------------------------------

    def _place(self, request: int) -> int:
        """Give a waiting request a slot, in the order of arrival."""
        entry = self.waiting.take(request)
        if not self._free_slots:
            self._grow()
        slot = self._free_slots.pop()
        values = self.table.new_request(entry.prompt, entry.limit) | {"emitted": entry.emitted}
        for name, value in values.items():
            self.columns[name][slot] = value
        self.requests[slot] = request
        self.pages[slot] = self.shared[slot] = 0
        self._slot_of[request] = slot
        where = np.searchsorted(self.requests[self.live], request)
        self.live = np.insert(self.live, where, slot)
        return slot

    def _vacate(self, slot: int) -> None:
        request = int(self.requests[slot])
        if self.pages[slot]:
            self.backend.resize(request, 0)
        self.pages[slot] = 0
        self.live = self.live[self.live != slot]
        del self._slot_of[request]
        self._free_slots.append(slot)

    def _grow(self) -> None:
        size = len(self.pages)
        self._lines = np.concatenate([self._lines, np.zeros_like(self._lines)], 1)
        self.columns = dict(zip(self.columns, self._lines, strict=True))
        self.pages = np.concatenate([self.pages, np.zeros(size, np.int32)])
        self.shared = np.concatenate([self.shared, np.zeros(size, np.int32)])
        self.requests = np.concatenate([self.requests, np.zeros(size, np.int64)])
        self._free_slots = list(range(2 * size - 1, size - 1, -1))

    def _gather(self, slots: NDArray[np.int64]) -> Columns:
        return dict(zip(self.columns, self._lines.take(slots, 1), strict=True))

    def _has_rows(self, state: str) -> bool:
        forward = self.table.state(state).forward
        return forward is not None and self.table.forwards[forward].target_rows > 0

    @property
    def _mid_round(self) -> NDArray[np.bool_]:
        """Tell by state code whether a request there is inside a round."""
        array: NDArray[np.bool_] = self.table.cached(
            "mid_round",
            lambda: np.array([not s.round and not s.built_in for s in self.table.states], np.bool_),
        )
        return array


def _by_request(name: str, requests: Sequence[int], pages: Sequence[int]) -> dict[str, list[list[int]]]:
    """Give a plan's pages as pairs of request and count, where there are any: nothing is said of nobody."""
    pairs = [[request, count] for request, count in zip(requests, pages, strict=False) if count]
    return {name: pairs} if pairs else {}
