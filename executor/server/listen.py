"""Run uvicorn around a server: drain on SIGTERM, end where the engine has failed, say where it listens."""

from __future__ import annotations

import asyncio
import atexit
import resource
import signal
import socket
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import uvicorn

from fsm_spec.errors import UserError
from fsm_spec.executor.server import logs
from fsm_spec.executor.server.address import allow_restart, not_had
from fsm_spec.executor.server.app import Server
from fsm_spec.executor.server.connection import Connection, bounded

# Seconds that last words may take to reach clients.
_FAREWELL = 2
# As vLLM's server asks for; connections are files.
_MOST_FILES = 65535
_ENDING = (signal.SIGTERM, signal.SIGINT)


def listen(server: Server, sockets: list[socket.socket]) -> None:
    """Serve until SIGTERM or SIGINT: from then on new requests are refused and running ones get the time to end."""
    allow_connections()
    Listener(server).run(sockets)
    if server.engines.fault is not None:
        raise UserError(f"the engine failed: {server.engines.fault}; the log says more")


def allow_connections() -> None:
    """Take as many connections as the system lets this process hold; the usual bound of 1024 is soon used up."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if most == resource.RLIM_INFINITY else min(most, _MOST_FILES)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


class Listener(uvicorn.Server):
    """Go on listening while requests end: who comes meanwhile is told to come later, and monitors are answered.

    A second signal ends what runs: its clients hear of it. A third one kills the process.
    """

    def __init__(self, server: Server) -> None:
        config = uvicorn.Config(
            server.app,
            # h11 bounds the size of headers; httptools, which uvicorn would take where it is there, does not.
            http=bounded(server.served.settings.stall),
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=_FAREWELL,
            server_header=False,
            # Longer than clients keep idle connections, so that none meets one that is just being closed.
            timeout_keep_alive=75,
        )
        super().__init__(config)
        self.server = server
        self.until = 0.0
        self._signals: list[int] = []
        self._told = 0

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ANN401 -- as overridden
        """Note a signal; unlike uvicorn's own it is not raised again at the end: the exit code is 0."""
        del frame  # the protocol's
        if not self._signals:
            self.server.guard.draining = True
            self.until = time.monotonic() + self.server.served.settings.drain
        else:
            self.until = 0.0
            for each in _ENDING:
                signal.signal(each, signal.SIG_DFL)
        self._signals.append(sig)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Hear signals, also while the process ends: a second one that comes then must not cut that short."""
        with super().capture_signals():
            yield
        if len(self._signals) == 1:
            for each in _ENDING:
                signal.signal(each, self.handle_exit)
            # The interpreter takes its handlers back before it frees what is large, but leaves this one.
            atexit.register(_ignore_signals)

    async def on_tick(self, counter: int) -> bool:
        """Tell whether to end; nothing brings a failed engine back: whoever watches the process starts another."""
        ended = await super().on_tick(counter)
        self._tell()
        if ended or self.server.engines.fault is not None:
            return True
        return bool(self._signals) and (not self.server.guard.running or time.monotonic() >= self.until)

    def _tell(self) -> None:
        """Log signals here: in a signal's handler the log's stream may be in the middle of a line."""
        for sig in self._signals[self._told :]:
            event = "ending what runs" if self._told else "draining"
            logs.log(event, signal=signal.Signals(sig).name, running=self.server.engines.running)
            self._told += 1

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        allow_restart(sockets or ())
        try:
            await super().startup(sockets)
        except OSError as error:
            # Somebody else has begun to listen since the address was bound.
            await self.lifespan.shutdown()
            assert sockets is not None
            host, port = sockets[0].getsockname()[:2]
            raise not_had(host, port, error) from None
        if self.started:
            _announce(self.server, self)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell whoever still waits that nothing more comes, and let go of those who read nothing."""
        await self.server.engines.stop()
        until = time.monotonic() + _FAREWELL
        while (self.server.guard.running or self._unfinished()) and time.monotonic() < until:  # noqa: ASYNC110 -- as uvicorn waits
            await asyncio.sleep(0.02)
        for connection in self._unfinished():
            connection.transport.abort()
        await super().shutdown(sockets)

    def _unfinished(self) -> list[Connection]:
        return [
            each for each in self.server_state.connections if isinstance(each, Connection) and each.unfinished
        ]


def _ignore_signals() -> None:
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)


def _announce(server: Server, running: uvicorn.Server) -> None:
    """Say where the server listens, once it does."""
    served = server.served
    host, port = running.servers[0].sockets[0].getsockname()[:2]
    place = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    pool = served.session.pool
    logs.log(
        "serving",
        url=f"{place}/v1",
        spec=served.table.name,
        verdict=served.verdict,
        model=served.name,
        context=served.settings.max_model_len,
        pages=pool.pages,
        page_size=pool.page_size,
        prefix_cache=served.session.caches_prefixes,
        fingerprint=served.fingerprint,
        **server.engines.announced(),
    )
    sys.stderr.flush()
