"""Grammars of resident requests: before a launch the host says which tokens each row may give.

What a grammar allows to a row follows from the text and from the drafts that the row sees. The text the host knows,
once it has seen the round before; the drafts lie on the device, which tells them in a copy of its own before the
forward (`peek.py`). So a request with a grammar costs each launch one wait, and no round is planned ahead while
one is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fsm_spec.executor.control import allowed_at
from fsm_spec.executor.request import Request
from fsm_spec.plan import ForwardPlan

Numbers = NDArray[np.int64]
_BITS = 64


@dataclass(frozen=True)
class Masks:
    """Hold what grammars allow: words int64 [m, r, w] of bits for the first r rows of lines int64 [m]."""

    lines: Numbers
    words: Numbers


@dataclass(frozen=True)
class Asked:
    """Hold what a phase's state tells of its rows: of each operator that reads logits, its rows and their sight."""

    plan: ForwardPlan
    readers: Sequence[Numbers]
    first: Sequence[int]
    """the number of each operator's first mask"""

    def rows(self, told: Numbers) -> Iterator[tuple[int, int, list[int], bool]]:
        """Read what is told of one request -> mask, position, the tokens in front, whether a draft is asked for."""
        if not told[0]:
            return
        at = 1
        for operator in asking(self.plan):
            count, width = len(self.readers[operator]), self.plan.rows
            live, positions, ahead = np.split(told[at : at + count * (2 + width)], [count, 2 * count])
            at += count * (2 + width)
            for row in np.flatnonzero(live).tolist():
                tokens = ahead[row * width : (row + 1) * width]
                known = tokens[: int((tokens >= 0).sum())].tolist()
                yield (
                    self.first[operator] + row,
                    int(positions[row]),
                    known,
                    self.plan.operators[operator].draft,
                )


def asking(plan: ForwardPlan) -> tuple[int, ...]:
    """List the operators of a forward that read logits of rows."""
    return tuple(index for index, each in enumerate(plan.operators) if each.rows and each.op != "capture")


class MaskTable:
    """Gather masks of one launch."""

    def __init__(self, vocabulary: int, rows: int, mask_id: int) -> None:
        self.vocabulary = vocabulary
        self.rows = rows
        self.mask_id = mask_id
        self._words: dict[int, Numbers] = {}

    def allow(
        self, line: int, request: Request, row: int, position: int, ahead: list[int], *, draft: bool
    ) -> None:
        """Note what a request's grammar allows to one row."""
        undrafted = self.mask_id if draft else None
        allowed = allowed_at(request, ahead, position, self.vocabulary, undrafted)
        if allowed is None:
            return
        words = self._words.get(line)
        if words is None:
            words = self._words[line] = np.full((self.rows, -(-self.vocabulary // _BITS)), -1, np.int64)
        bits = np.zeros(words.shape[1] * _BITS, np.bool_)
        bits[: self.vocabulary] = allowed.numpy()
        words[row] = np.packbits(bits, bitorder="little").view(np.int64)

    def masks(self) -> Masks:
        """Give all masks; rows of lines that were not noted may give any token."""
        none = np.zeros((0, self.rows, -(-self.vocabulary // _BITS)), np.int64)
        words = np.stack(list(self._words.values())) if self._words else none
        return Masks(np.array(list(self._words), np.int64), words)
