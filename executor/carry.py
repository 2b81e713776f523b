"""Carries: named tensors of each request that live across forwards, laid out by the table and moved by its rows.

Token carries of all requests lie in one array each, so that a launch reads them at once; laws, hidden states and
numbers, which are tensors of a width that the model knows, lie by request.
What `emit`, `set` and `source` say is read here, by `Scope`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fsm_spec.executor.request import Request, Tokens
from fsm_spec.kernels.tree import Tree
from fsm_spec.kernels.unmask import MASKED
from fsm_spec.language.expression import Const, Expr, Name
from fsm_spec.language.expression import evaluate as evaluate_one
from fsm_spec.language.piece import Piece
from fsm_spec.step import evaluate
from fsm_spec.table import CarryPlan, Table

Output = Tokens | torch.Tensor | Tree
Integers = NDArray[np.int32] | NDArray[np.int64]

TEXT, MASK, NOISE, CERTAIN = "text", "mask", "noise", "certain"
# No token: what a carry holds where nothing was written; the model refuses it, so that no stale token is ever read.
EMPTY = -1
_FIRST_CAPACITY = 16


class Carries:
    """Hold the carries of all live requests by line; a line belongs to one request at a time."""

    def __init__(self, plans: Sequence[CarryPlan]) -> None:
        self.tokens: dict[str, Tokens] = {}
        self.wide: dict[str, dict[int, torch.Tensor]] = {}
        self.trees: dict[str, dict[int, Tree]] = {}
        self._free = list(range(_FIRST_CAPACITY - 1, -1, -1))
        for plan in plans:
            if plan.type in ("law", "feature", "real"):
                self.wide[plan.name] = {}
            elif plan.type == "tree":
                self.trees[plan.name] = {}
            else:
                self.tokens[plan.name] = np.full((_FIRST_CAPACITY, plan.shape[0] or 0), EMPTY, np.int64)

    def take(self) -> int:
        """Give a free line."""
        if not self._free:
            self._grow()
        return self._free.pop()

    def give_back(self, line: int) -> None:
        """Drop what a line holds and free it."""
        self.drop(line)
        self._free.append(line)

    def drop(self, line: int) -> None:
        """Forget all carries of a line."""
        for values in self.tokens.values():
            values[line] = EMPTY
        for tensors in self.wide.values():
            tensors.pop(line, None)
        for trees in self.trees.values():
            trees.pop(line, None)

    def _grow(self) -> None:
        size = 2 * max((len(values) for values in self.tokens.values()), default=_FIRST_CAPACITY)
        for name, values in self.tokens.items():
            self.tokens[name] = np.concatenate([values, np.full_like(values, EMPTY)])
        self._free = list(range(size - 1, size // 2 - 1, -1))


class Scope:
    """Hold what pieces of a transition may read: text, carries, outputs, and integers before the event.

    `requests` and `lines` are parallel; `integers` are columns and arguments, [n]; `outputs` are arrays [n, length]
    of tokens and of rows, tensors [n, length, width] of laws and hidden states, [n, length] of numbers, and trees of
    n requests. Where members are asked for, None means all.
    """

    __slots__ = ("carries", "integers", "lines", "mask_id", "outputs", "requests", "table")

    def __init__(
        self,
        table: Table,
        requests: Sequence[Request],
        lines: NDArray[np.int64],
        carries: Carries,
        integers: dict[str, Integers],
        mask_id: int,
    ) -> None:
        self.table = table
        self.requests = requests
        self.lines = lines
        self.carries = carries
        self.integers = integers
        self.outputs: dict[str, Output] = {}
        self.mask_id = mask_id

    def numbers(self, expr: Expr) -> NDArray[np.int64]:
        """Evaluate an expression over columns and counts for all members, int64 [n]."""
        values: NDArray[np.int64] = evaluate(self.table, expr, self.integers, np).astype(np.int64)
        return values

    def edge(self, expr: Expr | None, member: int) -> int:
        """Evaluate a bound of a piece for one member."""
        if isinstance(expr, Const):
            return expr.value
        if isinstance(expr, Name):
            return int(self.integers[expr.name][member])
        assert expr is not None, "a compiled piece has both ends"
        return evaluate_one(expr, {name: int(values[member]) for name, values in self.integers.items()})

    def edges(self, expr: Expr | None, members: Integers | None) -> int | Integers:
        """Evaluate a bound of a piece for some members: one number where it is the same for all, else [m]."""
        if isinstance(expr, Const):
            return expr.value
        assert expr is not None, "a compiled piece has both ends"
        values: Integers = (
            self.integers[expr.name]
            if isinstance(expr, Name)
            else evaluate(self.table, expr, self.integers, np)
        )
        return values if members is None else values[members]

    def runs(self, pieces: Sequence[Piece], members: Integers | None) -> Tokens:
        """Read several pieces one after the other for some members, [m, longest]; behind them stands EMPTY."""
        total: int | Integers = 0
        edges = [(self.edges(piece.start, members), self.edges(piece.stop, members)) for piece in pieces]
        for start, stop in edges:
            total = total + _length(start, stop)
        width = total if isinstance(total, int) else max(total.tolist(), default=0)
        return self.gather(pieces, members, width, edges)

    def tokens(self, piece: Piece, width: int) -> Tokens:
        """Read the first `width` tokens of a piece for all members, [n, width]."""
        return self.gather((piece,), None, width)

    def gather(
        self,
        pieces: Sequence[Piece],
        members: Integers | None,
        width: int,
        edges: Sequence[tuple[int | Integers, int | Integers]] = (),
    ) -> Tokens:
        """Read several pieces one after the other for some members -> tokens [m, width].

        Behind them stands EMPTY, or MASKED where a piece is the mask, which fills what the others leave; what goes
        beyond the width is left out. A mask is told from text by that and not by the mask's id, which may well stand
        in a prompt. `edges` are the pieces' bounds where they are known.
        """
        whole = self._whole(pieces[0], members, width) if len(pieces) == 1 else None
        if whole is not None:
            return whole
        gathered: Tokens = np.empty((len(self.requests if members is None else members), width), np.int64)
        gathered.fill(EMPTY)
        at: Any = 0  # one number while it is the same for all, else [m]
        for index, piece in enumerate(pieces):
            if piece.name == MASK:
                np.copyto(gathered, MASKED, where=np.arange(width) >= _upright(at))
                at = width
                continue
            start, stop = (
                edges[index] if edges else (self.edges(piece.start, members), self.edges(piece.stop, members))
            )
            source = self._source(piece, members, start, stop)
            length = source.shape[1]
            # An output is as wide as the widest of its launch, which may be less than the most there can be.
            stop = min(stop, length) if isinstance(stop, int) else np.minimum(stop, length)
            # What is copied from behind a piece's end is covered by the next one, or emptied in the end.
            if isinstance(at, int) and isinstance(start, int):
                end = min(start + max(width - at, 0), stop if isinstance(stop, int) else length)
                read = source[:, start:end]
                gathered[:, at : at + read.shape[1]] = read
            elif length:
                places = np.arange(width)
                read = source
                if length > 1:
                    column = np.minimum(np.maximum(places + _upright(start - at), 0), length - 1)
                    read = source[np.arange(len(source))[:, None], column]
                np.copyto(gathered, read, where=places >= _upright(at))
            at = at + _length(start, stop)
        if not isinstance(at, int):
            gathered[np.arange(width) >= _upright(at)] = EMPTY
        return gathered

    def _whole(self, piece: Piece, members: Integers | None, width: int) -> Tokens | None:
        """Give a piece that is just as wide as asked, for all alike, without a copy; None for any other."""
        start, stop = piece.start, piece.stop
        if not (isinstance(start, Const) and isinstance(stop, Const) and stop.value - start.value == width):
            return None
        if piece.name in (MASK, TEXT):
            return None
        source = self._source(piece, members, start.value, stop.value)
        return source[:, start.value : stop.value] if stop.value <= source.shape[1] else None

    def _source(
        self, piece: Piece, members: Integers | None, start: int | Integers, stop: int | Integers
    ) -> Tokens:
        """Give the tokens that a piece is cut from, [m, length]."""
        if piece.name == TEXT:
            asked = range(len(self.requests)) if members is None else members.tolist()
            lines = np.full((len(asked), int(np.max(stop, initial=0))), EMPTY, np.int64)
            ends = np.broadcast_to(stop, len(asked)).tolist()
            starts = np.broadcast_to(start, len(asked)).tolist()
            for line, member, first, end in zip(lines, asked, starts, ends, strict=True):
                line[first:end] = self.requests[member].text[first:end]
            return lines
        output = self.outputs.get(piece.name)
        if output is None:
            return self.carries.tokens[piece.name][self.lines if members is None else self.lines[members]]
        assert isinstance(output, np.ndarray)
        return output if members is None else output[members]

    def wide(self, pieces: Sequence[Piece], member: int) -> torch.Tensor:
        """Read laws, hidden states [length, width] or numbers [length] of one member."""
        parts = []
        for piece in pieces:
            if piece.name == CERTAIN:
                parts.append(torch.ones(self.edge(piece.stop, member)))
                continue
            output = self.outputs.get(piece.name)
            assert output is None or isinstance(output, torch.Tensor)
            whole = (
                self.carries.wide[piece.name][int(self.lines[member])] if output is None else output[member]
            )
            parts.append(whole[self.edge(piece.start, member) : self.edge(piece.stop, member)])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def tree(self, name: str, member: int) -> Tree:
        """Read the tree of one member, as the tree of one request."""
        output = self.outputs.get(name)
        if output is None:
            return self.carries.trees[name][int(self.lines[member])]
        assert isinstance(output, Tree)
        return output.take(member)


def _length(start: Any, stop: Any) -> Any:  # noqa: ANN401 -- an array, or one number
    """Give the length of a piece; most begin at 0."""
    return stop if isinstance(start, int) and start == 0 else stop - start


def _upright(values: Any) -> Any:  # noqa: ANN401 -- an array, or one number
    """Stand [m] up as [m, 1]; one number stays."""
    return values if isinstance(values, int) else values[:, None]
