"""The queue in front of the engine: limits, priorities, and fairness between clients.

Within a priority the client that was served least goes first, by the virtual token counters of Sheng et al., "Fairness
in Serving Large Language Models" (OSDI 2024): a client's counter grows with the tokens it was served, and one that
comes back is lifted to the least counter among those that wait, so that nobody saves up credit.
The engine never reorders what it was given, so this alone decides who is next.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterator, Sequence

from fsm_spec.executor.server.job import Job
from fsm_spec.executor.server.refusal import Refusal

_MOST_COUNTERS = 4096


class Pace:
    """Hold how long requests ran lately, in the mean, to tell clients when to come again."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def note(self, seconds: float) -> None:
        """Take in how long one has run."""
        self._seconds = 0.8 * self._seconds + 0.2 * seconds

    def wait(self, running: int) -> float:
        """Estimate the seconds until one of those that run ends and the queue moves up, 1 to 60."""
        return max(1.0, min(60.0, self._seconds / max(1, running)))


class FairQueue:
    """Hold waiting jobs; all methods may be called from any thread."""

    def __init__(self, max_jobs: int, max_tokens: int) -> None:
        self.max_jobs = max_jobs
        self.max_tokens = max_tokens
        self.tokens = 0
        self._lock = threading.Lock()
        self._size = 0
        self._lines: dict[tuple[int, str], deque[Job]] = {}
        self._served: dict[str, float] = {}

    def __len__(self) -> int:
        return self._size

    def put(self, jobs: Sequence[Job], retry_after: float) -> None:
        """Queue all jobs of a request or none; raises Refusal with 429 where they do not fit now.

        More than could ever fit is refused before it comes here (`Served.require_room`).
        """
        tokens = sum(_cost(job) for job in jobs)
        with self._lock:
            if self._size + len(jobs) > self.max_jobs or self.tokens + tokens > self.max_tokens:
                raise Refusal(
                    f"the server is at its limit of {self.max_jobs} waiting choices, or of {self.max_tokens} tokens "
                    "that these ask for; try again later",
                    code="queue_full",
                    status=429,
                    headers={"Retry-After": str(max(1, math.ceil(retry_after)))},
                )
            for job in jobs:
                self._append(job)

    def _append(self, job: Job) -> None:
        if job.client not in {client for _, client in self._lines}:
            least = min((self._served.get(client, 0.0) for _, client in self._lines), default=0.0)
            self._served[job.client] = max(self._served.get(job.client, 0.0), least)
        self._lines.setdefault((job.priority, job.client), deque()).append(job)
        self._size += 1
        self.tokens += _cost(job)

    def peek(self) -> Job | None:
        """Give the job that is next."""
        with self._lock:
            return self._lines[self._next()][0] if self._lines else None

    def pop(self) -> Job:
        """Take the job that is next, and count its prompt as served."""
        with self._lock:
            key = self._next()
            job = self._lines[key][0]
            self._take(key, job)
            self._count(job.client, len(job.prompt))
            return job

    def _next(self) -> tuple[int, str]:
        return min(self._lines, key=lambda key: (key[0], self._served.get(key[1], 0.0)))

    def remove(self, job: Job) -> bool:
        """Take a job out of the queue; tell whether it was there."""
        with self._lock:
            key = (job.priority, job.client)
            if job not in self._lines.get(key, ()):
                return False
            self._take(key, job)
            return True

    def _take(self, key: tuple[int, str], job: Job) -> None:
        self._lines[key].remove(job)
        if not self._lines[key]:
            del self._lines[key]
        self._size -= 1
        self.tokens -= _cost(job)

    def empty(self) -> list[Job]:
        """Take all jobs out, in no order; at once, as others may take theirs back meanwhile."""
        with self._lock:
            jobs = [job for line in self._lines.values() for job in line]
            self._lines.clear()
            self._size = self.tokens = 0
            return jobs

    def count(self, client: str, tokens: int) -> None:
        """Count tokens that a client was served."""
        with self._lock:
            self._count(client, tokens)

    def _count(self, client: str, tokens: int) -> None:
        self._served[client] = self._served.get(client, 0.0) + tokens
        if len(self._served) > _MOST_COUNTERS:
            waiting = {name for _, name in self._lines}
            self._served = {name: served for name, served in self._served.items() if name in waiting}

    def overdue(self, now: float) -> Iterator[Job]:
        """Give the jobs whose deadline has passed."""
        with self._lock:
            jobs = [job for line in self._lines.values() for job in line]
        return (job for job in jobs if job.deadline is not None and job.deadline <= now)


def _cost(job: Job) -> int:
    return len(job.prompt) + job.limit
