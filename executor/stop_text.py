"""Stop strings over a stream of text: nothing that may be the start of one is let out."""

from __future__ import annotations

from collections.abc import Sequence


class StopText:
    """Hold back text until it can be no part of a stop string; the earliest stop string ends the text before it.

    `include` ends the text behind the stop string. `found` names the one that came.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self.stops = [stop for stop in stops if stop]
        self.found = ""
        self._include = include
        self._held = ""

    def push(self, text: str) -> str:
        """Take text and return what is now certain; after a stop string nothing is."""
        if self.found:
            return ""
        held = self._held + text
        starts = [(start, stop) for stop in self.stops if (start := held.find(stop)) >= 0]
        if starts:
            start, self.found = min(starts)
            self._held = ""
            return held[: start + len(self.found)] if self._include else held[:start]
        keep = 0
        for stop in self.stops:
            keep = max(keep, _overlap(held, stop))
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def finish(self) -> str:
        """Return what was held back: the text is over, and no stop string came."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Count the characters at the end of a text that begin a stop string."""
    at = text.find(stop[0], max(len(text) - len(stop) + 1, 0))
    while at >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at = text.find(stop[0], at + 1)
    return 0
