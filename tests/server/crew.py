"""A front with two replicas in this process, behind links that copy what passes, as processes would."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from live_server import SERVING, Running, in_thread

from fsm_spec.executor.server.app import Server
from fsm_spec.executor.server.command import Serving
from fsm_spec.executor.server.job import Delta
from fsm_spec.executor.server.lane import ReplicaLostError
from fsm_spec.executor.server.replica import Replica
from fsm_spec.executor.server.replicas import Replicas
from fsm_spec.executor.server.served import Elsewhere, Served
from fsm_spec.executor.tokenizer import Tokenizer
from fsm_spec.load import load

PAGES = 300


@dataclass
class Copying:
    """Reach a replica of this process; all is pickled on its way. `kill` ends it, the next call makes another."""

    run: Serving
    settings: dict[str, Any]
    replica: Replica | None = None
    killed: asyncio.Event = field(default_factory=asyncio.Event)

    def made(self) -> Replica:
        """Give the replica, a new one where there is none."""
        if self.replica is None:
            self.killed = asyncio.Event()
            self.replica = Replica(self.run, self.settings, "proved")
        return self.replica

    async def call(self, method: str, *given: object) -> Any:  # noqa: ANN401 -- what the method gives
        """Call a method, with copies of what is given."""
        answer = await getattr(self.made(), method)(*pickle.loads(pickle.dumps(given)))  # noqa: S301 -- our own
        return pickle.loads(pickle.dumps(answer))  # noqa: S301 -- our own

    async def follow(self, life: str) -> AsyncGenerator[list[tuple[int, Delta]]]:
        """Listen until the replica is killed."""
        batches = self.made().follow(life)
        killed = asyncio.ensure_future(self.killed.wait())
        try:
            while True:
                batch = asyncio.ensure_future(anext(batches))
                await asyncio.wait({batch, killed}, return_when=asyncio.FIRST_COMPLETED)
                if killed.done():
                    batch.cancel()
                    raise ReplicaLostError("killed by the test")
                try:
                    yield pickle.loads(pickle.dumps(batch.result()))  # noqa: S301 -- our own
                except StopAsyncIteration:
                    return
        finally:
            killed.cancel()

    async def kill(self) -> None:
        """End the replica as if its process had gone."""
        assert self.replica is not None
        engine = self.replica.engine
        self.replica = None
        self.killed.set()
        await engine.stop()


@dataclass
class Crew:
    """Hold a server that runs, and the links to its replicas."""

    running: Running
    links: list[Copying]

    def kill(self, number: int) -> None:
        """End a replica, and wait until that is noticed."""
        assert self.running.loop is not None
        asyncio.run_coroutine_threadsafe(self.links[number].kill(), self.running.loop).result(30)

    def replicas(self) -> list[dict[str, Any]]:
        """Read what `/v1/fsm` says of the replicas."""
        found: list[dict[str, Any]] = self.running.http.get("/v1/fsm").json()["replicas"]
        return found

    def wait_all_up(self) -> None:
        """Wait until all replicas serve."""
        until = time.monotonic() + 60
        while not all(each["up"] for each in self.replicas()):
            assert time.monotonic() < until
            time.sleep(0.02)


@contextmanager
def crew(folder: Path, spec: str = "ngram", **options: Any) -> Iterator[Crew]:  # noqa: ANN401 -- fields of Serving
    """Run a front with two replicas of the tiny model."""
    run = Serving(**{**SERVING, "spec": spec, "model": str(folder), "pages": PAGES, "replicas": 2, **options})
    links = [Copying(run, {"names": ("tiny",)}) for _ in range(2)]
    first = links[0].made()
    session = replace(Elsewhere.of(first.served.session), tokenizer=Tokenizer.from_folder(folder))
    served = Served(session, load(spec), first.served.settings, "proved", 1)
    with in_thread(Server(served, Replicas(served, session, links))) as running:
        yield Crew(running, links)


def slow(links: list[Copying]) -> None:
    """Let every iteration take a while: a tiny model would be done before anything could happen to it."""
    for link in links:
        session = link.made().engine.session
        iterate = session.iterate

        def slowly(iterate: Any = iterate) -> dict[int, str]:  # noqa: ANN401 -- the method it stands for
            time.sleep(0.02)
            found: dict[int, str] = iterate()
            return found

        session.iterate = slowly  # type: ignore[method-assign]
