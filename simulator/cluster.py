"""Several replicas under one clock: SimPy carries arrivals, routing, failures and scaling, packed runs the rounds.

Requests come by the clock. A replica that fails loses its KV; its requests keep the tokens that the user has, and go on
elsewhere with their text prefilled again. With prefill and decode apart, a request runs to its first token on one
replica, its KV moves, and it goes on on another.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
import simpy
from numpy.typing import NDArray

from fsm_spec.errors import UserError
from fsm_spec.prefix_cache import refusal, usable
from fsm_spec.simulator import places as p
from fsm_spec.simulator.cluster_options import ClusterOptions, Failure
from fsm_spec.simulator.metrics import AMOUNTS, LEVELS, UNSET, KvUse, RequestLog, Usage, summarise
from fsm_spec.simulator.overload import Overload, saturation
from fsm_spec.simulator.packed_run import FOREVER
from fsm_spec.simulator.prepared import Prepared
from fsm_spec.simulator.replica import Part, Replica
from fsm_spec.simulator.simulation import Results
from fsm_spec.simulator.timeline import Timeline

NS = 1_000_000_000
# Counts of a request's parts that add up.
SUMS = {
    "emitted": p.EMITTED_TOKENS,
    "prefill_emitted": p.PREFILL_EMITTED,
    "rounds": p.ROUNDS,
    "forwards": p.FORWARDS,
    "preemptions": p.PREEMPTIONS,
    "accepted": p.ACCEPTED,
    "drafted": p.DRAFTED,
}

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class ClusterResults(Results):
    """Add what only a cluster has: the time that replicas are paid for, tokens found in caches, requests moved."""

    paid_s: float = 0.0
    most_replicas: int = 1
    hit_tokens: int = 0
    moved: int = 0
    loads: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the numbers under their names."""
        return {
            "replica_seconds": round(self.paid_s, 3),
            "most_replicas": self.most_replicas,
            "hit_tokens": self.hit_tokens,
            "moved_requests": self.moved,
            "requests_by_replica": list(self.loads),
        }


class Cluster:
    """Simulate a scenario's requests on the replicas that its options describe.

    Raises UserError for closed loops, whose next request waits for a finish that only its replica knows.
    """

    def __init__(self, prepared: Prepared, options: ClusterOptions) -> None:
        requests = prepared.requests
        if requests.concurrency:
            raise UserError("several replicas take arrivals by the clock; take poisson:RATE or a trace")
        # Without texts in common a cache only helps requests that were preempted, which the replicas see to.
        self._caches = options.prefix_cache and requests.prefixes is not None
        if self._caches:
            assert requests.prefixes is not None
            requests.prefixes.check(prepared.pool.page_size)
            if why := refusal(prepared.table):
                raise UserError(
                    f"{prepared.table.name} leaves no pages to others: {why}; drop --prefix-cache"
                )
        self.prepared, self.options, self.requests = prepared, options, requests
        self.replicas: list[Replica] = []
        self.active: list[Replica] = []
        self._open: list[tuple[Replica, int, bool]] = []
        self._stranded: list[tuple[Part, int, int, int]] = []
        self._turn = self.hit_tokens = self.moved = self._starting = self._most = 0

    def run(self, progress: Callable[[int], None] | None = None) -> ClusterResults:
        """Simulate to the end; `progress` is called with the number of requests that have been routed."""
        if self.options.split is not None:
            end_ns = self._run_apart()
        else:
            environment = simpy.Environment(initial_time=0)
            for _ in range(self.options.replicas):
                self._start(0)
            environment.process(self._arrive(environment, progress))
            for failure in self.options.failures:
                environment.process(self._fail(environment, failure))
            environment.run()
            end_ns = self._finish()
        return self._results(end_ns)

    # Events ----------------------------------------------------------------------------------------------------

    def _arrive(
        self, environment: simpy.Environment, progress: Callable[[int], None] | None
    ) -> Generator[simpy.Event, None, None]:
        """Route each request when it arrives."""
        requests = self.requests
        for index, (arrival_ns, prompt, output) in enumerate(requests):
            yield environment.timeout(max(0, arrival_ns - int(environment.now)))
            self._advance(int(environment.now))
            self._scale(environment)
            if self.active:
                self._route(Part(index), int(environment.now), prompt, output)
            else:
                self._stranded.append((Part(index), prompt, output, 0))
            if progress is not None:
                progress(index + 1)

    def _fail(self, environment: simpy.Environment, failure: Failure) -> Generator[simpy.Event, None, None]:
        """Let a replica fail, move its requests, and bring it back empty."""
        yield environment.timeout(round(failure.at_s * NS))
        now_ns = int(environment.now)
        self._advance(now_ns)
        broken = next((each for each in self.active if each.number == failure.replica), None)
        if broken is None:
            return
        self.active.remove(broken)
        broken.up, broken.until_ns = False, now_ns
        lost, down = broken.lost(), round(failure.down_s * NS)
        alone = not self.active
        if alone:
            yield environment.timeout(down)
            self._start(int(environment.now), failure.replica)
            # Who came while nobody was up waited at the router.
            for part, prompt, output, _ in self._stranded:
                lost.append((part, prompt, output, 0))
            self.moved -= len(self._stranded)
            self._stranded.clear()
        for part, prompt, output, emitted in lost:
            self.moved += 1
            later = Part(part.request, part.done + emitted, first=part.first and emitted == 0)
            self._route(later, int(environment.now), prompt + emitted, output - emitted)
        if not alone:
            yield environment.timeout(down)
            self._start(int(environment.now), failure.replica)

    def _scale(self, environment: simpy.Environment) -> None:
        """Start a replica where there is more than its share to do, let the emptiest one drain where there is less."""
        scale = self.options.autoscale
        if scale is None:
            return
        mean = sum(each.load for each in self.active) / max(1, len(self.active))
        total = len(self.active) + self._starting
        if mean * len(self.active) / max(1, total) > scale.target and total < scale.most:
            self._starting += 1
            environment.process(self._start_later(environment, scale.startup_s))
        elif mean < scale.target / 2 and len(self.active) > scale.least and not self._starting:
            leaving = min(self.active, key=lambda each: (each.load, each.number))
            leaving.up = False
            self.active.remove(leaving)

    def _start_later(
        self, environment: simpy.Environment, seconds: float
    ) -> Generator[simpy.Event, None, None]:
        paid_from = int(environment.now)
        yield environment.timeout(round(seconds * NS))
        self._starting -= 1
        self._start(int(environment.now)).since_ns = paid_from

    def _start(self, now_ns: int, number: int | None = None, role: str = "both") -> Replica:
        """Add an empty replica."""
        used = {each.number for each in self.active}
        free = next(index for index in range(len(used) + 1) if index not in used)
        replica = Replica(self.prepared, free if number is None else number, len(self.requests), now_ns, role)
        self.replicas.append(replica)
        self.active.append(replica)
        self._most = max(self._most, len(self.active))
        return replica

    def _advance(self, now_ns: int) -> None:
        """Bring all replicas up to now, and let their caches learn what was computed."""
        for replica in self.replicas:
            if replica.until_ns < 0:
                replica.advance(now_ns)
        if self._caches:
            self._learn()

    # Routing ---------------------------------------------------------------------------------------------------

    def _route(self, part: Part, now_ns: int, prompt: int, output: int) -> None:
        """Choose a replica for a request and hand it over."""
        chosen = self._choose(part, prompt, self.active)
        hit = 0
        if self._caches:
            pages = self._pages(part.request, prompt)
            size, fill = self.prepared.pool.page_size, self._fill(prompt)
            hit = usable(self.prepared.table, size, chosen.cache.find(pages), fill) * size
            self.hit_tokens += hit
        row = chosen.take(part, now_ns, prompt, output, hit)
        if self._caches:
            self._open.append((chosen, row, False))

    def _choose(self, part: Part, prompt: int, among: Sequence[Replica]) -> Replica:
        """Choose by the routing: in turn, the least load, or the longest known prefix among those not much fuller."""
        if not among:
            raise UserError(
                "no replica is up when a request arrives; give more --replicas or a shorter --fail"
            )
        if self.options.routing == "round-robin":
            self._turn += 1
            return among[(self._turn - 1) % len(among)]
        least = min(among, key=lambda each: (each.load, each.number))
        if self.options.routing != "prefix":
            return least
        pages = self._pages(part.request, prompt)
        most = 1.5 * least.load + 8
        near = [each for each in among if each.load <= most]
        best = max(near, key=lambda each: (each.cache.peek(pages), -each.load, -each.number))
        return best if best.cache.peek(pages) else least

    def _pages(self, request: int, tokens: int) -> Integers:
        assert self.requests.prefixes is not None
        return self.requests.prefixes.pages(request, self.prepared.pool.page_size, tokens)

    def _fill(self, prompt: int) -> int:
        """Return the slots that a prefill writes: a contract may leave the newest token out."""
        return int(self.replicas[0].run.window.fill(np.array([prompt]), np.zeros(1, np.int64))[0])

    def _learn(self) -> None:
        """Let caches know the full pages of prompts once prefilled, and of whole texts at the end."""
        still = []
        for replica, row, prefilled in self._open:
            if replica.until_ns >= 0 and not replica.up:
                continue
            log = replica.run.window.log[:, row]
            begun, done = log[p.FIRST_TOKEN_NS] != UNSET, log[p.FINISH_NS] != UNSET
            part = replica.parts[row]
            tokens = int(log[p.PROMPT_TOKENS] + (log[p.EMITTED_TOKENS] - 1 if done else 0))
            if done or (begun and not prefilled):
                replica.cache.insert(self._pages(part.request, tokens), replica.used_pages)
            if not done:
                still.append((replica, row, prefilled or bool(begun)))
        self._open = still

    # Prefill and decode apart ----------------------------------------------------------------------------------

    def _run_apart(self) -> int:
        """Run all prefills, then the decodes at the times at which their KV has arrived: nothing flows back."""
        split = self.options.split
        assert split is not None
        self._side(
            split.prefill, "prefill", [(ns, Part(i), n, 1, 0) for i, (ns, n, _) in enumerate(self.requests)]
        )
        firsts = list(self.replicas)
        self.active.clear()
        model, cost = self.prepared.model, self.prepared.cost
        slot = model.num_hidden_layers * model.layer_kv_bytes(cost.kv_dtype, cost.tensor_parallel)
        later = []
        for replica in firsts:
            for row, part in enumerate(replica.parts):
                _, prompt, output = self._request(part.request)
                if output > 1:
                    move_ns = round(prompt * slot / (split.gb_s * cost.tensor_parallel))
                    at = int(replica.column(p.FINISH_NS)[row]) + move_ns
                    part.first = True
                    later.append((at, Part(part.request, 1, first=False), prompt + 1, output - 1, prompt))
        self._side(split.decode, "decode", sorted(later, key=lambda each: (each[0], each[1].request)))
        return max(int(each.run.world[p.NOW_NS]) for each in self.replicas)

    def _side(self, count: int, role: str, parts: Sequence[tuple[int, Part, int, int, int]]) -> None:
        """Run one kind of replicas to the end over parts (time, part, prompt, output, slots that are there)."""
        mine = [self._start(0, number, role) for number in range(count)]
        self.active = mine
        for at, part, prompt, output, hit in parts:
            for replica in mine:
                replica.advance(at)
            chosen = self._choose(part, prompt, mine)
            chosen.take(part, at, prompt, output, min(hit, self._fill(prompt) - 1))
        for replica in mine:
            replica.advance(FOREVER)

    def _request(self, index: int) -> tuple[int, int, int]:
        columns = self.requests
        return (
            int(columns.arrival_ns[index]),
            int(columns.prompt_tokens[index]),
            int(columns.output_tokens[index]),
        )

    # Results ---------------------------------------------------------------------------------------------------

    def _finish(self) -> int:
        """Run what is left to the end; give the time at which the last one ends."""
        for replica in self.replicas:
            if replica.until_ns < 0:
                replica.advance(FOREVER)
        return max(int(each.run.world[p.NOW_NS]) for each in self.replicas)

    def _results(self, end_ns: int) -> ClusterResults:
        log = self._log()
        timeline = self._timeline(end_ns)
        pool = self.prepared.pool
        load = Overload(self.requests.arrival_ns, closed=False)
        load.add(0, log.arrival_ns, log.admitted_ns, log.finish_ns)
        paid = 0
        for replica in self.replicas:
            last = int(replica.column(p.FINISH_NS).max(initial=0))
            until = (
                replica.until_ns
                if replica.until_ns >= 0
                else end_ns
                if replica.up
                else max(last, replica.since_ns)
            )
            paid += until - replica.since_ns
        return ClusterResults(
            summarise(log, end_ns, KvUse.of(timeline, pool.pages * self._most, pool.page_size)),
            log,
            timeline,
            sum(each.run.iterations for each in self.replicas),
            sum(each.run.launches for each in self.replicas),
            sum(each.run.recomputed_slots for each in self.replicas),
            self._usage(),
            exact=True,
            verdicts=load.verdicts()
            or saturation(timeline, pool.pages * self._most, self.prepared.policy.max_running * self._most),
            paid_s=paid / NS,
            most_replicas=self._most if self.options.split is None else len(self.replicas),
            hit_tokens=self.hit_tokens,
            moved=self.moved,
            loads=tuple(len(each.parts) for each in self.replicas),
        )

    def _log(self) -> RequestLog:
        """Join the parts of each request: the first token of the first part that gave one, the end of the last."""
        log = RequestLog.of(self.requests)
        for replica in self.replicas:
            if not replica.parts:
                continue
            index = np.array([part.request for part in replica.parts])
            for name, place in SUMS.items():
                np.add.at(getattr(log, name), index, replica.column(place))
            for name, place in (("admitted_ns", p.ADMITTED_NS), ("first_token_ns", p.FIRST_TOKEN_NS)):
                column, mine = getattr(log, name), replica.column(place)
                known = mine != UNSET
                earlier = known & ((column[index] == UNSET) | (mine < column[index]))
                column[index[earlier]] = mine[earlier]
            # A part that ends early on a replica for prefill is not the end.
            last = replica.column(p.FINISH_NS)
            ends = last > log.finish_ns[index]
            log.finish_ns[index[ends]] = last[ends]
        return log

    def _usage(self) -> Usage:
        found = [each.run.usage() for each in self.replicas]
        dwell = {name: sum(each.dwell_ns[name] for each in found) for name in found[0].dwell_ns}
        return Usage(
            sum(each.busy_ns for each in found), np.sum([each.parts for each in found], axis=0), dwell
        )

    def _timeline(self, end_ns: int) -> Timeline:
        """Add up the timelines of all replicas, in buckets of the widest one."""
        total = Timeline(LEVELS, AMOUNTS)
        for replica in self.replicas:
            replica.timeline.close(max(end_ns, replica.timeline.now_ns))
            total.add(replica.timeline)
        return total
