"""Several replicas behind one front: the queue, fairness and limits are here, engines in processes of their own.

A waiting job goes to a replica as soon as one has room: to the one that holds the most of its prompt (`routing.py`),
else to the one that runs the least. Replicas keep no queue of note, so that order and fairness stay decided here.
Where a replica is lost, its jobs end with 503, the others go on, and its successor is told the policy in force.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fsm_spec.executor.server import logs
from fsm_spec.executor.server.fair import FairQueue
from fsm_spec.executor.server.job import Delta, Job
from fsm_spec.executor.server.refusal import Refusal, going_down
from fsm_spec.executor.server.replica import Hello, Message, Start
from fsm_spec.executor.server.replica_metrics import FrontMetrics
from fsm_spec.executor.server.routing import PrefixRouter
from fsm_spec.executor.server.served import Elsewhere, Served
from fsm_spec.policy import Policy

# Seconds between two tries to reach a lost replica, and for a page of metrics.
_RETRY, _PATIENCE = 0.5, 5.0


class ReplicaLostError(Exception):
    """Say that a replica's process has ended, or does not answer."""


class Link(Protocol):
    """Reach one replica; every call raises ReplicaLostError where it is gone."""

    async def call(self, method: str, *given: object) -> Any:  # noqa: ANN401 -- what the method gives
        """Call a method of `Replica`."""

    def follow(self, life: str) -> AsyncIterator[list[tuple[int, Delta]]]:
        """Listen to what jobs give, as `Replica.follow`."""


@dataclass
class Lane:
    """Hold the way to one replica: the jobs there, what it is still to be told, and its life while it is up."""

    number: int
    link: Link
    life: str | None = None
    process: int | None = None
    up: asyncio.Event = field(default_factory=asyncio.Event)
    jobs: dict[int, Job] = field(default_factory=dict)
    outbox: list[Message] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)
    losses: int = 0

    def tell(self, message: Message) -> None:
        """Put a message on its way; all that gather meanwhile travel together, in order."""
        self.outbox.append(message)
        self.told.set()

    def describe(self) -> dict[str, Any]:
        """Say whether the replica is up, in which process and life, and how much runs there."""
        return {
            "replica": self.number,
            "up": self.life is not None,
            "process": self.process,
            "life": self.losses + 1,
            "losses": self.losses,
            "running": len(self.jobs),
        }


class Replicas:
    """Run jobs on replicas: the front's `Engines`."""

    def __init__(self, served: Served, session: Elsewhere, links: Sequence[Link]) -> None:
        self.served = served
        self.session = session
        self.lanes = [Lane(number, link) for number, link in enumerate(links)]
        self.queue = FairQueue(served.settings.max_queue, served.settings.max_queue_tokens)
        self.router = PrefixRouter(session.table, session.pool)
        self.counts = FrontMetrics(served.name)
        self._keys = itertools.count()
        self._at: dict[Job, tuple[Lane, int]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._switched: str | dict[str, Any] | None = None
        self._pace = 0.0
        self._stopping = False

    @property
    def alive(self) -> bool:
        """Tell whether any replica can run jobs."""
        return any(lane.life is not None for lane in self.lanes)

    @property
    def running(self) -> int:
        """Count the jobs at replicas."""
        return len(self._at)

    @property
    def fault(self) -> BaseException | None:
        """Give nothing: lost replicas come back."""
        return None

    async def start(self) -> None:
        """Follow all replicas; those that are up serve when this returns."""
        for lane in self.lanes:
            self._tasks.append(asyncio.create_task(self._keep_following(lane)))
            self._tasks.append(asyncio.create_task(self._keep_telling(lane)))
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                for lane in self.lanes:
                    await lane.up.wait()

    async def stop(self) -> None:
        """Tell everyone who waits that nothing more will come, and let replicas send what is left of traces."""
        if self._stopping:
            return
        self._stopping = True
        await self._ask_all("close")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        refusal = going_down("engine_down")
        waiting = list(self._at)
        self._at.clear()
        while self.queue.peek() is not None:
            waiting.append(self.queue.pop())
        for job in waiting:
            job.deliver(Delta(error=refusal))

    # Jobs ------------------------------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue the jobs of one request; raises Refusal where there is no room, or no replica is up."""
        if not self.alive:
            headers = {"Retry-After": "5"}
            raise Refusal("no replica is up", code="engine_down", status=503, headers=headers)
        self.queue.put(jobs, max(1.0, min(60.0, self._pace)))
        for job in jobs:
            if job.deadline is not None:
                wait = job.deadline - time.perf_counter()
                asyncio.get_running_loop().call_later(wait, self._late, job)
        self._feed()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End jobs that nobody waits for any more; one that is at its end is left alone."""
        for job in jobs:
            if job in self._at:
                lane, key = self._at[job]
                self._take(job)
                lane.tell(key)
            elif self.queue.remove(job):
                self._ended_here("abort")
        self._feed()

    def _late(self, job: Job) -> None:
        """End a job whose deadline has passed in the queue; one at a replica ends there."""
        if self.queue.remove(job):
            self._ended_here("deadline")
            job.deliver(Delta(error=job.overdue()))

    def _feed(self) -> None:
        """Hand jobs to replicas as long as any has room."""
        most = self.session.policy.max_running
        while self.queue.peek() is not None:
            loads = {
                lane.number: len(lane.jobs)
                for lane in self.lanes
                if lane.life is not None and len(lane.jobs) < most
            }
            if not loads:
                break
            self._give(self.queue.pop(), loads)
        self.counts.waiting.labels(self.counts.model).set(len(self.queue))

    def _give(self, job: Job, loads: dict[int, int]) -> None:
        # A prompt whose every row must run, as for its log-probabilities, finds nothing anywhere.
        finds = self.session.caches_prefixes and not job.options.prompt_logprobs
        number, pages = self.router.choose(job.prompt if finds else (), loads)
        self.router.note(number, job.prompt)
        lane, key = self.lanes[number], next(self._keys)
        lane.jobs[key] = job
        self._at[job] = lane, key
        lane.tell(Start.of(key, job))
        by = "prefix" if pages else "load"
        self.counts.routed.labels(self.counts.model, str(number), by).inc()
        self.counts.hits.labels(self.counts.model, str(number)).inc(pages)

    def _take(self, job: Job) -> Lane:
        """Forget a job that is at its end."""
        lane, key = self._at.pop(job)
        del lane.jobs[key]
        return lane

    def _ended_here(self, reason: str) -> None:
        self.counts.success.labels(self.counts.model, reason).inc()

    # Replicas --------------------------------------------------------------------------------------------------

    async def _keep_following(self, lane: Lane) -> None:
        """Follow a replica and its successors."""
        while not self._stopping:
            try:
                life = await self._greet(lane)
                async for batch in lane.link.follow(life):
                    if lane.life is None:
                        self._found(lane, life)
                    for key, delta in batch:
                        self._delivered(lane, key, delta)
                    self._feed()
            except ReplicaLostError as error:
                self._lost(lane, str(error))
            except Exception as error:  # noqa: BLE001 -- whatever it is, its jobs must hear of it
                logs.LOGGER.exception("a replica cannot be followed")
                self._lost(lane, str(error))
            else:
                self._lost(lane, "it said no more")
            await asyncio.sleep(_RETRY)

    async def _greet(self, lane: Lane) -> str:
        """Learn which life of a replica this is, and put the policy in force there that the others have."""
        hello = await lane.link.call("hello")
        if not isinstance(hello, Hello):
            raise ReplicaLostError(hello)
        if self._switched is not None:
            await lane.link.call("switch", self._switched)
        lane.process = hello.process
        return hello.life

    def _found(self, lane: Lane, life: str) -> None:
        """Begin to use a replica that is followed now."""
        lane.life = life
        lane.up.set()
        self.counts.up.labels(self.counts.model, str(lane.number)).set(1)
        if lane.losses:
            logs.log("replica is back", replica=lane.number)

    def _delivered(self, lane: Lane, key: int, delta: Delta) -> None:
        job = lane.jobs.get(key)
        if job is None:  # cancelled meanwhile
            return
        job.emitted += delta.tokens
        self.queue.count(job.client, delta.tokens)
        if delta.last:
            self._take(job)
            self._pace = 0.8 * self._pace + 0.2 * (time.perf_counter() - job.arrived)
            if delta.result is not None:
                self.router.note(lane.number, [*job.prompt, *delta.result.token_ids])
        job.deliver(delta)

    def _lost(self, lane: Lane, why: str) -> None:
        """End the jobs of a replica that is gone."""
        if lane.life is None or self._stopping:
            return
        lane.life = None
        lane.up.clear()
        lane.losses += 1
        self.router.forget(lane.number)
        lane.outbox.clear()
        self.counts.up.labels(self.counts.model, str(lane.number)).set(0)
        self.counts.lost.labels(self.counts.model, str(lane.number)).inc()
        logs.log("replica is lost", replica=lane.number, why=why, requests=len(lane.jobs))
        refusal = Refusal(
            f"replica {lane.number}, which ran this request, has ended; send it again",
            code="replica_lost",
            status=503,
            headers={"Retry-After": "1"},
        )
        for job in list(lane.jobs.values()):
            self._take(job)
            self._ended_here("error")
            job.deliver(Delta(error=refusal))

    async def _keep_telling(self, lane: Lane) -> None:
        """Tell a replica what gathers, one batch after another, so that the order stays."""
        while True:
            await lane.told.wait()
            lane.told.clear()
            messages, lane.outbox = lane.outbox, []
            if messages and lane.life is not None:
                # Whoever follows the replica learns that it is lost, and ends its jobs.
                with suppress(ReplicaLostError):
                    await lane.link.call("tell", lane.life, messages)

    async def _ask_all(self, method: str, *given: object) -> dict[int, Any]:
        """Ask all replicas that are up; those that do not answer in time are left out."""

        async def ask(lane: Lane) -> tuple[int, Any]:
            async with asyncio.timeout(_PATIENCE):
                return lane.number, await lane.link.call(method, *given)

        asked = [ask(lane) for lane in self.lanes if lane.life is not None]
        found = await asyncio.gather(*asked, return_exceptions=True)
        return dict(each for each in found if not isinstance(each, BaseException))

    # What is asked of them all ---------------------------------------------------------------------------------

    def refused(self, code: str) -> None:
        """Count a refusal."""
        self.counts.rejected.labels(self.counts.model, code).inc()

    async def metrics(self) -> bytes:
        """Give the metrics of the front and of all replicas that are up, by the label `engine`."""
        return self.counts.page(await self._ask_all("metrics"))

    async def requests(self) -> dict[str, Any]:
        """Say where every request is: sums over all replicas, each live request with its replica."""
        found = await self._ask_all("requests")
        live = [{**each, "replica": number} for number, part in found.items() for each in part["live"]]
        sums = {
            name: sum(part[name] for part in found.values())
            for name in ("iterations", "preempted", "waiting")
        }
        kinds = ("committed", "tentative", "cached", "free")
        return {
            **sums,
            "live": live,
            "waiting": sums["waiting"] + len(self.queue),
            "pages": {kind: sum(part["pages"][kind] for part in found.values()) for kind in kinds},
            "policy": self.session.policy.policy,
            "replicas": [
                {**lane.describe(), **{key: value for key, value in part.items() if key != "live"}}
                for lane in self.lanes
                for part in (found.get(lane.number, {}),)
            ],
        }

    async def switch(self, policy: str | dict[str, Any]) -> dict[str, Any]:
        """Put another policy in force in all replicas, and in those that come back later."""
        found = await self._ask_all("switch", policy)
        for answer in found.values():
            if isinstance(answer, Refusal):
                raise answer
        if not found:
            raise Refusal("no replica is up", code="engine_down", status=503)
        chosen: dict[str, Any] = next(iter(found.values()))
        self._switched = policy
        self.session = self.served.session = replace(self.session, policy=Policy.model_validate(chosen))
        self._feed()
        return chosen

    def describe(self) -> dict[str, Any]:
        """List the replicas; the pool is that of each."""
        return {"replicas": [lane.describe() for lane in self.lanes]}

    def announced(self) -> dict[str, Any]:
        """Count the replicas."""
        return {"replicas": len(self.lanes)}
