"""A stream of events ends when its client leaves, whatever else happens at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest

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

    stream = EventStream(events(), lambda: left.append(True), stall=30)
    running = asyncio.create_task(stream({}, receive, send))
    await sending.wait()
    gone.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    sent.set()
    async with asyncio.timeout(5):
        await running
    assert [True] == left
