"""Host lag: the scheduler plans a round while the one before is still in flight, and sees requests as they were.

A request is known by two sets of columns: those it has, and those the host has `seen`. With no lag they are equal and
only the first is kept. A request that has ended is dropped once the host sees it; a round planned for it meanwhile
runs on dead rows and changes nothing. What takes a request away (an abort, a preemption) and another size of a tier
wait for the round in flight, as in `executor/device/overlap.py`: the host then sees all requests as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsm_spec.checker.automaton import Way
from fsm_spec.table import END, PREFILL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsm_spec.checker.automaton import Automaton, Values


class HostView:
    """Say what the host sees after each move, for a lag of 0 or 1 rounds.

    `books`: where somebody enters what a prefill has written, one in flight is told from one that the host has
    followed: it is seen as it is, though nobody has looked.
    """

    def __init__(self, automaton: Automaton, lag: int, *, books: bool = False) -> None:
        self.lag = lag
        self._books = books
        self._prefill = automaton.table.codes[PREFILL]
        self._end = automaton.table.codes[END]
        # All columns of an ended request but its state are forgotten.
        self.ended: Values = (self._end, *[0] * (len(automaton.names) - 1))

    def done(self, columns: Values) -> bool:
        """Tell whether a request has ended, seen by the host or not."""
        return columns[0] == self._end

    def rounds(self, columns: Values, ways: Sequence[Way]) -> list[tuple[Way, Values]]:
        """Pair each way of a round with what the host sees behind it: with a lag, the columns before the round."""
        if not self.lag:
            return [(way, ()) for way in ways]
        return [(self._hidden(way), columns) for way in ways]

    def firsts(self, ways: Sequence[Way]) -> list[tuple[Way, Values]]:
        """Pair each way of a prefill with what the host sees: with a lag, a first token that stops is not seen yet."""
        guess = next((way.after for way in ways if not self.done(way.after)), None)
        if not self.lag or guess is None:
            return [(way, ()) for way in ways]
        return [(self._hidden(way), guess if self.done(way.after) else self._followed(way)) for way in ways]

    def _followed(self, way: Way) -> Values:
        """Give what is noted of a prefill that went on as the host expects."""
        return way.after if self._books and way.after[0] != self._prefill else ()

    def prefilled(self, columns: Values, seen: Values) -> bool:
        """Tell of a request whose whole prompt a prefill in flight has written, where that is told apart."""
        return self._books and seen == columns

    def dropped(self, columns: Values) -> Way:
        """Give the way of a request whose end the host sees now: it goes, and nothing else happens."""
        return Way(columns, (), 0)

    def _hidden(self, way: Way) -> Way:
        return way._replace(after=self.ended) if self.done(way.after) else way
