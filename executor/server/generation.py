"""Run one order: hand its jobs to the engine, follow them, and answer whole or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from fsm_spec.executor.server.answer import Choice, Writer
from fsm_spec.executor.server.engines import Engines
from fsm_spec.executor.server.intake import Order
from fsm_spec.executor.server.job import Delta
from fsm_spec.executor.server.refusal import LEFT, Refusal
from fsm_spec.executor.server.served import Served
from fsm_spec.executor.server.stream import DONE, EventStream, disconnected, encode, event

Answer = TypeVar("Answer")


async def answer(order: Order, served: Served, engines: Engines, request: Request) -> Response | EventStream:
    """Give the response to an order; raises Refusal where it cannot be taken now."""
    engines.submit(order.jobs)
    writer = Writer(order, served)
    request.state.outcome = writer.outcome
    if order.stream:
        # The first word decides between a stream and an error with a status of its own.
        try:
            first = await _unless_left(_next(writer), request)
        except BaseException:
            engines.cancel(order.jobs)
            raise
        if first[1].error is not None:
            engines.cancel(order.jobs)
            first[0].add(first[1])
            raise first[1].error

        def cancel() -> None:
            engines.cancel(order.jobs)

        return EventStream(_events(writer, first, cancel), cancel)
    try:
        await _unless_left(_finish(writer), request)
    except BaseException:
        engines.cancel(order.jobs)
        raise
    return Response(encode(writer.whole()), media_type="application/json")


async def _finish(writer: Writer) -> None:
    """Follow all choices to their ends; raises Refusal where one fails."""
    while any(choice.result is None for choice in writer.choices):
        choice, delta = await _next(writer)
        choice.add(delta)
        if delta.error is not None:
            raise delta.error


async def _next(writer: Writer) -> tuple[Choice, Delta]:
    """Wait for the next thing that comes for any choice."""
    job = await writer.order.ready.get()
    return writer.choices[job.index], job.take()


async def _events(
    writer: Writer, first: tuple[Choice, Delta], cancel: Callable[[], None]
) -> AsyncGenerator[bytes]:
    """Write the events of a stream: chunks as they come and the closing, or an error, which ends all choices."""
    yield b"".join(map(event, writer.opening()))
    left = len(writer.choices)
    choice, delta = first
    while True:
        if delta.error is not None:
            choice.add(delta)
            cancel()
            yield event(delta.error.content()) + DONE
            return
        part = b"".join(map(event, writer.chunks(choice, delta)))
        left -= delta.last
        if part:
            yield part
        if not left:
            break
        choice, delta = await _next(writer)
    yield b"".join(map(event, writer.closing())) + DONE


async def _unless_left(work: Coroutine[Any, Any, Answer], request: Request) -> Answer:
    """Do work as long as the client waits for it; raises Refusal once it has left, and drops the work."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refusal("the client has left", status=LEFT)
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()
        # Until both have ended: what follows receives from the same connection, and a fault is not left unread.
        await asyncio.gather(task, watch, return_exceptions=True)
