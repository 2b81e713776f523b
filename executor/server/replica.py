"""One replica: an engine in a process of its own, told by messages what to run, telling in batches what it gave.

`replicas.py` is the other end. Nothing here knows Ray; `cluster.py` puts both ends together.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fsm_spec.errors import UserError
from fsm_spec.executor.generate import Options
from fsm_spec.executor.server import logs
from fsm_spec.executor.server.command import open_engine
from fsm_spec.executor.server.job import Delta, Job
from fsm_spec.executor.server.refusal import Refusal
from fsm_spec.executor.server.served import Elsewhere
from fsm_spec.load import load

if TYPE_CHECKING:
    from fsm_spec.executor.server.command import Serving
    from fsm_spec.executor.server.settings import Settings


@dataclass(frozen=True)
class Hello:
    """Say what a replica serves; `life` is another after each start."""

    life: str
    process: int
    session: Elsewhere
    settings: Settings


@dataclass(frozen=True)
class Start:
    """Run a job: `grammar` is compiled, `left` seconds to its deadline, `waited` since it came."""

    key: int
    request_id: str
    index: int
    prompt: list[int]
    limit: int
    options: Options
    grammar: str | None
    n: int
    client: str
    priority: int
    left: float | None
    late: int
    waited: float
    counted: bool
    parent: str

    @classmethod
    def of(cls, key: int, job: Job) -> Start:
        """Write a job down: clocks of two machines differ, and an automaton does not travel."""
        now = time.perf_counter()
        controls = job.options.controls
        return cls(
            key,
            job.request_id,
            job.index,
            job.prompt,
            job.limit,
            replace(job.options, controls=replace(controls, grammar=None)),
            controls.grammar.compiled if controls.grammar is not None else None,
            job.n,
            job.client,
            job.priority,
            None if job.deadline is None else job.deadline - now,
            job.late,
            now - job.arrived,
            job.counted,
            job.parent,
        )


_END = Job("", 0, [], 0, Options())  # no job, but the end of what a replica says

Message = Start | int
"""What a replica is told: a job to run, or the key of one to cancel."""


class Replica:
    """Hold an engine; raises nothing while it is made, as whoever made it would only try again: see `hello`."""

    def __init__(self, run: Serving, settings: dict[str, Any], verdict: str) -> None:
        logs.set_up(as_json=run.log_json)
        self.life = secrets.token_hex(8)
        self._refusal: str | None = None
        self._jobs: dict[int, Job] = {}
        self._keys: dict[Job, int] = {}
        self._ready: asyncio.Queue[Job] = asyncio.Queue()
        self._started = False
        try:
            self.served, self.engine = open_engine(run, settings, load(run.spec), verdict)
        except UserError as error:
            self._refusal = str(error)

    async def hello(self) -> Hello | str:
        """Say what is served, or the sentence why nothing is."""
        if self._refusal is not None:
            return self._refusal
        if not self._started:
            self._started = True
            await self.engine.start()
        return Hello(self.life, os.getpid(), Elsewhere.of(self.served.session), self.served.settings)

    async def check_health(self) -> None:
        """Raise where the engine has failed, so that another replica takes its place."""
        # One that was closed has no fault: nobody is to take its place.
        if self._started and self.engine.fault is not None:
            raise RuntimeError(f"the engine failed: {self.engine.fault}")

    async def follow(self, life: str) -> AsyncGenerator[list[tuple[int, Delta]]]:
        """Give what jobs gave until the end: all that is ready at once, and first an empty list.

        Jobs of whoever listened before are dropped. Nothing comes where the caller means an earlier life.
        """
        if life != self.life:
            return
        self.engine.cancel(list(self._jobs.values()))
        self._jobs.clear()
        self._keys.clear()
        self._ready.put_nowait(_END)
        ready: asyncio.Queue[Job] = asyncio.Queue()
        self._ready = ready
        yield []
        while True:
            jobs = [await ready.get()]
            while not ready.empty():
                jobs.append(ready.get_nowait())
            batch = []
            for job in jobs:
                key = self._keys.get(job)
                if key is None:  # cancelled meanwhile
                    continue
                delta = job.take()
                batch.append((key, delta))
                if delta.last:
                    self._forget(key)
            yield batch
            if _END in jobs:
                return

    async def tell(self, life: str, messages: Sequence[Message]) -> bool:
        """Take messages in order; False where they are meant for an earlier life of this replica."""
        if life != self.life:
            return False
        for message in messages:
            if isinstance(message, Start):
                self._start(message)
            elif message in self._jobs:
                self.engine.cancel([self._jobs[message]])
                self._forget(message)
        return True

    def _start(self, told: Start) -> None:
        options = told.options
        if told.grammar is not None:
            grammar = self.served.compiler.start(told.grammar)
            options = replace(options, controls=replace(options.controls, grammar=grammar))
        job = Job(told.request_id, told.index, told.prompt, told.limit, options, told.n, told.client)
        job.priority, job.late = told.priority, told.late
        now = time.perf_counter()
        job.arrived = now - told.waited
        job.deadline = None if told.left is None else now + told.left
        job.counted, job.parent, job.ready = told.counted, told.parent, self._ready
        self._jobs[told.key], self._keys[job] = job, told.key
        try:
            self.engine.submit([job])
        except Refusal as refusal:
            job.deliver(Delta(error=refusal))

    def _forget(self, key: int) -> None:
        del self._keys[self._jobs.pop(key)]

    async def metrics(self) -> bytes:
        """Give this replica's metrics in Prometheus' text form."""
        return await self.engine.metrics()

    async def requests(self) -> dict[str, Any]:
        """Say where every request of this replica is."""
        return await self.engine.requests()

    async def switch(self, policy: str | dict[str, Any]) -> dict[str, Any] | Refusal:
        """Put another policy in force and describe it; a refusal is given, as exceptions change on their way."""
        try:
            return await self.engine.switch(policy)
        except Refusal as refusal:
            return refusal

    async def close(self) -> None:
        """End the engine, send what is left of traces, and say no more."""
        await self.engine.stop()
        self._ready.put_nowait(_END)
