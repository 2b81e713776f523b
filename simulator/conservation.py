"""Hold a running engine to conservation: pages, slots and requests are neither lost nor made, at every event."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fsm_spec import life_cycle
from fsm_spec.engine import Engine
from fsm_spec.launch import Args, Backend, Launch
from fsm_spec.policy import fill_slots
from fsm_spec.step import Columns, Step, slots
from fsm_spec.table import END, WAIT, Table


class Conservation:
    """Stand between an engine and its backend, and assert after every call that all books balance."""

    def __init__(self, inner: Backend, engine: Callable[[], Engine]) -> None:
        self._inner = inner
        self._engine = engine
        self._owned: dict[int, int] = {}
        self._emitted: dict[int, int] = {}
        self._ended: set[int] = set()
        self.events = 0

    def launch(self, launch: Launch) -> list[Args]:
        """Check that every request's block lies within the pages it owns."""
        self._check_pages()
        engine = self._engine()
        for group in launch.groups:
            held = np.sum(list(slots(engine.table, group.columns, np).values()), axis=0).tolist()
            for request, count in zip(group.requests.tolist(), held, strict=True):
                room = self._owned[request] * engine.pool.page_size
                assert count <= room, f"request {request} holds {count} slots in room for {room}"
        for chunk in launch.chunks:
            room = self._owned[chunk.request] * engine.pool.page_size
            assert chunk.start + chunk.tokens <= room, f"request {chunk.request} prefills beyond its pages"
        return self._inner.launch(launch)

    def stops(
        self, event: str, requests: NDArray[np.int64], columns: Columns, args: Args
    ) -> NDArray[np.int32]:
        """Pass on."""
        return self._inner.stops(event, requests, columns, args)

    def settle(self, event: str, requests: NDArray[np.int64], before: Columns, done: Step) -> None:
        """Check each request's columns after a step: contract, bounds, and tokens that are never taken back."""
        engine = self._engine()
        table = engine.table
        for index, request in enumerate(requests.tolist()):
            self.events += 1
            after = {name: int(values[index]) for name, values in done.columns.items()}
            state = table.states[after["state"]]
            emitted = self._emitted.get(request, 0) + int(done.emitted[index])
            if event == life_cycle.HALT:
                emitted = after["emitted"]
            self._emitted[request] = emitted
            assert emitted == after["emitted"] <= after["limit"], f"request {request} miscounts its tokens"
            assert after["kv"] >= 0, f"request {request} has {after['kv']} committed slots"
            if state.round:
                fill = fill_slots(table, after["prompt"], after["emitted"])
                assert after["kv"] == fill, (
                    f"request {request} holds {after['kv']} slots at a round point, not {fill}"
                )
            if state.name == WAIT:
                assert after["kv"] == 0, f"request {request} waits with KV"
            if state.name == END:
                self._ended.add(request)
        self._inner.settle(event, requests, before, done)

    def resize(self, request: int, pages: int) -> None:
        """Follow a request's pages; counted once each, they never exceed the pool.

        Between two plans, pages whose oldest holder went count too low: a trace says who shares them at plans only.
        """
        self._owned[request] = pages
        engine = self._engine()
        held, pool = sum(self._owned.values()) - int(engine.count_shared().sum()), engine.pool.pages
        assert pages >= 0, f"request {request} holds {pages} pages"
        assert held <= pool, f"{held} pages are owned of {pool}"
        self._inner.resize(request, pages)

    def use(self, table: Table) -> None:
        """Pass on."""
        self._inner.use(table)

    def check(self, submitted: int) -> None:
        """Check the whole between two iterations: nobody is lost, doubled, or holds pages without living."""
        engine = self._engine()
        self._check_pages()
        live = set(engine.requests[engine.live].tolist())
        waiting = set(engine.waiting)
        assert not live & waiting, "a request lives and waits"
        assert not (live | waiting) & self._ended, "a request goes on after its end"
        assert submitted == len(live) + len(waiting) + len(self._ended), "a request is lost"
        for request, pages in self._owned.items():
            assert not pages or request in live, f"request {request} owns {pages} pages without living"
        order = engine.requests[engine.live]
        assert (np.diff(order) > 0).all(), "live requests are out of order"

    def _check_pages(self) -> None:
        engine = self._engine()
        for request, pages in zip(
            engine.requests[engine.live].tolist(), engine.pages[engine.live].tolist(), strict=True
        ):
            assert pages == self._owned.get(request, 0), (
                f"request {request}: engine and backend differ on its pages"
            )
        assert engine.used_pages <= engine.pool.pages, "more pages are used than the pool has"
