"""The rows of the requests that are on their way, in a run of any length: a window over their numbers that moves on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fsm_spec.engine import refuse
from fsm_spec.policy import Policy, Pool, most_headroom
from fsm_spec.simulator import places as p
from fsm_spec.simulator.metrics import UNSET, RequestLog
from fsm_spec.simulator.workload import Requests
from fsm_spec.step import evaluate
from fsm_spec.table import Table

COLUMNS_OF_LOG = {
    "admitted_ns": p.ADMITTED_NS,
    "first_token_ns": p.FIRST_TOKEN_NS,
    "finish_ns": p.FINISH_NS,
    "emitted": p.EMITTED_TOKENS,
    "prefill_emitted": p.PREFILL_EMITTED,
    "rounds": p.ROUNDS,
    "forwards": p.FORWARDS,
    "preemptions": p.PREEMPTIONS,
    "accepted": p.ACCEPTED,
    "drafted": p.DRAFTED,
}

Integers = NDArray[np.int64]


class Window:
    """Hold a row a request, in `log` int64 [LOG, size]: request r stands at r modulo the size, a power of two.

    `kinds` gives the kinds by which drafts of requests are accepted.
    Raises UserError for the first request that can never run.
    """

    def __init__(
        self,
        table: Table,
        policy: Policy,
        pool: Pool,
        requests: Requests,
        size: int,
        kinds: Callable[[Integers], Integers],
    ) -> None:
        self._table, self._pool, self._policy = table, pool, policy
        self._requests, self._kinds = requests, kinds
        self._refuse()
        self.log = np.zeros((p.LOG, 1 << (max(size, 1) - 1).bit_length()), np.int64)
        self.first = self.loaded = 0

    @property
    def size(self) -> int:
        """Give the rows it has."""
        return self.log.shape[1]

    def load(self, next_: int, margin: int) -> None:
        """Write the rows of more requests; at least `margin` from `next_` on, if there are so many."""
        total = len(self._requests)
        wanted = min(total, next_ + margin)
        while wanted > self.first + self.size:
            self._widen()
        begin, end = self.loaded, min(total, self.first + self.size)
        rows = np.arange(begin, end) & (self.size - 1)
        requests, pool, log = self._requests, self._pool, self.log
        prompt, limit = requests.prompt_tokens[begin:end], requests.output_tokens[begin:end]
        fill = self.fill(prompt, np.zeros(len(prompt), np.int64))
        log[:, rows] = 0
        log[p.ARRIVAL, rows], log[p.PROMPT_TOKENS, rows] = requests.arrival_ns[begin:end], prompt
        log[p.OUTPUT_TOKENS, rows] = limit
        # A request without anything to emit is admitted to its end and holds nothing.
        log[p.TAKE, rows] = np.where(limit > 0, pool.pages_of(fill), 0)
        log[p.LONGEST, rows] = np.where(limit > 0, self._longest(prompt, limit), 0)
        log[p.FILL, rows] = np.where(limit > 0, fill, 0)
        log[p.TEXT_KIND, rows] = self._kinds(np.arange(begin, end))
        for place in (p.ADMITTED_NS, p.FIRST_TOKEN_NS, p.FINISH_NS):
            log[place, rows] = UNSET
        self.loaded = end

    def extend(self, total: int) -> None:
        """Write the rows up to `total`, of requests that came since; the columns hold more than have come."""
        whole = self._requests
        self._requests = Requests(
            whole.arrival_ns[:total], whole.prompt_tokens[:total], whole.output_tokens[:total]
        )
        self._refuse(self.loaded)
        self.load(self.loaded, total - self.loaded)
        self._requests = whole

    def finished(self, next_: int, take: Callable[[RequestLog], None]) -> None:
        """Hand on the oldest requests, up to the first that has not finished, and forget them."""
        rows = np.arange(self.first, next_) & (self.size - 1)
        done = self.log[p.FINISH_NS, rows] != UNSET
        count = len(rows) if done.all() else int(done.argmin())
        if count:
            take(self._rows(rows[:count]))
            self.first += count

    def rest(self) -> RequestLog:
        """Give the rows that have not been handed on."""
        if not self.first and self.loaded <= self.size:
            return self._rows(slice(0, self.loaded))
        return self._rows(np.arange(self.first, self.loaded) & (self.size - 1))

    def _rows(self, rows: Integers | slice) -> RequestLog:
        log = RequestLog(self.log[p.ARRIVAL, rows], self.log[p.PROMPT_TOKENS, rows], self.first)
        for name, place in COLUMNS_OF_LOG.items():
            setattr(log, name, self.log[place, rows])
        return log

    def _widen(self) -> None:
        """Double the size: a long queue is on its way too."""
        numbers = np.arange(self.first, self.loaded)
        wider = np.zeros((p.LOG, 2 * self.size), np.int64)
        wider[:, numbers & (2 * self.size - 1)] = self.log[:, numbers & (self.size - 1)]
        self.log = wider

    def _refuse(self, begin: int = 0) -> None:
        prompt, limit = self._requests.prompt_tokens[begin:], self._requests.output_tokens[begin:]
        never = (prompt < 1) | (limit < 0) | (self._longest(prompt, limit) > self._pool.pages)
        for index in np.flatnonzero(never)[:1].tolist():
            refuse(self._table, self._policy, self._pool, int(prompt[index]), int(limit[index]))

    def _longest(self, prompt: Integers, limit: Integers) -> Integers:
        """Give the most pages each request can ever own, as `policy.longest_pages` does."""
        last = self.fill(prompt, np.maximum(limit - 1, 0))
        more = np.where(limit > 0, most_headroom(self._table, self._policy), 0)
        return np.asarray(self._pool.pages_of(last + more), np.int64)

    def fill(self, prompt: Integers, emitted: Integers) -> Integers:
        """Give the slots that a prefill of each text writes."""
        assert self._table.fill is not None
        columns = {"prompt": prompt, "emitted": emitted}
        return np.asarray(evaluate(self._table, self._table.fill, columns, np), np.int64)
