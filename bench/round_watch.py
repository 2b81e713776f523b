"""Note when a device begins and ends the launches of a round: by its own events, or by the host's clock on a CPU."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch

from fsm_spec.executor.device.graphs import Graphs, Work


class Watch(Protocol):
    """Read a clock of the device."""

    def mark(self) -> Any:  # noqa: ANN401 -- a time, or an event that will have one
        """Note a time behind the work so far."""

    def us(self, start: Any, end: Any) -> float:  # noqa: ANN401 -- as above
        """Give the microseconds between two marks, both of which have passed."""

    def wait(self) -> None:
        """Wait for the device."""


class EventWatch:
    """Read a GPU's own clock, by events."""

    def mark(self) -> torch.cuda.Event:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def us(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Give the time between two events."""
        return float(start.elapsed_time(end)) * 1e3

    def wait(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize()


class HostWatch:
    """Read the host's clock, where it is the device."""

    def mark(self) -> float:
        """Read it."""
        return time.perf_counter()

    def us(self, start: float, end: float) -> float:
        """Give the time between two readings."""
        return (end - start) * 1e6

    def wait(self) -> None:
        """Wait for nothing."""


# Work, and the marks before and behind it.
Span = tuple[Work, Any, Any]


class TimedGraphs(Graphs):
    """Run work as `Graphs` does, and note when the device began and ended it."""

    def __init__(self, like: Graphs, watch: Watch) -> None:
        super().__init__(like.place, like.sizes, like.view, required=like.place.graphs)
        self.watch = watch
        self.spans: list[Span] = []

    def run(self, work: Work, given: torch.Tensor) -> list[torch.Tensor]:
        """Run work between two marks."""
        start = self.watch.mark()
        outputs = super().run(work, given)
        self.spans.append((work, start, self.watch.mark()))
        return outputs
