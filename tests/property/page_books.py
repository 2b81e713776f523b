"""The books of pages: what the engine counts is what the allocator holds."""

from __future__ import annotations

from fsm_spec.engine import Engine
from fsm_spec.executor.cache import PageAllocator


def check_pages(engine: Engine, allocator: PageAllocator) -> None:
    """Assert that every page the engine counts is one that the allocator holds, and that none is lost."""
    for slot in engine.live.tolist():
        assert int(engine.pages[slot]) == allocator.held(int(engine.requests[slot]))
    allocator.check()
    assert engine.used_pages + allocator.free == engine.pool.pages
