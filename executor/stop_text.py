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

    def push(self, pieces: Sequence[str]) -> tuple[str, int]:
        """Take text in pieces -> (what is now certain, the pieces read); those behind a stop string are not read.

        A stop string counts with the piece that completes it: one that is whole earlier wins over one that began
        earlier.
        """
        if self.found:
            return "", 0
        held = self._held + "".join(pieces)
        if not any(stop in held for stop in self.stops):
            return self._let_out(held), len(pieces)
        certain, read = "", 0
        while not self.found:
            held = self._held + pieces[read]
            read += 1
            starts = [(start, stop) for stop in self.stops if (start := held.find(stop)) >= 0]
            if starts:
                start, self.found = min(starts)
                self._held = ""
                certain += held[: start + len(self.found)] if self._include else held[:start]
            else:
                certain += self._let_out(held)
        return certain, read

    def _let_out(self, held: str) -> str:
        """Keep back the end that may begin a stop string, and give what lies before it."""
        keep = max((_overlap(held, stop) for stop in self.stops), default=0)
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
