"""A composition searched in plain Python, with the answers that `exploration.py` gives of compiled searches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fsm_spec.checker.search import search

if TYPE_CHECKING:
    from fsm_spec.checker.composition import Composition
    from fsm_spec.checker.exploration import Limits
    from fsm_spec.checker.search import Fault

# Bytes that the plain search needs a state, with its moves: objects, where the compiled one has words.
PLAIN_BYTES = 4_000


class Walk:
    """Search a composition that has no packed form; `seconds` hold the search for cycles too."""

    def __init__(self, composed: Composition, limits: Limits, *, symmetry: bool = True) -> None:
        self.composed = composed
        started = time.perf_counter()
        most = max(1, min(limits.states, limits.bytes // PLAIN_BYTES))
        self._found = search(composed, most, symmetry=symmetry)
        self.seconds = time.perf_counter() - started
        self.liveness_seconds = self.compile_seconds = 0.0
        self.shown = frozenset(self._found.shown)
        self.broken = {name: len(fault.path) - 1 for name, fault in self._found.broken.items()}

    @property
    def states(self) -> int:
        """Count the states."""
        return self._found.states

    @property
    def moves(self) -> int:
        """Count the moves."""
        return self._found.transitions

    @property
    def depth(self) -> int:
        """Give the most moves that any state is away from the start."""
        return self._found.depth

    @property
    def complete(self) -> bool:
        """Tell whether all reachable states were searched."""
        return self._found.complete

    def fault(self, name: str) -> Fault:
        """Show how a broken property breaks, on a shortest path."""
        return self._found.broken[name]
