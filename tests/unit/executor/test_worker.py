"""Whoever hands a job to the engine's thread hears of its end, also where the engine fails at it or is gone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fsm_spec.compile import compile_table
from fsm_spec.executor.generate import Options
from fsm_spec.executor.server.fair import FairQueue
from fsm_spec.executor.server.job import Job
from fsm_spec.executor.server.refusal import Refusal
from fsm_spec.executor.server.worker import Worker
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool


class Ends:
    """Observe the ends of jobs, and how many wait where levels are told."""

    def __init__(self) -> None:
        self.seen: list[tuple[Job, str]] = []
        self.waiting: list[int] = []

    def changed(self, worker: Worker) -> None:
        """Note who waits."""
        self.waiting.append(len(worker.queue))

    def ended(self, job: Job, reason: str) -> None:
        """Note an end."""
        self.seen.append((job, reason))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever else is observed
        return lambda *_: None


def session() -> Any:  # noqa: ANN401 -- a session that can do nothing
    """Return a session at which every job fails."""

    def add(*_: object) -> int:
        raise RuntimeError("no memory")

    engine = SimpleNamespace(pool=Pool(9, 4), used_pages=0, waiting={}, live=[], policy=Policy())
    runner = SimpleNamespace(table=compile_table(load("ar").spec))
    return SimpleNamespace(engine=engine, runner=runner, has_work=False, add=add)


def job() -> Job:
    """Return a job of three tokens."""
    return Job("request", 0, [1, 2, 3], 4, Options(4))


def test_the_job_at_which_the_engine_fails_hears_of_it() -> None:
    """It and those behind it end with an error each, once."""
    asyncio.run(_fail_at_the_first())


async def _fail_at_the_first() -> None:
    ends, jobs = Ends(), [job(), job()]
    worker = Worker(session(), FairQueue(9, 99), ends)
    worker.start()
    worker.submit(jobs)
    async with asyncio.timeout(10):
        await asyncio.gather(*(each.ready.get() for each in jobs))
    errors = [each.take().error for each in jobs]
    assert ["engine_down", "engine_down"] == [error.code for error in errors if error is not None]
    assert [(each, "error") for each in jobs] == ends.seen
    assert isinstance(worker.fault, RuntimeError)
    with pytest.raises(Refusal, match="not running"):
        worker.submit([job()])


def test_a_job_that_comes_as_the_thread_ends_is_refused() -> None:
    """Between the look whether the engine runs and the queue the thread may have come to its end."""
    asyncio.run(_end_under_a_submit())


async def _end_under_a_submit() -> None:
    worker = Worker(session(), FairQueue(9, 99), Ends())
    worker.start()
    put = worker.queue.put

    def late(jobs: list[Job], retry_after: float) -> None:
        worker.stop()
        put(jobs, retry_after)

    worker.queue.put = late  # type: ignore[method-assign,assignment]
    with pytest.raises(Refusal, match="not running"):
        worker.submit([job(), job()])
    assert not len(worker.queue)


def test_levels_are_those_that_an_answer_tells() -> None:
    """Whoever is told that nobody waits any more, and reads the metrics then, finds the same there."""
    asyncio.run(_ask_behind_a_cancel())


async def _ask_behind_a_cancel() -> None:
    ends, waiting = Ends(), job()
    worker = Worker(session(), FairQueue(9, 99), ends)
    worker.queue.put([waiting], 1)
    worker.cancel([waiting])
    asked = asyncio.create_task(worker.call(lambda: ends.waiting[-1:]))
    await asyncio.sleep(0)  # it stands in the inbox, behind the cancel
    worker.start()
    assert [0] == await asked
    worker.stop()


def test_a_question_that_nobody_waits_for_harms_nobody() -> None:
    """Whoever asks and leaves before the iteration is over must not take the engine along."""
    asyncio.run(_ask_and_leave())


async def _ask_and_leave() -> None:
    worker = Worker(session(), FairQueue(9, 99), Ends())
    asked = asyncio.create_task(worker.call(lambda: "never heard"))
    await asyncio.sleep(0)  # it stands in the inbox
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    worker.start()
    assert "answered" == await worker.call(lambda: "answered")
    assert worker.alive
    worker.stop()


def test_a_job_taken_back_as_the_thread_ends_holds_up_no_other() -> None:
    """Who comes too late takes a job out of the queue while the thread empties it: the others hear of their end."""
    asyncio.run(_take_back_at_the_end())


async def _take_back_at_the_end() -> None:
    first, second = job(), job()
    worker = Worker(session(), FairQueue(9, 99), Ends())
    worker.queue.put([first], 1)
    peek = worker.queue.peek

    def raced() -> Job | None:
        found = peek()
        if found is second:
            worker.queue.remove(second)
        return found

    def fail_and_put(*_: object) -> int:
        worker.queue.put([second], 1)
        raise RuntimeError("no memory")

    worker.session.add = fail_and_put  # type: ignore[method-assign,assignment]
    worker.queue.peek = raced  # type: ignore[method-assign]
    worker.start()
    async with asyncio.timeout(10):
        await first.ready.get()
    error = first.take().error
    assert error is not None
    assert "engine_down" == error.code
    worker.stop()
