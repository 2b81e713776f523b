"""One connection of HTTP/1.1 by uvicorn, which waits for no client for ever.

A request must come whole within a time, its headers here and its body in `guard.py`; and whoever reads nothing for so
long loses the connection, whatever was still on its way. That ends requests as any leaving does.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from fsm_spec.executor.server.refusal import Refusal
from fsm_spec.executor.server.stream import encode

# How often, within the time that a client has, is looked whether it has read anything.
_LOOKS = 4


class Connection(H11Protocol):
    """Bound what a client may keep waiting by `stall` seconds; `bounded` makes a class with another value."""

    stall = 120.0
    _sender: asyncio.TimerHandle | None = None
    _reader: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        # So that writing is paused as long as, and only if, anything is left that the client has not taken.
        transport.set_write_buffer_limits(high=0)
        self._sender = self.loop.call_later(self.stall, self._not_sent)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        super().connection_lost(exc)
        for timer in (self._sender, self._reader):
            if timer is not None:
                timer.cancel()

    @property
    def unfinished(self) -> bool:
        """Tell whether an answer is not written to its end, or not taken."""
        return self._answering is not None or self.transport.get_write_buffer_size() > 0

    @property
    def _answering(self) -> RequestResponseCycle | None:
        cycle: RequestResponseCycle | None = getattr(self, "cycle", None)  # None before the first request
        return None if cycle is None or cycle.response_complete else cycle

    # What the client sends -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        super().data_received(data)
        self._await_sender()

    def on_response_complete(self) -> None:
        """Go on to the next request."""
        super().on_response_complete()
        self._await_sender()

    def _await_sender(self) -> None:
        """Measure the time from the first byte of a request to its last; between requests keep-alive has its own."""
        begun = bool(self.conn.their_state is h11.IDLE and self.conn.trailing_data[0])
        if self.conn.their_state is h11.SEND_BODY or begun:
            if self._sender is None:
                self._sender = self.loop.call_later(self.stall, self._not_sent)
        elif self._sender is not None:
            self._sender.cancel()
            self._sender = None

    def _not_sent(self) -> None:
        """Let go of a client whose request has not come whole."""
        self._sender = None
        if self.conn.their_state is not h11.IDLE:
            if self._answering is None:
                self.transport.abort()  # nobody reads the rest of a body that was refused
            else:
                self._await_sender()  # whoever reads the body says what is missing
        elif self.conn.trailing_data[0]:
            said = f"the headers did not come within {self.stall:g} seconds"
            self._refuse(Refusal(said, code="headers_timeout", status=408))
        else:
            # It may be kept by a proxy for later, which would take words for the answer to its next request.
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP, unless an answer has begun: then they end the connection."""
        del msg  # uvicorn's own words
        self._refuse(Refusal("the bytes are no request of HTTP/1.1", code="invalid_http"))

    def _refuse(self, refusal: Refusal) -> None:
        """Answer in front of all routes, and close."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        if self._answering is not None:
            # Whoever reads the body is told as of any client that has left.
            self._answering.disconnected = True
            self._answering.message_event.set()
        body = encode(refusal.content())
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        answer = h11.Response(status_code=refusal.status, headers=list(headers.items()))
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    # What the client reads -------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        super().pause_writing()
        self._look(self.transport.get_write_buffer_size() + 1, _LOOKS)

    def resume_writing(self) -> None:
        """Wait no more: all is taken."""
        super().resume_writing()
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def _look(self, before: int, looks: int) -> None:
        """Let go of a client of whose `before` bytes nothing has been taken at so many `looks`."""
        left = self.transport.get_write_buffer_size()
        looks = _LOOKS if left < before else looks - 1
        if looks:
            self._reader = self.loop.call_later(self.stall / _LOOKS, self._look, left, looks)
        else:
            self.transport.abort()


def bounded(stall: float) -> type[Connection]:
    """Give connections whose clients have so many seconds."""
    return type("Connection", (Connection,), {"stall": stall})
