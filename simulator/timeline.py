"""Series over simulated time: a bounded number of points, exact integrals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Timeline:
    """Integrate levels and add up amounts in buckets that double their width as time grows.

    At most `points` buckets exist, so memory does not grow with the run. Integrals are Python integers:
    exact, and the same whatever the order of merging. Times are nanoseconds and must not go back.
    """

    levels: tuple[str, ...]
    amounts: tuple[str, ...] = ()
    points: int = 256
    width_ns: int = 1_000_000
    now_ns: int = 0
    _integrals: list[list[int]] = field(default_factory=list, repr=False)
    _sums: list[list[int]] = field(default_factory=list, repr=False)
    _peaks: list[int] = field(default_factory=list, repr=False)
    _current: tuple[int, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        """Start with empty buckets and levels of zero."""
        self.points += self.points % 2  # buckets merge in pairs
        self._integrals = [[0] * self.points for _ in self.levels]
        self._sums = [[0] * self.points for _ in self.amounts]
        self._peaks = [0] * len(self.levels)
        self._current = (0,) * len(self.levels)

    def record(self, now_ns: int, levels: Sequence[int], amounts: Sequence[int] = ()) -> None:
        """Set the levels that hold from now on, and add amounts that happened now.

        The levels given before hold until now. Raises ValueError if time goes back or a column is missing.
        """
        if len(levels) != len(self.levels) or len(amounts) not in {0, len(self.amounts)}:
            raise ValueError("one value is needed for each column of the timeline")
        self._advance(now_ns)
        self._current = tuple(int(level) for level in levels)
        self._peaks = [max(pair) for pair in zip(self._peaks, self._current, strict=True)]
        # What happens at the end of a bucket belongs to it: its tokens were made during it.
        bucket = max(0, now_ns - 1) // self.width_ns
        for sums, amount in zip(self._sums, amounts, strict=False):
            sums[bucket] += int(amount)

    def absorb(
        self, width_ns: int, now_ns: int, line: Sequence[Sequence[int]], levels: Sequence[Sequence[int]]
    ) -> None:
        """Take over what a compiled run recorded since the last time, in buckets of `width_ns`.

        `line` has a row a level, then one an amount; `levels` are the present ones, and the largest of the run.
        """
        while self.width_ns < width_ns:
            self._double()
        for column, row in zip((*self._integrals, *self._sums), line, strict=True):
            column[:] = [before + more for before, more in zip(column, row, strict=True)]
        self._current, self._peaks = tuple(levels[0]), list(levels[1])
        self.now_ns = now_ns

    def add(self, other: Timeline) -> None:
        """Add another timeline of the same columns that ended at the same time; peaks add up to a bound."""
        while self.width_ns < other.width_ns:
            self._double()
        while other.width_ns < self.width_ns:
            other._double()
        for mine, its in zip((*self._integrals, *self._sums), (*other._integrals, *other._sums), strict=True):
            mine[:] = [left + right for left, right in zip(mine, its, strict=True)]
        self._peaks = [left + right for left, right in zip(self._peaks, other._peaks, strict=True)]
        self.now_ns = max(self.now_ns, other.now_ns)

    def close(self, now_ns: int) -> None:
        """Let the last levels hold until the end of the run."""
        self._advance(now_ns)

    def _advance(self, now_ns: int) -> None:
        """Integrate the current levels up to now, over as many buckets as that takes."""
        if now_ns < self.now_ns:
            raise ValueError(f"time goes back from {self.now_ns} to {now_ns} ns")
        while now_ns > self.width_ns * self.points:
            self._double()
        if any(self._current):
            start = self.now_ns
            while start < now_ns:
                bucket = start // self.width_ns
                end = min(now_ns, (bucket + 1) * self.width_ns)
                for integrals, level in zip(self._integrals, self._current, strict=True):
                    integrals[bucket] += level * (end - start)
                start = end
        self.now_ns = now_ns

    def _double(self) -> None:
        """Merge neighbours, which halves the buckets in use."""
        empty = [0] * (self.points // 2)
        for column in (*self._integrals, *self._sums):
            column[:] = [column[i] + column[i + 1] for i in range(0, self.points, 2)] + empty
        self.width_ns *= 2

    @property
    def edges_ns(self) -> list[int]:
        """Return the end of each bucket in use; the last one ends now."""
        count = -(-self.now_ns // self.width_ns)
        return [min(self.now_ns, (i + 1) * self.width_ns) for i in range(count)]

    def _spans_ns(self) -> list[int]:
        """Return the length of each bucket in use; only the last one may be shorter than the width."""
        return [end - i * self.width_ns for i, end in enumerate(self.edges_ns)]

    def mean_levels(self, name: str) -> list[float]:
        """Return the time-weighted mean of a level in each bucket."""
        integrals = self._integrals[self.levels.index(name)]
        return [integral / span for integral, span in zip(integrals, self._spans_ns(), strict=False)]

    def rates(self, name: str) -> list[float]:
        """Return the amount a second in each bucket."""
        sums = self._sums[self.amounts.index(name)]
        return [amount * 1e9 / span for amount, span in zip(sums, self._spans_ns(), strict=False)]

    def rate_between(self, name: str, start_ns: int, end_ns: int) -> float:
        """Return the amount a second from one time to another; a bucket that an end cuts counts in proportion."""
        found, before = 0.0, 0
        for amount, edge in zip(self._sums[self.amounts.index(name)], self.edges_ns, strict=False):
            inside = min(edge, end_ns) - max(before, start_ns)
            found += amount * max(0, inside) / (edge - before)
            before = edge
        return found * 1e9 / (end_ns - start_ns)

    def totals(self) -> list[int]:
        """Return the integral of each level over the run so far, in levels times nanoseconds."""
        return [sum(integrals) for integrals in self._integrals]

    def mean(self, name: str) -> float:
        """Return the time-weighted mean of a level over the run so far."""
        return sum(self._integrals[self.levels.index(name)]) / self.now_ns if self.now_ns else 0.0

    def peak(self, name: str) -> int:
        """Return the largest level that was recorded."""
        return self._peaks[self.levels.index(name)]
