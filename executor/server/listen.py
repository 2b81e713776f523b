"""Run uvicorn around a server: drain on SIGTERM, end where the engine has failed, say where it listens."""

from __future__ import annotations

import signal
import sys
from typing import Any

import uvicorn

from fsm_spec.errors import UserError
from fsm_spec.executor.server import logs
from fsm_spec.executor.server.app import Server


def listen(server: Server, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT: from then on new requests are refused and running ones get the time to end."""
    settings = server.served.settings
    config = uvicorn.Config(
        server.app,
        host=host,
        port=port,
        # It bounds the size of headers; httptools, which uvicorn would take where it is there, does not.
        http="h11",
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=max(1, int(settings.drain)),
        server_header=False,
        # Longer than clients keep idle connections, so that none meets one that is just being closed.
        timeout_keep_alive=75,
    )

    class Draining(uvicorn.Server):
        """Tell the guard first, so that what comes on open connections is refused too."""

        def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ANN401 -- as overridden
            if not server.guard.draining:
                server.guard.draining = True
                logs.log("draining", signal=signal.Signals(sig).name, running=server.engines.running)
            del frame  # the protocol's
            # As uvicorn does, but without raising the signal again at the end: the exit code is 0.
            self.force_exit = self.should_exit
            self.should_exit = True

        async def on_tick(self, counter: int) -> bool:
            # Nothing brings a failed engine back: end, so that whoever watches the process starts another.
            return await super().on_tick(counter) or server.engines.fault is not None

        async def startup(self, sockets: Any = None) -> None:  # noqa: ANN401 -- as overridden
            await super().startup(sockets)
            if self.started:
                _announce(server, self)

    Draining(config).run()
    if server.engines.fault is not None:
        raise UserError(f"the engine failed: {server.engines.fault}; the log says more")


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
