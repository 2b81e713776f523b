"""Graphs by what they are of: phase (or mail, or chunks), batch bucket, table, view of the weights, wishes of requests.

A key that left one of these out would replay one phase for another, or old weights: each stands in it by name.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from fsm_spec.errors import UserError
from fsm_spec.executor.device.place import Graph, Place
from fsm_spec.executor.device.tape import CaptureRefused

Progress = Callable[[str, int, int], None]


class Work(Protocol):
    """Be what a graph is of: a function of one tensor of some places, and of tensors that are always the same.

    `digest` and `states` name it: those of a phase, or none and what it does.
    """

    @property
    def digest(self) -> str:
        """Give the digest of its table."""

    @property
    def states(self) -> tuple[str, ...]:
        """Name its states."""

    @property
    def variant(self) -> str:
        """Name what it does beyond that; nothing where it is plain."""

    def blank(self, size: int) -> Tensor:
        """Give an input of so many places under which it changes nothing."""

    def __call__(self, given: Tensor, /) -> list[Tensor]:
        """Run."""


class Key(NamedTuple):
    """Name a graph: table digest, states of the phase, places in the batch, the weights' view, what it does more."""

    digest: str
    states: tuple[str, ...]
    bucket: int
    view: str
    variant: str


def buckets(most: int) -> list[int]:
    """List batch sizes: powers of two up to `most`, and `most` itself."""
    sizes = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    return sizes if sizes[-1] == most else [*sizes, most]


class _Slot:
    """Hold work at one batch size: the tensor that its input is written to, and its graph if it has one."""

    def __init__(self, work: Work, given: Tensor) -> None:
        self.work = work
        self.given = given
        self.graph: Graph | None = None


class Graphs:
    """Run work by graphs where the device has them; `required` turns the fallback without a graph into an error.

    `view` gives the name of the weights' present view; a changed view makes new graphs, and old ones are dropped.
    """

    def __init__(
        self, place: Place, sizes: list[int], view: Callable[[], str], *, required: bool = False
    ) -> None:
        self.place = place
        self.sizes = sizes
        self.view = view
        self.required = required
        self._slots: dict[Key, _Slot] = {}
        self._refused: set[tuple[str, ...]] = set()
        self.captured = 0
        self.replayed = 0
        self.eager = 0

    def bucket(self, members: int) -> int:
        """Give the smallest batch size that holds so many requests."""
        return self.sizes[bisect_left(self.sizes, members)]

    def capture_all(self, wanted: Sequence[tuple[Work, int]], progress: Progress | None = None) -> None:
        """Capture the graphs of work at sizes; the largest come first, so that smaller ones reuse their memory."""
        for done, (work, size) in enumerate(wanted):
            if progress is not None:
                progress("capturing graphs", done, len(wanted))
            self._slot(work, size)
        if progress is not None and wanted:
            progress("capturing graphs", len(wanted), len(wanted))

    def run(self, work: Work, given: Tensor) -> list[Tensor]:
        """Run work on an input [bucket, ...]; what it gives stays valid until its next run."""
        slot = self._slot(work, len(given))
        slot.given.copy_(given)
        if slot.graph is None:
            self.eager += 1
            return work(slot.given)
        slot.graph.replay()
        self.replayed += 1
        return slot.graph.outputs

    def _slot(self, work: Work, size: int) -> _Slot:
        view = self.view()
        key = Key(work.digest, work.states, size, view, work.variant)
        slot = self._slots.get(key)
        if slot is None:
            # Graphs of another view read weights that are no longer in force.
            self._slots = {known: held for known, held in self._slots.items() if known.view == view}
            slot = self._slots[key] = _Slot(work, work.blank(size))
            if self.place.graphs:
                slot.graph = self._capture(slot)
        return slot

    def _capture(self, slot: _Slot) -> Graph | None:
        """Capture work on an input that changes nothing."""
        work = slot.work
        try:
            graph = self.place.capture(lambda: work(slot.given))
        except CaptureRefused as refused:
            what = f"the phase {' + '.join(work.states)} has no graph: {refused}"
            if self.required:
                raise UserError(f"{what}; run without --require-graphs") from None
            if work.states not in self._refused:
                warnings.warn(f"{what}; it runs without one", stacklevel=2)
                self._refused.add(work.states)
            return None
        self.captured += 1
        return graph

    @property
    def held(self) -> list[Key]:
        """List the graphs that are held, by their keys."""
        return [key for key, slot in self._slots.items() if slot.graph is not None]
