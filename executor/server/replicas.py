"""Several replicas behind one front: the queue, fairness and limits are here, engines in processes of their own.

A waiting job goes to a replica as soon as one has room: to the one that holds the most of its prompt (`routing.py`),
else to the one that runs the least. Replicas keep no queue of note, so that order and fairness stay decided here.
Where a replica is lost, its jobs end with 503, the others go on, and its successor is told the policy in force.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from fsm_spec.executor.server import logs
from fsm_spec.executor.server.fair import FairQueue, Pace
from fsm_spec.executor.server.job import Delta, Job
from fsm_spec.executor.server.lane import Lane, Link, ReplicaLostError
from fsm_spec.executor.server.refusal import Refusal, going_down
from fsm_spec.executor.server.replica import Hello, Message, Start
from fsm_spec.executor.server.replica_metrics import FrontMetrics
from fsm_spec.executor.server.routing import PrefixRouter
from fsm_spec.executor.server.served import Elsewhere, Served
from fsm_spec.policy import Policy

# Seconds between two tries to reach a lost replica, and for a page of metrics.
_RETRY, _PATIENCE = 0.5, 5.0
# Seconds between two looks at deadlines, and for a replica to say that one of its jobs has passed its own.
_DEADLINE_STEP, _LAST_WORD = 0.05, 1.0


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
        self._switching = asyncio.Lock()
        self._pace = Pace()
        self._stopping = False

    @property
    def alive(self) -> bool:
        """Tell whether any replica can run jobs."""
        return not self._stopping and any(lane.life is not None for lane in self.lanes)

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
        self._tasks.append(asyncio.create_task(self._keep_time()))
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                for lane in self.lanes:
                    await lane.up.wait()

    async def stop(self) -> None:
        """Tell everyone who waits that nothing more will come, and let replicas send what is left of traces."""
        if self._stopping:
            return
        self._stopping = True
        await self._ask(self._up(), "close")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        refusal = going_down("engine_down")
        waiting = [*self._at, *self.queue.empty()]
        self._at.clear()
        for job in waiting:
            job.deliver(Delta(error=refusal))

    # Jobs ------------------------------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue the jobs of one request; raises Refusal where there is no room, or no replica is up."""
        if self._stopping:
            raise going_down("engine_down")
        if not self.alive:
            headers = {"Retry-After": "5"}
            raise Refusal("no replica is up", code="engine_down", status=503, headers=headers)
        self.queue.put(jobs, self._pace.wait(len(self._at)))
        self._feed()

    def cancel(self, jobs: Sequence[Job], reason: str = "abort") -> None:
        """End jobs that nobody waits for any more; one that is at its end is left alone."""
        for job in jobs:
            if job in self._at:
                lane, key = self._at[job]
                self._take(job)
                lane.tell(key)
            elif self.queue.remove(job):
                self._ended_here(reason)
        self._feed()

    async def _keep_time(self) -> None:
        """End jobs whose deadline passes in the queue, and those of which their replica says nothing."""
        while True:
            await asyncio.sleep(_DEADLINE_STEP)
            now = time.perf_counter()
            silent = [
                job for job in self._at if job.deadline is not None and job.deadline + _LAST_WORD <= now
            ]
            for job in (*self.queue.overdue(now), *silent):
                self.cancel([job], "deadline")
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

    def _give(self, job: Job, loads: dict[int, int]) -> None:
        # A prompt whose every row must run, as for its log-probabilities, finds nothing anywhere.
        finds = self.session.caches_prefixes and not job.options.prompt_logprobs
        number, pages = self.router.choose(job.prompt if finds else (), loads)
        self.router.note(number, job.prompt)
        lane, key = self.lanes[number], next(self._keys)
        job.started = time.perf_counter()
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
                await self._follow(lane)
            except ReplicaLostError as error:
                self._lost(lane, str(error))
            except Exception as error:  # noqa: BLE001 -- whatever it is, its jobs must hear of it
                logs.LOGGER.exception("a replica cannot be followed")
                self._lost(lane, str(error))
            else:
                self._lost(lane, "it said no more")
            await asyncio.sleep(_RETRY)

    async def _follow(self, lane: Lane) -> None:
        """Follow one life of a replica to its end."""
        hello = await lane.link.call("hello")
        if not isinstance(hello, Hello):
            raise ReplicaLostError(hello)
        lane.process = hello.process
        policy = hello.session.policy
        async with aclosing(lane.link.follow(hello.life)) as batches:
            async for batch in batches:
                if lane.life is None:
                    # Another may be put in force while this one is on its way.
                    while policy != self.session.policy:
                        policy = self.session.policy
                        answer = await lane.link.call("switch", policy.model_dump())
                        if isinstance(answer, Refusal):
                            raise ReplicaLostError(answer.message)
                    self._found(lane, hello.life)
                for key, delta in batch:
                    self._delivered(lane, key, delta)
                self._feed()

    def _found(self, lane: Lane, life: str) -> None:
        """Begin to use a replica that is followed now."""
        lane.life = life
        lane.trouble = ""
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
            self._pace.note(time.perf_counter() - job.started)
            if delta.result is not None:
                self.router.note(lane.number, [*job.prompt, *delta.result.token_ids])
        job.deliver(delta)

    def _lost(self, lane: Lane, why: str) -> None:
        """End the jobs of a replica that is gone."""
        if self._stopping:
            return
        if lane.life is None:
            if why != lane.trouble:
                lane.trouble = why
                logs.log("replica is not reached", replica=lane.number, why=why)
            return
        lane.life = None
        lane.up.clear()
        lane.losses += 1
        self.router.forget(lane.number)
        lane.outbox.clear()
        self.counts.up.labels(self.counts.model, str(lane.number)).set(0)
        self.counts.lost.labels(self.counts.model, str(lane.number)).inc()
        logs.log("replica is lost", replica=lane.number, why=why, requests=len(lane.jobs))
        said = f"replica {lane.number}, which ran this request, has ended; send it again"
        self._fail(list(lane.jobs.values()), said)

    def _fail(self, jobs: Sequence[Job], said: str) -> None:
        """End jobs whose replica will not."""
        headers = {"Retry-After": "1"}
        for job in jobs:
            self._take(job)
            self._ended_here("error")
            job.deliver(Delta(error=Refusal(said, code="replica_lost", status=503, headers=headers)))

    async def _keep_telling(self, lane: Lane) -> None:
        """Tell a replica what gathers, one batch after another, so that the order stays."""
        while True:
            await lane.told.wait()
            lane.told.clear()
            messages, lane.outbox = lane.outbox, []
            life = lane.life
            if not messages or life is None:
                continue
            try:
                await lane.link.call("tell", life, messages)
            except Exception as error:  # noqa: BLE001 -- whatever it is, who waits must hear of it
                logs.log("replica was not told", replica=lane.number, why=str(error))
                if lane.life == life:
                    self._untold(lane, messages)
                    await asyncio.sleep(_RETRY)

    def _untold(self, lane: Lane, messages: Sequence[Message]) -> None:
        """End the jobs that a replica may not have heard of; should it have, it is to end them too."""
        keys = [message.key if isinstance(message, Start) else message for message in messages]
        said = f"replica {lane.number} did not take this request; send it again"
        self._fail([lane.jobs[key] for key in keys if key in lane.jobs], said)
        for key in keys:
            lane.tell(key)

    def _up(self) -> list[Lane]:
        return [lane for lane in self.lanes if lane.life is not None]

    async def _ask(
        self, lanes: Sequence[Lane], method: str, *given: object, patience: float | None = _PATIENCE
    ) -> dict[int, Any]:
        """Ask replicas; those that do not answer in time are left out."""

        async def ask(lane: Lane) -> tuple[int, Any]:
            async with asyncio.timeout(patience):
                return lane.number, await lane.link.call(method, *given)

        found = await asyncio.gather(*map(ask, lanes), return_exceptions=True)
        return dict(each for each in found if not isinstance(each, BaseException))

    # What is asked of them all ---------------------------------------------------------------------------------

    def refused(self, code: str) -> None:
        """Count a refusal."""
        self.counts.rejected.labels(self.counts.model, code).inc()

    async def metrics(self) -> bytes:
        """Give the metrics of the front and of all replicas that are up, by the label `engine`."""
        pages = await self._ask(self._up(), "metrics")
        self.counts.waiting.labels(self.counts.model).set(len(self.queue))
        return self.counts.page(pages)

    async def requests(self) -> dict[str, Any]:
        """Say where every request is: sums over all replicas, each live request with its replica."""
        found = await self._ask(self._up(), "requests")
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
        async with self._switching:
            found: dict[int, Any] = {}
            asked: set[str | None] = set()
            # Without a limit of time, as one that answers late switches all the same; it may come back meanwhile.
            while lanes := [lane for lane in self._up() if lane.life not in asked]:
                asked |= {lane.life for lane in lanes}
                found |= await self._ask(lanes, "switch", policy, patience=None)
            refused = [answer for answer in found.values() if isinstance(answer, Refusal)]
            if refused:
                # What runs at one may forbid what others could do.
                took = [lane for lane in self._up() if not isinstance(found.get(lane.number), Refusal)]
                await self._ask(took, "switch", self.session.policy.model_dump(), patience=None)
                raise refused[0]
            if not found:
                raise Refusal("no replica is up", code="engine_down", status=503)
            chosen: dict[str, Any] = next(iter(found.values()))
            policy_now = Policy.model_validate(chosen)
            self.session = self.served.session = replace(self.session, policy=policy_now)
        self._feed()
        return chosen

    def describe(self) -> dict[str, Any]:
        """List the replicas; the pool is that of each."""
        return {"replicas": [lane.describe() for lane in self.lanes]}

    def announced(self) -> dict[str, Any]:
        """Count the replicas."""
        return {"replicas": len(self.lanes)}
