"""Server-sent events: one response class that survives slow readers and notices those who left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"


def encode(value: object) -> bytes:
    """Write JSON as UTF-8; half characters, which no valid text holds, become question marks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with JSON."""
    return Response(encode(value), status, headers, media_type="application/json")


def event(value: object) -> bytes:
    """Write one event."""
    return b"data: " + encode(value) + b"\n\n"


async def disconnected(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Send events as an ASGI response; `left` is called once where the client leaves.

    The events come ready as bytes; all that are ready at once are sent in one piece.
    """

    def __init__(self, events: AsyncGenerator[bytes], left: Callable[[], None]) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        # The length of a stream is not known.
        self.raw_headers = [entry for entry in self.raw_headers if entry[0] != b"content-length"]
        self.events = events
        self.left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events or the client are gone."""
        del scope  # the protocol's
        watch = asyncio.create_task(disconnected(receive))
        body = asyncio.create_task(self._send(send))
        try:
            await asyncio.wait({watch, body}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            if not body.done():
                body.cancel()
            _, ended = await asyncio.gather(watch, body, return_exceptions=True)
            await self.events.aclose()
            if isinstance(ended, BaseException):
                self.left()
        if isinstance(ended, Exception):
            raise ended  # a fault of ours, for the log

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for part in self.events:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
