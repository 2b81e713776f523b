"""Blocks: the live rows of one state's requests in a launch, gathered by the row plan of its forward.

`Layout` is what a row plan says for all requests, computed once; `Block` evaluates it for those of a group.
Rows lie request after request, within a request segment after segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from fsm_spec.executor.carry import EMPTY, MASK, NOISE, TEXT, Scope, Tokens
from fsm_spec.expression import Const, Expr, Name
from fsm_spec.kernels.randomness import Purpose, uniform
from fsm_spec.linear import difference
from fsm_spec.piece import Piece
from fsm_spec.plan import ForwardPlan
from fsm_spec.step import Columns, evaluate
from fsm_spec.table import Table
from numpy.typing import NDArray

# The lowest id on a noise row; 0 is a padding or unknown token in most vocabularies. The range ends with the vocabulary.
NOISE_LOW = 1
_MOST_MASKS = 4096


class Layout:
    """Hold the static part of a row plan with R rows, dead ones included."""

    def __init__(self, table: Table, plan: ForwardPlan) -> None:
        self.table = table
        self.plan = plan
        most = [segment.max_count for segment in plan.segments]
        self.segment = np.repeat(np.arange(len(most)), most)
        self.offset = np.concatenate([np.arange(count) for count in most] or [np.zeros(0, np.int64)])
        self.gated = np.array([plan.segments[index].adapter for index in self.segment], np.bool_)
        self.shift = np.array([plan.segments[index].logits == "shifted" for index in self.segment], np.int64)
        self.fixed = all(segment.count == Const(segment.max_count) for segment in plan.segments)
        self.at = self._relative([segment.at for segment in plan.segments])
        self.slot = self._relative([segment.slot for segment in plan.segments])
        self.same_slot = all(segment.at == segment.slot for segment in plan.segments)
        self._mask = plan.mask
        self._masks: dict[tuple[int, ...], torch.Tensor] = {}
        # Rows of each operator, in the order it names its segments; none for one that reads no logits.
        self.readers = [self._rows_of(operator.rows) for operator in plan.operators]

    def _relative(self, exprs: list[Expr]) -> NDArray[np.int64] | None:
        """Give each row's distance from kv where that is the same for all requests."""
        distances = [difference(expr, Name("kv")) for expr in exprs]
        if not all(isinstance(distance, Const) for distance in distances):
            return None
        values = np.array([distance.value for distance in distances if isinstance(distance, Const)], np.int64)
        return values[self.segment] + self.offset if len(values) else self.offset

    def _rows_of(self, names: tuple[str, ...]) -> NDArray[np.int64]:
        spans = [self.plan.segment(name) for name in names]
        parts = [np.arange(span.first, span.first + span.max_count) for span in spans]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def counts(self, columns: Columns) -> NDArray[np.int64]:
        """Count the live rows of each segment, [n, segments]."""
        return self._over(columns, [segment.count for segment in self.plan.segments])

    def place(self, columns: Columns, *, slots: bool) -> NDArray[np.int64]:
        """Give the position (or the slot) of each row, dead ones included: [n, R]."""
        static = self.slot if slots else self.at
        if static is not None:
            return columns["kv"].astype(np.int64)[:, None] + static
        exprs = [segment.slot if slots else segment.at for segment in self.plan.segments]
        return self._over(columns, exprs)[:, self.segment] + self.offset

    def _over(self, columns: Columns, exprs: list[Expr]) -> NDArray[np.int64]:
        values = [evaluate(self.table, expr, columns, np) for expr in exprs]
        return np.stack(values, axis=1).astype(np.int64)

    def mask(self, counts: tuple[int, ...] | None) -> torch.Tensor:
        """Give the block mask [rows, rows] over live rows; None: all live."""
        key = counts or ()
        found = self._masks.get(key)
        if found is None:
            if len(self._masks) >= _MOST_MASKS:
                self._masks.clear()
            live = slice(None) if counts is None else self.offset < np.array(counts)[self.segment]
            found = self._masks[key] = torch.from_numpy(np.ascontiguousarray(self._mask[live][:, live]))
        return found


@dataclass(frozen=True)
class ReadRows:
    """Hold the m live rows that one operator reads, request after request.

    `numbers` count rows from the block's first, `positions` are those of the tokens that the rows predict, both [m];
    `counts` are the rows of each request, [n].
    """

    numbers: NDArray[np.int64]
    positions: NDArray[np.int64]
    counts: NDArray[np.int64]

    @cached_property
    def most(self) -> int:
        """Count the rows of the request that has most."""
        return int(self.counts.max())

    @cached_property
    def _even(self) -> bool:
        return len(self.numbers) == self.most * len(self.counts)

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        """Place each of [n, most] among the m rows; a dead one repeats the last live one."""
        last = np.maximum(self.counts - 1, 0)[:, None]
        return (self.counts.cumsum() - self.counts)[:, None] + np.minimum(np.arange(self.most), last)

    def square(self, values: torch.Tensor, dead: float | None) -> torch.Tensor:
        """Lay out [m, ...] as [n, most, ...]; dead places become `dead`, or anything where it is None."""
        shape = (len(self.counts), self.most, *values.shape[1:])
        if self._even:
            return values.reshape(shape)
        places = torch.from_numpy(np.minimum(self._places, max(len(values) - 1, 0)).reshape(-1))
        laid = values[places].reshape(shape)
        if dead is not None:
            laid[torch.from_numpy(np.arange(self.most) >= self.counts[:, None])] = dead
        return laid


@dataclass(frozen=True)
class Block:
    """Hold the rows of n requests under one layout: T live rows, and per operator the rows it reads."""

    layout: Layout
    scope: Scope
    seeds: torch.Tensor
    vocabulary: int

    @property
    def columns(self) -> Mapping[str, NDArray[np.int32]]:
        """Give the requests' columns, int32 [n] each."""
        return self.scope.integers

    @cached_property
    def counts(self) -> NDArray[np.int64] | None:
        """Count live rows by segment, [n, segments]; None where all rows of all requests live."""
        return None if self.layout.fixed else self.layout.counts(dict(self.columns))

    @cached_property
    def live(self) -> NDArray[np.bool_] | None:
        """Tell which rows live, [n, R]; None where all do."""
        if self.counts is None:
            return None
        return self.layout.offset < self.counts[:, self.layout.segment]

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """Count the live rows of each request, [n]."""
        if self.counts is None:
            return np.full(len(self.scope.requests), self.layout.plan.rows, np.int64)
        return self.counts.sum(1)

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Give the position of each row, dead ones included: [n, R]."""
        return self.layout.place(dict(self.columns), slots=False)

    @cached_property
    def slots(self) -> NDArray[np.int64]:
        """Give the request's own slot of each row, dead ones included: [n, R]."""
        return self.positions if self.layout.same_slot else self.layout.place(dict(self.columns), slots=True)

    def flat(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Take the live rows out of [n, R], request after request: [T]."""
        return values.reshape(-1) if self.live is None else values[self.live]

    def token_ids(self) -> Tokens:
        """Gather the input ids of all rows, [n, R]; those of dead rows mean nothing."""
        scope = self.scope
        ids = np.full(self.positions.shape, EMPTY, np.int64)
        for segment in self.layout.plan.segments:
            columns = slice(segment.first, segment.first + segment.max_count)
            if segment.source.name == MASK:
                ids[:, columns] = scope.mask_id
            elif segment.source.name == NOISE:
                ids[:, columns] = self._noise(self.positions[:, columns])
            else:
                self._read(segment.source, ids[:, columns])
        return ids

    def _noise(self, positions: NDArray[np.int64]) -> Tokens:
        """Draw ids uniformly from NOISE_LOW .. vocabulary - 1, each named by seed and the row's position."""
        where = torch.from_numpy(np.ascontiguousarray(positions))
        numbers = uniform(self.seeds[:, None].expand_as(where).contiguous(), where, Purpose.NOISE).numpy()
        return NOISE_LOW + (numbers * (self.vocabulary - NOISE_LOW)).astype(np.int64)

    def _read(self, source: Piece, into: Tokens) -> None:
        """Copy a carry (or text), as far as it reaches, into [n, rows of the segment]."""
        scope = self.scope
        if isinstance(source.start, Const) and source.name != TEXT:
            start = source.start.value
            part = scope.carries.tokens[source.name][scope.lines, start : start + into.shape[1]]
            into[:, : part.shape[1]] = part
            return
        for member in range(len(scope.requests)):
            tokens = scope.tokens(source, member)[: into.shape[1]]
            into[member, : len(tokens)] = tokens

    @cached_property
    def row_number(self) -> NDArray[np.int64]:
        """Number the live rows of the block from 0, [n, R]."""
        if self.live is None:
            return np.arange(self.positions.size).reshape(self.positions.shape)
        return self.live.reshape(-1).cumsum().reshape(self.live.shape) - 1

    def read_by(self, operator: int) -> ReadRows:
        """List the rows that an operator reads."""
        reader = self.layout.readers[operator]
        numbers, predicted = self.row_number[:, reader], self.positions[:, reader] + self.layout.shift[reader]
        if self.live is None:
            return ReadRows(
                numbers.reshape(-1), predicted.reshape(-1), np.full(len(numbers), len(reader), np.int64)
            )
        live = self.live[:, reader]
        return ReadRows(numbers[live], predicted[live], live.sum(1))

    def masks(self) -> list[torch.Tensor]:
        """Give each request's block mask over its live rows."""
        if self.counts is None:
            return [self.layout.mask(None)] * len(self.scope.requests)
        return [self.layout.mask(tuple(counts)) for counts in self.counts.tolist()]
