"""What pieces of a transition mean on the device: `executor/carry.py:Scope` in fixed shapes.

Lengths that depend on data become masks: a run of pieces is laid out over the most tokens that it can have, and each
place finds its piece by comparing numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fsm_spec.executor.carry import CERTAIN, EMPTY, MASK, TEXT
from fsm_spec.executor.device.state import DeviceState
from fsm_spec.kernels.fixed.gather import gather_ids
from fsm_spec.kernels.fixed.pieces import lay_tokens
from fsm_spec.kernels.tree import Tree
from fsm_spec.kernels.unmask import MASKED
from fsm_spec.language.expression import Const, Expr
from fsm_spec.language.piece import Piece
from fsm_spec.step import evaluate
from fsm_spec.table import Table

# A number that is the same for all requests, or int64 [n].
Number = int | Tensor


class Namespace:
    """Be the array namespace of the step on one device: constants are tensors there, so that no launch copies them."""

    int32 = torch.int32

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def asarray(self, value: int, dtype: torch.dtype) -> Tensor:
        """Make a constant."""
        return torch.full((), value, dtype=dtype, device=self.device)

    where = staticmethod(torch.where)
    minimum = staticmethod(torch.minimum)
    maximum = staticmethod(torch.maximum)


def namespace(table: Table, device: torch.device) -> Namespace:
    """Give the namespace of a device; the table keeps it, as it keeps the functions compiled for it."""
    space: Namespace = table.cached(("namespace", str(device)), lambda: Namespace(device))
    return space


@dataclass(frozen=True)
class DeviceScope:
    """Hold what pieces may read: text, carries, outputs, and integers before the event.

    `lines` int64 [n]; `integers` are columns and arguments, int32 [n]; `outputs` are tokens, rows [n, length], laws,
    hidden states [n, length, width], numbers [n, length], and trees.
    """

    table: Table
    space: Any
    state: DeviceState
    lines: Tensor
    integers: dict[str, Tensor]
    outputs: dict[str, Tensor | Tree]
    mask_id: int

    def number(self, expr: Expr) -> Number:
        """Evaluate an expression over columns and counts."""
        if isinstance(expr, Const):
            return expr.value
        values: Tensor = evaluate(self.table, expr, self.integers, self.space)
        return values.long()

    def numbers(self, expr: Expr) -> Tensor:
        """Evaluate an expression for every request, int64 [n]."""
        value = self.number(expr)
        return value if isinstance(value, Tensor) else torch.full_like(self.lines, value)

    def room(self, piece: Piece) -> int:
        """Give the most tokens that a piece can have: its own bounds, or the length of its source."""
        if isinstance(piece.start, Const) and isinstance(piece.stop, Const):
            return max(piece.stop.value - piece.start.value, 0)
        whole = self._length(piece.name)
        return whole - piece.start.value if isinstance(piece.start, Const) else whole

    def _length(self, name: str) -> int:
        output = self.outputs.get(name)
        if output is not None:
            return output.shape[1] if isinstance(output, Tensor) else output.tokens.shape[1]
        held = self.state.tokens.get(name, self.state.wide.get(name))
        return self.state.sizes.text if held is None else held.shape[1]

    def take(self, name: str, index: Tensor) -> Tensor:
        """Read places int64 [n, m] of a source -> [n, m, ...]; places out of its range give any that is in it, or 0."""
        output = self.outputs.get(name)
        if output is not None:
            assert isinstance(output, Tensor), "a tree is carried whole"
            if not output.shape[1]:
                return output.new_zeros((*index.shape, *output.shape[2:]))
            places = index.clamp(0, output.shape[1] - 1)
            first = torch.arange(len(output), device=index.device).unsqueeze(1) * output.shape[1]
            return output.flatten(0, 1)[first + places]
        held = self._held(name)
        places = self.lines.unsqueeze(1) * held.shape[1] + index.clamp(0, held.shape[1] - 1)
        return held.flatten(0, 1)[places]

    def _held(self, name: str) -> Tensor:
        if name == TEXT:
            return self.state.text
        return self.state.tokens[name] if name in self.state.tokens else self.state.wide[name]

    def ids(self, piece: Piece, length: int, vocabulary: int) -> Tensor:
        """Read input ids [n, length] from a carry or the text; masks become the token that stands for them."""
        start = self.numbers(piece.start or Const(0))
        found: Tensor = gather_ids(
            self._held(piece.name), self.lines, start, length, self.mask_id, vocabulary
        )
        return found

    def read(self, piece: Piece, length: int) -> Tensor:
        """Read the first `length` places of a piece, whatever it holds behind its end -> [n, length, ...]."""
        start = 0 if piece.start is None else self.number(piece.start)
        index = torch.arange(length, device=self.lines.device)
        if isinstance(start, Tensor):
            return self.take(piece.name, start.unsqueeze(1) + index)
        return self.take(piece.name, (start + index).expand(len(self.lines), -1))

    def tree(self, name: str) -> Tree:
        """Read trees."""
        output = self.outputs.get(name)
        if output is None:
            return self.state.tree_of(name, self.lines)
        assert isinstance(output, Tree)
        return output

    def tokens(self, pieces: Sequence[Piece], room: int) -> Tensor:
        """Lay out token pieces one behind the other -> int64 [n, room], EMPTY behind the end.

        `mask` fills what the other pieces leave.
        """
        run = torch.full((len(self.lines), room), EMPTY, dtype=torch.int64, device=self.lines.device)
        others = [self._extent(piece) for piece in pieces if piece.name != MASK]
        at: Number = 0
        for piece in pieces:
            stop = at + (room - sum(others) if piece.name == MASK else self._extent(piece))
            self._lay(run, piece, at, stop)
            at = stop
        return run

    def _lay(self, run: Tensor, piece: Piece, start: Number, stop: Number) -> None:
        """Put a token piece into a run [n, room], from place `start` to before `stop`."""
        source, lines, fill = None, None, MASKED
        begin: Number = 0
        if piece.name != MASK:
            begin = 0 if piece.start is None else self.number(piece.start)
            source = self.outputs.get(piece.name)
            assert not isinstance(source, Tree), "a tree is carried whole"
            if source is None:
                source, lines = self._held(piece.name), self.lines
            source, fill = (source.long(), MASKED) if source.shape[1] else (None, 0)
        ends = (begin, start, stop)
        numbers = [0 if isinstance(each, Tensor) else each for each in ends]
        lay_tokens(
            run, source, lines, numbers, *(each if isinstance(each, Tensor) else None for each in ends), fill
        )

    def wide(self, pieces: Sequence[Piece], like: Tensor) -> Tensor:
        """Lay out laws, hidden states or numbers one behind the other -> [n, *like.shape[1:]], 0 behind the end."""
        value = torch.zeros((len(self.lines), *like.shape[1:]), dtype=like.dtype, device=like.device)
        place = torch.arange(value.shape[1], device=self.lines.device).unsqueeze(0)
        at: Number = 0
        for piece in pieces:
            size = self._extent(piece)
            start, stop = _beside(at), _beside(at + size)
            inside = (place >= start) & (place < stop)
            filled: Tensor | float = 1.0
            if piece.name != CERTAIN:
                begin = 0 if piece.start is None else _beside(self.number(piece.start))
                index = (place - start + begin).expand(len(self.lines), -1)
                filled = self.take(piece.name, index).to(value.dtype)
            shape = (*inside.shape, *[1] * (value.dim() - 2))
            value = torch.where(inside.view(shape), filled, value)
            at = at + size
        return value

    def _extent(self, piece: Piece) -> Number:
        assert piece.stop is not None, "a compiled piece has both ends"
        start = 0 if piece.start is None else self.number(piece.start)
        return self.number(piece.stop) - start


def _beside(number: Number) -> Number:
    """Lay a number of each request beside places."""
    return number.unsqueeze(1) if isinstance(number, Tensor) else number
