"""The engine's thread: it alone touches the session; requests come in by an inbox, text goes out to the event loop.

The life of a request here: `submit` (event loop) puts its jobs into the fair queue; before each iteration the thread
hands over as many as have room (`_feed`), runs one iteration of the session, and sends all that it gave to the loop in
one call. A cancelled job leaves between two iterations, and its pages are free at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeVar

from fsm_spec.errors import FsmSpecError
from fsm_spec.executor.generate import Session
from fsm_spec.executor.server import logs
from fsm_spec.executor.server.fair import FairQueue, Pace
from fsm_spec.executor.server.job import Delta, Job
from fsm_spec.executor.server.refusal import Refusal, going_down
from fsm_spec.executor.text_stream import BROKEN_OFF, NOT_FINITE
from fsm_spec.policy import fill_slots

Answer = TypeVar("Answer")
# Deadlines are looked at no more often than this, in seconds.
_DEADLINE_STEP = 0.02
# How clients are told of faults of their own request: a code, and the status where nothing was sent yet.
_FAULTS = {NOT_FINITE: ("not_finite", 500), BROKEN_OFF: ("grammar_broken_off", 400)}


class Observer(Protocol):
    """Hear what happens to jobs; called in the engine's thread."""

    def started(self, job: Job) -> None:
        """Hear that the engine got a job."""

    def progressed(self, job: Job, tokens: int) -> None:
        """Hear that a job emitted tokens."""

    def ended(self, job: Job, reason: str) -> None:
        """Hear that a job is at its end: `stop`, `length`, `abort`, `deadline` or `error`."""

    def iterated(self, seconds: float) -> None:
        """Hear that an iteration is over."""

    def changed(self, worker: Worker) -> None:
        """Hear that levels may have changed: who runs, who waits, which pages are free."""


class Worker:
    """Run a session in a thread of its own."""

    def __init__(self, session: Session, queue: FairQueue, observer: Observer) -> None:
        self.session = session
        self.queue = queue
        self.observer = observer
        self.jobs: dict[int, Job] = {}
        self.fault: BaseException | None = None
        # Jobs at which the engine failed, in neither the queue nor the engine.
        self._failed: list[Job] = []
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._ended = False
        self._checked = 0.0
        self._pace = Pace()
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    # From the event loop ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; deliveries go to the event loop that is running now."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue the jobs of one request; raises Refusal where the queue has no room, or the engine is gone."""
        if self.fault is not None or self._stopping:
            raise Refusal("the engine is not running", code="engine_down", status=503)
        self.queue.put(jobs, self._pace.wait(len(self.jobs)))
        self._wake.set()
        # The thread may have ended meanwhile; whatever it has not found in the queue by then is told here.
        if self._ended and [job for job in jobs if self.queue.remove(job)]:
            raise Refusal("the engine is not running", code="engine_down", status=503)

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End jobs that nobody waits for any more; one that is at its end is left alone."""
        for job in jobs:
            self._post(lambda job=job: self._drop(job, "abort", None))  # type: ignore[misc]

    async def call(self, function: Callable[[], Answer]) -> Answer:
        """Run a function in the engine's thread between two iterations and give what it gives."""
        future: Future[Answer] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # whoever asked has left; to answer would be an error, and end the engine
            try:
                # Whoever reads the metrics behind this answer finds what it tells.
                self.observer.changed(self)
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 -- raised again by whoever waits
                future.set_exception(error)

        self._post(run)
        if self._ended:  # what was posted before that is run, or has been
            raise Refusal("the engine is not running", code="engine_down", status=503)
        return await asyncio.wrap_future(future)

    def stop(self) -> None:
        """End the thread after its iteration; what still runs is dropped."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Tell whether the engine can serve."""
        return self._thread.is_alive() and self.fault is None

    @property
    def idle(self) -> bool:
        """Tell whether nothing waits or runs."""
        return not self.jobs and not len(self.queue)

    def _post(self, action: Callable[[], None]) -> None:
        self._inbox.append(action)
        self._wake.set()

    # In the engine's thread ------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while not self._stopping:
                self._act()
                self._feed()
                if self.session.has_work:
                    self._iterate()
                elif not self._inbox and not len(self.queue):
                    self._wake.wait(1.0)
                    self._wake.clear()
        except BaseException as error:  # noqa: BLE001 -- whatever it is, clients must hear of it
            self.fault = error
            logs.LOGGER.exception("the engine failed")
        failed = Refusal("the engine failed; see the server's log", code="engine_down", status=500)
        # Before the queue is emptied, so that nobody who comes behind that waits for ever.
        self._ended = True
        self._fail_all(going_down("engine_down") if self.fault is None else failed)
        self._act()

    def _act(self) -> None:
        acted = bool(self._inbox)
        while self._inbox:
            self._inbox.popleft()()
        now = time.perf_counter()
        if now - self._checked >= _DEADLINE_STEP:
            self._checked = now
            late = [job for job in self.jobs.values() if job.deadline is not None and job.deadline <= now]
            for job in (*late, *self.queue.overdue(now)):
                self._drop(job, "deadline", job.overdue())
                acted = True
        if acted:
            self.observer.changed(self)

    def _feed(self) -> None:
        """Hand jobs to the engine as long as their prompts would fit beside what it has; one always waits there."""
        engine = self.session.engine
        if not len(self.queue):
            return
        table, pool = self.session.runner.table, engine.pool
        free = pool.pages - engine.used_pages
        free -= sum(
            int(pool.pages_of(fill_slots(table, each.prompt, each.emitted)))
            for each in engine.waiting.values()
        )
        while (job := self.queue.peek()) is not None:
            if len(engine.live) + len(engine.waiting) >= engine.policy.max_running:
                return
            need = int(pool.pages_of(len(job.prompt)))
            if need > free and engine.waiting:
                return
            free -= need
            self._start(self.queue.pop())

    def _start(self, job: Job) -> None:
        try:
            job.number = self.session.add(job.prompt, job.options)
        except FsmSpecError as error:
            self.observer.ended(job, "error")
            self._send([(job, Delta(error=Refusal(str(error))))])
            return
        except BaseException:
            self._failed.append(job)
            raise
        job.started = time.perf_counter()
        self.jobs[job.number] = job
        self.observer.started(job)

    def _iterate(self) -> None:
        before = time.perf_counter()
        texts = self.session.iterate()
        now = time.perf_counter()
        deltas: list[tuple[Job, Delta]] = []
        try:
            for number, text in texts.items():
                job = self.jobs.get(number)
                if job is not None:
                    deltas.append((job, self._delta(job, number, text, now)))
            self.observer.iterated(now - before)
            self.observer.changed(self)
        finally:
            # What others gave is theirs, even where the engine ends at one of them.
            self._send(deltas)

    def _delta(self, job: Job, number: int, text: str, now: float) -> Delta:
        """Gather what a job gave, and forget it where it is at its end."""
        request = self.session.request(number)
        tokens = request.length - request.prompt - job.emitted
        if tokens and not job.emitted:
            job.first_token = now
        delta = Delta(text, tokens)
        if request.scores is not None:
            delta.logprobs = request.scores.tokens[job.emitted :]
            delta.prompt_logprobs = request.scores.prompt[:] if not job.emitted else []
        job.emitted += tokens
        self.queue.count(job.client, tokens)
        self.observer.progressed(job, tokens)
        if self.session.done(number):
            delta.result = self.session.result(number)
            job.cached = delta.result.cached_tokens
            fault = self.session.fault(number)
            self._forget(number)
            self.observer.ended(job, delta.result.finish_reason)
            if fault:
                code, status = _FAULTS[fault]
                return Delta(error=Refusal(fault, code=code, status=status))
            self._pace.note(now - job.started)
        return delta

    def _drop(self, job: Job, reason: str, refusal: Refusal | None) -> None:
        """End a job wherever it is; one that is at its end already is left alone."""
        if job.number is not None and job.number in self.jobs:
            self.session.abort(job.number)
            self._forget(job.number)
        elif not self.queue.remove(job):
            return
        self.observer.ended(job, reason)
        if refusal is not None:
            self._send([(job, Delta(error=refusal))])

    def _forget(self, number: int) -> None:
        del self.jobs[number]
        self.session.forget(number)

    def _fail_all(self, refusal: Refusal) -> None:
        """Tell everyone who waits that nothing more will come."""
        waiting = [*self._failed, *self.jobs.values()]
        self._failed.clear()
        self.jobs.clear()
        waiting += self.queue.empty()
        for job in waiting:
            self.observer.ended(job, "error")
        self._send([(job, Delta(error=refusal)) for job in waiting])

    def _send(self, deltas: list[tuple[Job, Delta]]) -> None:
        """Deliver in the event loop, in one call."""
        assert self._loop is not None
        if deltas:
            try:
                self._loop.call_soon_threadsafe(_deliver, deltas)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return


def _deliver(deltas: list[tuple[Job, Delta]]) -> None:
    for job, delta in deltas:
        job.deliver(delta)
