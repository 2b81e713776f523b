"""A stream of events ends when its client leaves or a choice fails, and nothing of its request runs on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest

from fsm_spec.executor.generate import Options
from fsm_spec.executor.server.generation import answer
from fsm_spec.executor.server.intake import Order
from fsm_spec.executor.server.job import Delta, Job
from fsm_spec.executor.server.refusal import Refusal
from fsm_spec.executor.server.stream import EventStream

Message = MutableMapping[str, Any]


@pytest.mark.parametrize("steps", range(5))
def test_leaving_ends_a_stream_also_at_the_moment_a_part_is_sent(steps: int) -> None:
    """One that leaves so many steps of the event loop before a part has gone out is noticed there and then."""
    asyncio.run(_leave_as_a_part_is_sent(steps))


async def _leave_as_a_part_is_sent(steps: int) -> None:
    gone, sending, sent = asyncio.Event(), asyncio.Event(), asyncio.Event()
    left: list[bool] = []

    async def events() -> AsyncGenerator[bytes]:
        yield b"part"
        await asyncio.Event().wait()  # nothing more for a long time

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message.get("body"):
            sending.set()
            await sent.wait()

    stream = EventStream(events(), lambda: left.append(True))
    running = asyncio.create_task(stream({}, receive, send))
    await sending.wait()
    gone.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    sent.set()
    async with asyncio.timeout(5):
        await running
    assert [True] == left


def test_a_choice_that_fails_ends_the_others_of_its_stream() -> None:
    """After the error nobody reads, so the choices that still run are cancelled."""
    cancelled, sent = asyncio.run(_fail_one_of_two())
    assert cancelled == [0, 1]
    assert sent.endswith(b"data: [DONE]\n\n")
    assert b"not_finite" in sent


async def _fail_one_of_two() -> tuple[list[int], bytes]:
    jobs = [Job("request", index, [1], 8, Options()) for index in range(2)]
    order = Order("request", "cmpl", 0, 2, jobs, 1, stream=True)
    for job in jobs:
        job.ready = order.ready
    cancelled: list[int] = []
    sent: list[bytes] = []

    async def receive() -> Message:
        await asyncio.Event().wait()  # the client stays
        return {}

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))

    engines: Any = SimpleNamespace(
        submit=lambda _: None, cancel=lambda given: cancelled.extend(job.index for job in given)
    )
    served: Any = SimpleNamespace(fingerprint="", name="tiny")
    request: Any = SimpleNamespace(receive=receive, state=SimpleNamespace())
    jobs[0].deliver(Delta("said", 1))
    stream = await answer(order, served, engines, request)
    jobs[0].deliver(Delta(error=Refusal("no law", code="not_finite", status=500)))
    async with asyncio.timeout(5):
        await stream({"type": "http"}, receive, send)
    return cancelled, b"".join(sent)


def test_nothing_is_left_of_a_request_whose_client_has_left() -> None:
    """What waited for its answer, and for its client, has ended when the refusal is told."""
    assert asyncio.run(_leave_before_an_answer()) == 1


async def _leave_before_an_answer() -> int:
    job = Job("request", 0, [1], 8, Options())
    order = Order("request", "cmpl", 0, 1, [job], 1, ready=job.ready)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    engines: Any = SimpleNamespace(submit=lambda _: None, cancel=lambda _: None)
    served: Any = SimpleNamespace(fingerprint="", name="tiny")
    request: Any = SimpleNamespace(receive=receive, state=SimpleNamespace())
    with pytest.raises(Refusal, match="has left"):
        await answer(order, served, engines, request)
    return len(asyncio.all_tasks())
