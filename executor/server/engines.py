"""What the routes ask of whoever runs the jobs: one engine in this process, or replicas in processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from fsm_spec.executor.generate import Session
from fsm_spec.executor.server import machine
from fsm_spec.executor.server.fair import FairQueue
from fsm_spec.executor.server.job import Job
from fsm_spec.executor.server.meter import Meter
from fsm_spec.executor.server.metrics import Metrics
from fsm_spec.executor.server.served import Served
from fsm_spec.executor.server.tracing import Tracing
from fsm_spec.executor.server.worker import Worker


class Engines(Protocol):
    """Run jobs; all methods are called in the event loop."""

    @property
    def alive(self) -> bool:
        """Tell whether jobs can be run."""

    @property
    def running(self) -> int:
        """Count the jobs that run."""

    @property
    def fault(self) -> BaseException | None:
        """Give what ended all serving, if anything did."""

    async def start(self) -> None:
        """Begin to run jobs."""

    async def stop(self) -> None:
        """End; who still waits hears of it. A second call does nothing."""

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue the jobs of one request; raises Refusal where there is no room, or nothing runs them."""

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End jobs that nobody waits for any more; one that is at its end is left alone."""

    def refused(self, code: str) -> None:
        """Count a refusal."""

    async def metrics(self) -> bytes:
        """Give all metrics in Prometheus' text form."""

    async def requests(self) -> dict[str, Any]:
        """Say where every request is."""

    async def switch(self, policy: str | dict[str, Any]) -> dict[str, Any]:
        """Put another policy in force and describe it; raises Refusal for one that cannot run."""

    def describe(self) -> dict[str, Any]:
        """Give what there is to say beside the spec, model and policy."""

    def announced(self) -> dict[str, Any]:
        """Give what the log says of the start beside that."""


class OneEngine:
    """Run jobs on the session of this process, and measure them."""

    def __init__(self, served: Served, session: Session) -> None:
        self.served = served
        self.session = session
        settings = served.settings
        self.meter = Meter(served.table, session.engine.backend)
        session.engine.backend = self.meter
        endpoint = settings.otlp_endpoint
        self.tracing = None if endpoint is None else Tracing.to_endpoint(served, endpoint)
        self.observer = Metrics(served, session, self.meter, self.tracing)
        queue = FairQueue(settings.max_queue, settings.max_queue_tokens)
        self.worker = Worker(session, queue, self.observer)
        self.submit = self.worker.submit
        self.cancel = self.worker.cancel
        self._stopped = False

    @property
    def alive(self) -> bool:
        """Tell whether jobs can be run."""
        return self.worker.alive

    @property
    def running(self) -> int:
        """Count the jobs that run."""
        return len(self.worker.jobs)

    @property
    def fault(self) -> BaseException | None:
        """Give what ended the engine, if anything did."""
        return self.worker.fault

    async def start(self) -> None:
        """Start the engine's thread."""
        self.worker.start()

    async def stop(self) -> None:
        """End the thread after its iteration, and send what is left of traces; a second call does nothing."""
        if self._stopped:
            return
        self._stopped = True
        await asyncio.to_thread(self.worker.stop)
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    def refused(self, code: str) -> None:
        """Count a refusal."""
        self.observer.rejected.labels(*self.observer.who, code).inc()

    async def metrics(self) -> bytes:
        """Give all metrics in Prometheus' text form."""
        return self.observer.page()

    async def requests(self) -> dict[str, Any]:
        """Say where every request is."""
        return await self.worker.call(lambda: machine.snapshot(self.served, self.worker, self.meter))

    async def switch(self, policy: str | dict[str, Any]) -> dict[str, Any]:
        """Put another policy in force, between two iterations."""
        most = self.served.settings.max_running
        chosen = await self.worker.call(lambda: machine.switch_policy(self.session, policy, most))
        return chosen.model_dump()

    def describe(self) -> dict[str, Any]:
        """Add nothing."""
        return {}

    def announced(self) -> dict[str, Any]:
        """Add nothing."""
        return {}
