"""What clients are told of the queue in front of the engine."""

from __future__ import annotations

import pytest

from fsm_spec.executor.generate import Options
from fsm_spec.executor.server.fair import FairQueue, Pace
from fsm_spec.executor.server.job import Job
from fsm_spec.executor.server.refusal import Refusal


def job(limit: int) -> Job:
    """Return a job of one token."""
    return Job("request", 0, [1], limit, Options(limit))


def test_who_finds_the_queue_full_comes_again_when_it_has_moved() -> None:
    """Of eight that run for 40 seconds each one ends every five; a server that runs none has room at once."""
    pace = Pace()
    for _ in range(99):
        pace.note(40)
    assert pytest.approx(5, rel=1e-3) == pace.wait(8)
    assert pytest.approx(40, rel=1e-3) == pace.wait(1)
    assert 1 == pace.wait(99)
    assert 1 == Pace().wait(0)


def test_a_refusal_names_both_limits() -> None:
    """A queue that is full of tokens holds few choices; whoever reads of choices alone looks at the wrong option."""
    queue = FairQueue(9, 20)
    queue.put([job(9)], 1)
    with pytest.raises(Refusal, match="9 waiting choices, or of 20 tokens"):
        queue.put([job(19)], 1)
