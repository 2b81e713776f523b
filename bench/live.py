"""A server in a thread of this process, on a real socket, for benchmarks and recorded sessions."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from fsm_spec.compile import compile_table
from fsm_spec.executor.models.load import LoadedModel
from fsm_spec.executor.models.random_drafters import random_drafters
from fsm_spec.executor.server.app import Server
from fsm_spec.executor.server.command import Serving, build
from fsm_spec.load import load


@contextmanager
def live(spec: str, model: LoadedModel, **options: Any) -> Iterator[tuple[str, Server]]:  # noqa: ANN401 -- fields of Serving
    """Serve a spec -> (address, the server's parts)."""
    fields: dict[str, Any] = {
        "host": "127.0.0.1", "port": 0, "adapter": None, "mask_id": None, "dtype": "", "params": {},
        "policy": "holdback", "pages": 4096, "page_size": 16, "max_model_len": None, "max_running": None,
        "threads": None, "unproved": False, "log_json": False,
    }  # fmt: skip
    # Heads trained for this model are not to be had; random ones are seldom right, and change no answer.
    drafters = random_drafters(compile_table(load(spec).spec), model.transformer)
    run = Serving(**{**fields, "spec": spec, "model": model.name, **options})
    parts = build(run, {}, load(spec), model=model, drafters=drafters)
    server = uvicorn.Server(uvicorn.Config(parts.app, port=0, log_config=None, access_log=False))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{port}", parts
    finally:
        server.should_exit = True
        thread.join()
        loop.close()
