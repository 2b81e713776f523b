"""Blocks: the live rows of one state's requests in a launch, gathered by the row plan of its forward.

`Layout` is what a row plan says for all requests, `Shape` what it says for the counts of some; `Block` evaluates both
for the requests of a group. Rows lie request after request, segment after segment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fsm_spec.executor.carry import EMPTY, MASK, NOISE, Scope
from fsm_spec.executor.models.drafter import ContextRows
from fsm_spec.executor.request import Tokens
from fsm_spec.kernels.randomness import Purpose, uniform
from fsm_spec.kernels.unmask import MASKED
from fsm_spec.language.expression import Const, Expr, Name
from fsm_spec.language.linear import difference
from fsm_spec.language.piece import Piece
from fsm_spec.plan import ForwardPlan
from fsm_spec.step import Columns, evaluate
from fsm_spec.table import Table

Integers = NDArray[np.int64]

# The lowest id on a noise row: 0 is a padding or unknown token in most vocabularies. The highest is the last id.
NOISE_LOW = 1
# `numbers`, `places`, `counts` and `most` of a `ReadRows`.
Reader = tuple[Integers, Integers, Integers, int]
_MOST_SHAPES = 256
_MOST_MASKS = 4096


class ReadRows:
    """Hold the m live rows that one operator reads, request after request.

    `numbers` count rows from the block's first, `places` are the same rows among the plan's of all requests,
    `positions` are those of the tokens that the rows predict, all [m]; `counts` are the rows of each request, [n],
    `most` their largest.
    """

    __slots__ = ("counts", "most", "numbers", "places", "positions")

    def __init__(self, reader: Reader, positions: Integers) -> None:
        self.numbers, self.places, self.counts, self.most = reader
        self.positions = positions

    def square(self, values: torch.Tensor, dead: float | None) -> torch.Tensor:
        """Lay out [m, ...] as [n, most, ...]; dead places become `dead`, or anything where it is None."""
        shape = (len(self.counts), self.most, *values.shape[1:])
        if len(self.numbers) == self.most * len(self.counts):
            return values.reshape(shape)
        # A dead place repeats a live one.
        ends = self.counts.cumsum()
        last = np.maximum(self.counts - 1, 0)[:, None]
        places = (ends - self.counts)[:, None] + np.minimum(np.arange(self.most), last)
        laid = values[torch.from_numpy(np.minimum(places, len(values) - 1).reshape(-1))].reshape(shape)
        if dead is not None:
            laid[torch.from_numpy(np.arange(self.most) >= self.counts[:, None])] = dead
        return laid


@dataclass(slots=True)
class Shape:
    """Hold which of a plan's R rows live in each of n requests of given counts, and what follows from that alone."""

    live: NDArray[np.bool_]
    """[n, R], the rows with queries"""
    silent: NDArray[np.bool_]
    """[n, R], the rows without"""
    places: Integers
    """[T], the live rows among the n * R"""
    counts: Integers
    """[n], the live rows of each request"""
    masks: list[torch.Tensor]
    """n times bool [T of the request, T of the request]"""
    gated: NDArray[np.bool_] | None
    """[T]; None where no row is"""
    readers: list[Reader]
    """of each operator"""


class Layout:
    """Hold the static part of a row plan with R rows, dead ones included."""

    def __init__(self, table: Table, plan: ForwardPlan) -> None:
        self.table = table
        self.plan = plan
        segments = plan.segments
        most = [segment.max_count for segment in segments]
        self.segment = np.repeat(np.arange(len(most)), most)
        self.offset = np.concatenate([np.arange(count) for count in most] or [np.zeros(0, np.int64)])
        self.gated = np.array([segments[index].adapter for index in self.segment], np.bool_)
        self.query = np.array([segments[index].query for index in self.segment], np.bool_)
        self.is_gated = bool(self.gated.any())
        self.rows, self.tree = plan.rows, plan.tree
        # How far ahead of its own position a row predicts; beside a hidden state stands the token after it.
        self.ahead = np.array([segments[index].logits == "shifted" for index in self.segment], np.int64)
        self.ahead += np.array([segments[index].features is not None for index in self.segment], np.int64)
        # Rows whose tokens stand in the text at the rows' positions, as far as it goes; mask and noise rows stand for
        # tokens to come.
        self.known = np.array(
            [
                segments[index].source.name not in (MASK, NOISE) and segments[index].features is None
                for index in self.segment
            ],
            np.bool_,
        )
        # The count of each segment where that is the same for all requests.
        self.counts = [s.count.value if isinstance(s.count, Const) else None for s in segments]
        self.at = self._from_kv([segment.at for segment in segments])
        self.slot = self._from_kv([segment.slot for segment in segments])
        self.same_slot = all(segment.at == segment.slot for segment in segments)
        # The segments whose count is not.
        self.counted = [index for index, count in enumerate(self.counts) if count is None]
        self.reads_logits = [operator.op != "capture" for operator in plan.operators]
        # The plan's rows that each operator reads.
        self.readers = [self._rows_of(operator.rows) for operator in plan.operators]
        # The same where it is not all of them in order.
        self._parts = [None if np.array_equal(own, np.arange(self.rows)) else own for own in self.readers]
        # Whether a carry of this table may hold masks.
        pieces = [piece for row in table.rows for _, pieces in row.carries for piece in pieces]
        self.masked = any(piece.name == MASK for piece in pieces)
        self.captures = any(operator.op == "capture" for operator in plan.operators)
        self._shapes: dict[tuple[int, bytes], Shape] = {}
        self._masks: dict[bytes, torch.Tensor] = {}

    def _from_kv(self, exprs: list[Expr]) -> Integers | None:
        """Give each row's distance from kv where that is the same for all requests."""
        distances = [difference(expr, Name("kv")) for expr in exprs]
        values = [distance.value for distance in distances if isinstance(distance, Const)]
        if len(values) < len(distances):
            return None
        distance: Integers = np.array(values, np.int64)[self.segment] + self.offset
        return distance

    def _rows_of(self, names: tuple[str, ...]) -> Integers:
        spans = [self.plan.segment(name) for name in names]
        parts = [np.arange(span.first, span.first + span.max_count) for span in spans]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def shape(self, columns: Columns, requests: int) -> Shape:
        """Give the shape of a group, by the counts of its requests."""
        counted = {index: self._count(index, columns) for index in self.counted}
        # Few requests repeat the same counts round after round.
        key = (requests, b"".join([values.tobytes() for values in counted.values()]))
        found = self._shapes.get(key)
        if found is None:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            counts = np.empty((requests, len(self.counts)), np.int64)
            for index, count in enumerate(self.counts):
                counts[:, index] = counted[index] if count is None else count
            found = self._shapes[key] = self._new_shape(counts)
        return found

    def place(self, columns: Columns, *, slots: bool) -> Integers:
        """Give the position (or the slot) of each row, dead ones included: [n, R]."""
        static = self.slot if slots else self.at
        placed: Integers
        if static is not None:
            placed = columns["kv"][:, None] + static
        else:
            exprs = [segment.slot if slots else segment.at for segment in self.plan.segments]
            placed = self._over(columns, exprs)[:, self.segment] + self.offset
        return placed

    def committed(self, columns: Columns) -> Integers:
        """Give the committed slots of the cache that the forward's model writes, [n]."""
        ends: Integers = columns["kv"].astype(np.int64)
        if self.plan.model is not None:
            behind = self.table.models[self.plan.model].behind
            ends -= np.asarray(evaluate(self.table, behind, columns, np), np.int64)
        return ends

    def _count(self, segment: int, columns: Columns) -> NDArray[np.int32]:
        counts: NDArray[np.int32] = evaluate(self.table, self.plan.segments[segment].count, columns, np)
        return counts

    def _over(self, columns: Columns, exprs: list[Expr]) -> Integers:
        values = [evaluate(self.table, expr, columns, np) for expr in exprs]
        stacked: Integers = np.stack(values, axis=1).astype(np.int64)
        return stacked

    def _new_shape(self, counts: Integers) -> Shape:
        filled = self.offset < counts[:, self.segment]
        live = filled & self.query
        rows = live.sum(1)
        places = live.reshape(-1).nonzero()[0]
        gated = self.gated[places % len(self.gated)] if self.is_gated else np.zeros(0, np.bool_)
        return Shape(
            live,
            filled & ~self.query,
            places,
            rows,
            [self._mask(own) for own in live],
            gated if gated.any() else None,
            [
                (np.arange(len(places)), places, rows, max(rows.tolist()))
                if reader is None
                else _live_rows(live, reader)
                for reader in self._parts
            ],
        )

    def _mask(self, live: NDArray[np.bool_]) -> torch.Tensor:
        """Give the mask of a request's live rows; requests with the same live rows share one."""
        key = live.tobytes()
        found = self._masks.get(key)
        if found is None:
            if len(self._masks) >= _MOST_MASKS:
                self._masks.clear()
            found = self._masks[key] = torch.from_numpy(np.ascontiguousarray(self.plan.mask[live][:, live]))
        return found


def _live_rows(live: NDArray[np.bool_], reader: Integers) -> Reader:
    """Find the live rows among those that an operator reads."""
    alive = live[:, reader]
    places = (np.arange(len(live))[:, None] * live.shape[1] + reader)[alive]
    counts = alive.sum(1)
    return live.reshape(-1).cumsum()[places] - 1, places, counts, max(counts.tolist())


def ancestors(parents: Integers) -> torch.Tensor:
    """Give the mask of a tree's nodes, bool [v, v], whose parents stand before them (-1: no parent)."""
    mask = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents.tolist()):
        if parent >= 0:
            mask[node] |= mask[parent]
    return torch.from_numpy(mask)


class Block:
    """Hold the rows of n requests under one layout, T of them live, and what each operator reads of them."""

    __slots__ = (
        "_seeds",
        "_vocabulary",
        "ids",
        "layout",
        "logit_readers",
        "masks",
        "positions",
        "readers",
        "scope",
        "shape",
        "slots",
    )

    def __init__(self, layout: Layout, scope: Scope, seeds: torch.Tensor, vocabulary: int) -> None:
        self.layout = layout
        self.scope = scope
        self._seeds = seeds
        self._vocabulary = vocabulary
        columns = scope.integers
        self.shape = layout.shape(columns, len(scope.requests))
        self.positions = layout.place(columns, slots=False)
        self.slots = self.positions if layout.same_slot else layout.place(columns, slots=True)
        self.masks = self.shape.masks
        if layout.tree is not None:
            self._hang(layout.tree)
        predicted = (self.positions + layout.ahead).reshape(-1) if layout.readers else self.positions
        self.readers = [ReadRows(reader, predicted[reader[1]]) for reader in self.shape.readers]
        # What is read by the operators that read logits.
        self.logit_readers = self.readers
        if layout.captures:
            pairs = zip(self.readers, layout.reads_logits, strict=True)
            self.logit_readers = [rows for rows, reads in pairs if reads]
        self.ids = self._token_ids()

    def _hang(self, name: str) -> None:
        """Place the nodes of each request's tree: position by depth, sight of the ancestors and itself."""
        trees = [self.scope.tree(name, member) for member in range(len(self.scope.requests))]
        source = self.layout.plan.segments[0].source
        first = np.array([self.scope.edge(source.start, member) for member in range(len(trees))], np.int64)
        nodes = first[:, None] + np.arange(self.positions.shape[1])
        depths = np.stack([tree.depths[0].numpy()[line] for tree, line in zip(trees, nodes, strict=True)])
        # Nodes lie in slots one behind the other, and stand at the positions of their depths below the root's.
        if self.layout.same_slot:
            self.slots = self.positions
        self.positions = self.positions[:, :1] + depths
        # Of the nodes in front, those that earlier forwards of the round have left in a draft model's cache.
        columns = self.scope.integers
        open_ = self.slots[:, 0] - self.layout.committed(columns)
        self.masks = [
            ancestors(tree.parents[0].numpy()[: line[-1] + 1])[line[0] :, line[0] - before :]
            for tree, line, before in zip(
                trees,
                [line[live] for line, live in zip(nodes, self.shape.live, strict=True)],
                open_.tolist(),
                strict=True,
            )
        ]

    @property
    def rows(self) -> int:
        """Count the live rows with queries of all requests."""
        return len(self.shape.places)

    @property
    def wanted(self) -> int:
        """Count the rows of logits that operators read."""
        return sum(len(rows.numbers) for rows in self.logit_readers)

    def flat(self, values: Integers) -> Integers:
        """Take the live rows out of [n, R], request after request: [T]."""
        places = self.shape.places
        return values.reshape(-1) if len(places) == values.size else values.reshape(-1)[places]

    def first_slots(self) -> Integers:
        """Give the slot of each request's first live row, or its `kv` where none lives: [n]."""
        first = self.slots[np.arange(len(self.slots)), self.shape.live.argmax(1)]
        return np.where(self.shape.counts > 0, first, self.scope.integers["kv"])

    def _token_ids(self) -> Tokens:
        """Gather the input ids of all rows, [n, R]; those of dead rows mean nothing."""
        scope = self.scope
        ids: Tokens = np.empty(self.positions.shape, np.int64)
        ids.fill(EMPTY)
        for segment in self.layout.plan.segments:
            into = ids[:, segment.first : segment.first + segment.max_count]
            if not segment.query:
                continue
            if segment.source.name == MASK:
                into[:] = scope.mask_id
            elif segment.source.name == NOISE:
                into[:] = self._noise(self.positions[:, segment.first : segment.first + segment.max_count])
            elif segment.source.name == self.layout.tree:
                for member in range(len(into)):
                    start = scope.edge(segment.source.start, member)
                    tokens = scope.tree(segment.source.name, member).tokens[0].numpy()
                    into[member] = tokens[start : start + into.shape[1]]
            else:
                self._read(segment.source, into)
                if self.layout.masked:
                    into[into == MASKED] = scope.mask_id
        return ids

    def features(self, member: int) -> torch.Tensor | None:
        """Give the hidden states beside the rows of one request, [rows, width]; None where none are read."""
        pieces = [s.features for s in self.layout.plan.segments if s.features is not None]
        return self.scope.wide(pieces, member) if pieces else None

    def context_rows(self, member: int, slots: torch.Tensor) -> ContextRows:
        """Give the rows of one request that have no query, in physical `slots`."""
        silent = self.shape.silent[member]
        sources = [segment.source for segment in self.layout.plan.segments if not segment.query]
        positions = torch.from_numpy(self.positions[member, silent])
        return ContextRows(self.scope.wide(sources, member), positions, slots)

    def first_tokens(self, operator: int) -> torch.Tensor:
        """Give the input id of the first row that an operator reads, int64 [n]."""
        rows = self.readers[operator]
        return torch.from_numpy(self.ids.reshape(-1)[rows.places[rows.counts.cumsum() - rows.counts]])

    def _noise(self, positions: Integers) -> Tokens:
        """Draw ids uniformly from NOISE_LOW .. vocabulary - 1, each named by seed and the row's position."""
        where = torch.from_numpy(np.ascontiguousarray(positions))
        numbers = uniform(self._seeds[:, None].expand_as(where).contiguous(), where, Purpose.NOISE).numpy()
        return NOISE_LOW + (numbers * (self._vocabulary - NOISE_LOW)).astype(np.int64)

    def _read(self, source: Piece, into: Tokens) -> None:
        """Copy a carry (or text), as far as it reaches, into [n, rows of the segment]."""
        into[:] = self.scope.tokens(source, into.shape[1])
