"""A job: one choice of one answer, from the queue through the engine to whoever writes the answer.

The engine's thread appends to a job's outbox; the event loop takes all that has gathered at once. So a reader that is
slow or gone never holds the engine up, and what waits for it is bounded by the tokens of its own request.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from fsm_spec.executor.generate import Options, Result
from fsm_spec.executor.logprobs import TokenLogprob
from fsm_spec.executor.server.refusal import Refusal


@dataclass
class Delta:
    """Hold what became certain since the last look; `result` is there once the job is at its end."""

    text: str = ""
    tokens: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    result: Result | None = None
    error: Refusal | None = None

    @property
    def last(self) -> bool:
        """Tell whether nothing follows."""
        return self.result is not None or self.error is not None

    def add(self, later: Delta) -> None:
        """Append what came later."""
        self.text += later.text
        self.tokens += later.tokens
        self.logprobs += later.logprobs
        self.prompt_logprobs += later.prompt_logprobs
        self.result = later.result
        self.error = later.error


@dataclass(eq=False)
class Job:
    """Describe one choice: what to run, for whom, until when, and where its text goes; times by `perf_counter`.

    `late` is the status of an answer whose deadline passes: 504, or 408 where the client set it itself.
    `n`: choices of each prompt of its request; `cached`: tokens of its prompt that were there. `priority`: lower goes
    first. `number` is the engine's, once it has the job. Not `counted`: one that only scores its
    prompt. `parent` names the client's own trace (W3C traceparent).
    `ready` is shared by the jobs of a request: those for which something has gathered, each once.
    """

    request_id: str
    index: int
    prompt: list[int]
    limit: int
    options: Options
    n: int = 1
    client: str = ""
    priority: int = 0
    deadline: float | None = None
    late: int = 504
    counted: bool = True
    parent: str = ""
    arrived: float = 0.0
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    number: int | None = None
    emitted: int = 0
    cached: int = 0
    ready: asyncio.Queue[Job] = field(default_factory=asyncio.Queue)
    _waiting: Delta | None = None

    def overdue(self) -> Refusal:
        """Give what is said where the deadline has passed."""
        return Refusal("the request took longer than its time limit", code="deadline", status=self.late)

    def deliver(self, delta: Delta) -> None:
        """Take what the engine gave; called in the event loop."""
        if self._waiting is None:
            self._waiting = delta
            self.ready.put_nowait(self)
        else:
            self._waiting.add(delta)

    def take(self) -> Delta:
        """Give all that has gathered; called once for each time that the job was in `ready`."""
        delta, self._waiting = self._waiting, None
        assert delta is not None, "a job is ready only when something was delivered"
        return delta
