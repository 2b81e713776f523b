"""Stop strings over a stream of text: nothing that may be the start of one is let out."""

from __future__ import annotations

from collections.abc import Sequence


class StopText:
    """Hold back text until it can be no part of a stop string; the earliest stop string ends the text before it.

    `include` ends the text behind the stop string; the first `unread` pieces are let out as they are. `found` names
    the stop string that came.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False, unread: int = 0) -> None:
        self.stops = [stop for stop in stops if stop]
        self.found = ""
        self._include = include
        self._unread = unread
        self._held = ""

    def push(self, pieces: Sequence[str]) -> tuple[str, int]:
        """Take text in pieces -> (what is now certain, the pieces read); those behind a stop string are not read.

        A stop string counts with the piece that completes it: one that is whole earlier wins over one that began
        earlier.
        """
        if self.found:
            return "", 0
        if self._unread > 0:
            return self._pass_on(pieces)
        held = self._held + "".join(pieces)
        keep = 0
        for stop in self.stops:
            if stop[0] not in held:  # most text has nothing of a stop string
                continue
            if stop in held:
                return self._end(held) if len(pieces) == 1 else self._push_each(pieces)
            keep = max(keep, _overlap(held, stop))
        if not keep:
            self._held = ""
            return held, len(pieces)
        certain = len(held) - keep
        self._held = held[certain:]
        return held[:certain], len(pieces)

    def _pass_on(self, pieces: Sequence[str]) -> tuple[str, int]:
        """Let out pieces that nobody looks at, and take the others."""
        passed = pieces[: self._unread]
        self._unread -= len(passed)
        certain, read = self.push(pieces[len(passed) :]) if len(passed) < len(pieces) else ("", 0)
        return "".join(passed) + certain, len(passed) + read

    def _push_each(self, pieces: Sequence[str]) -> tuple[str, int]:
        """Take pieces one by one up to the stop string among them."""
        certain, read = "", 0
        while not self.found:
            certain += self.push(pieces[read : read + 1])[0]
            read += 1
        return certain, read

    def _end(self, held: str) -> tuple[str, int]:
        """End the text at its first stop string."""
        start, self.found = min((held.find(stop), stop) for stop in self.stops if stop in held)
        self._held = ""
        return held[: start + len(self.found)] if self._include else held[:start], 1

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
