"""The rows of a state's forward on the device: every row of its plan for every member, dead ones masked.

The static part of a row plan is `executor/block.py:Layout`, the same that the ragged runner reads; this file evaluates
it for a batch of lines without a wait for the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from fsm_spec.executor.block import NOISE_LOW, Layout
from fsm_spec.executor.carry import MASK, NOISE
from fsm_spec.executor.device.place import Place
from fsm_spec.executor.device.scope import DeviceScope
from fsm_spec.kernels.fixed.noise import noise_ids
from fsm_spec.language.expression import Const, Expr
from fsm_spec.plan import SegmentPlan


@dataclass(frozen=True)
class Rows:
    """Hold R rows of each of n requests of one state; numbers of dead rows mean nothing.

    A row sees its request's first `context` slots, and those of the `block` slots that its line of the mask names.
    """

    live: Tensor
    """bool [n, R]: the rows that run"""
    filled: Tensor
    """bool [n, R]: these, and the rows of which only K and V are written"""
    ids: Tensor
    """int64 [n, R]"""
    positions: Tensor
    """int64 [n, R]"""
    slots: Tensor
    """int64 [n, R], slots of the request"""
    context: Tensor
    """int64 [n]"""
    block: Tensor
    """int64 [n, M], slots of the request"""
    mask: Tensor
    """bool [n, R, M]"""


class RowForm:
    """Evaluate a row plan for a batch of lines; all of its own arrays lie on the device."""

    def __init__(self, layout: Layout, place: Place, mask_id: int, vocabulary: int) -> None:
        self.layout = layout
        self.plan = layout.plan
        self.mask_id = mask_id
        self.vocabulary = vocabulary
        self.rows = layout.plan.rows
        self.segment = place.constant(layout.segment)
        self.offset = place.constant(layout.offset)
        self.query = place.constant(layout.query)
        self.gated = place.constant(layout.gated)
        self.ahead = place.constant(layout.ahead)
        self.mask = place.constant(layout.plan.mask)
        self.known = place.constant(layout.known)
        self.readers = [place.constant(reader) for reader in layout.readers]
        # Of each operator the number of its first row among the rows of all, by which masks of grammars stand.
        self.masked = list(accumulate((len(reader) for reader in layout.readers), initial=0))
        self.compact = [self._is_prefix(operator.rows) for operator in layout.plan.operators]

    def _is_prefix(self, names: tuple[str, ...]) -> bool:
        """Tell whether an operator's live rows always stand in front of its dead ones."""
        segments = [self.plan.segment(name) for name in names]
        return all(segment.count == Const(segment.max_count) for segment in segments[:-1])

    def lay(self, scope: DeviceScope, alive: Tensor) -> Rows:
        """Lay out the rows of all members; those of members that are not alive, bool [n], are dead."""
        segments = self.plan.segments
        counts = torch.stack([scope.numbers(segment.count) for segment in segments], 1)
        filled = (self.offset < counts[:, self.segment]) & alive.unsqueeze(1)
        live = filled & self.query
        positions = self._place(scope, [segment.at for segment in segments])
        slots = self._place(scope, [segment.slot for segment in segments])
        if self.plan.tree is None:
            context = self._context(scope, live, slots)
            mask = self.mask & live.unsqueeze(1)
            return Rows(
                live, filled, self._ids(scope, positions, None), positions, slots, context, slots, mask
            )
        return self._hang(scope, live, slots)

    def _place(self, scope: DeviceScope, exprs: list[Expr]) -> Tensor:
        starts = torch.stack([scope.numbers(expr) for expr in exprs], 1)
        return starts[:, self.segment] + self.offset

    def _context(self, scope: DeviceScope, live: Tensor, slots: Tensor) -> Tensor:
        """Count the slots before a request's rows: what is committed, or was written for later forwards of a round."""
        kv = scope.integers["kv"].long()
        if self.plan.model is None:
            return kv
        first = torch.where(live, slots, torch.iinfo(torch.int64).max).amin(1)
        return torch.where(live.any(1), first, 0)

    def _hang(self, scope: DeviceScope, live: Tensor, slots: Tensor) -> Rows:
        """Place the nodes of each tree: position by depth, sight of the ancestors and of itself.

        The nodes in front that earlier forwards of the round have left in a draft model's cache stand before them in
        the block.
        """
        assert self.plan.tree is not None, "the caller has asked"
        tree = scope.tree(self.plan.tree)
        width = tree.tokens.shape[1]
        start = self.plan.segments[0].source.start
        first = torch.zeros_like(scope.lines) if start is None else scope.numbers(start)
        nodes = (first.unsqueeze(1) + self.offset).clamp(max=width - 1)
        root = self._place(scope, [segment.at for segment in self.plan.segments])[:, :1]
        positions = root + tree.depths.gather(1, nodes)
        committed = scope.integers["kv"].long()
        most = self.rows
        if self.plan.model is not None:
            committed = committed - scope.numbers(self.layout.table.models[self.plan.model].behind)
            most = width
        before = slots[:, 0] - committed
        column = torch.arange(most, device=slots.device)
        seen = (first - before).unsqueeze(1) + column
        mask = ancestors(tree.parents).gather(1, nodes.unsqueeze(2).expand(-1, -1, width))
        mask = mask.gather(2, seen.clamp(0, width - 1).unsqueeze(1).expand(-1, self.rows, -1))
        inside = column < (before + live.sum(1)).unsqueeze(1)
        mask = mask & inside.unsqueeze(1) & live.unsqueeze(2)
        block = committed.unsqueeze(1) + column
        ids = self._ids(scope, positions, tree.tokens.gather(1, nodes))
        return Rows(live, live, ids, positions, slots, committed, block, mask)

    def _ids(self, scope: DeviceScope, positions: Tensor, nodes: Tensor | None) -> Tensor:
        """Gather the input ids of all rows; what is no token, as on dead rows, becomes one."""
        return torch.cat([self._segment_ids(scope, each, positions, nodes) for each in self.plan.segments], 1)

    def _segment_ids(
        self, scope: DeviceScope, segment: SegmentPlan, positions: Tensor, nodes: Tensor | None
    ) -> Tensor:
        shape = (len(scope.lines), segment.max_count)
        name = segment.source.name
        if name == MASK or not segment.query:
            return torch.full(shape, self.mask_id, dtype=torch.int64, device=positions.device)
        if name == NOISE:
            where = positions[:, segment.first : segment.first + segment.max_count]
            seeds = scope.state.sampling.seeds.index_select(0, scope.lines)
            drawn: Tensor = noise_ids(seeds, where, NOISE_LOW, self.vocabulary)
            return drawn
        if nodes is not None:
            return nodes.clamp(0, self.vocabulary - 1)
        return scope.ids(segment.source, segment.max_count, self.vocabulary)

    def features(self, scope: DeviceScope) -> Tensor | None:
        """Give the hidden states beside the rows [n, R, width]; None where none are read."""
        if all(segment.features is None for segment in self.plan.segments):
            return None
        parts = []
        for segment in self.plan.segments:
            assert segment.features is not None, (
                "all rows of a forward have hidden states beside them, or none"
            )
            parts.append(scope.read(segment.features, segment.max_count))
        return torch.cat(parts, 1)

    def silent(self, scope: DeviceScope) -> tuple[Tensor, Tensor]:
        """Give the rows without queries: their numbers [m] among the plan's, and their hidden states [n, m, width]."""
        segments = [segment for segment in self.plan.segments if not segment.query]
        states = torch.cat([scope.read(segment.source, segment.max_count) for segment in segments], 1)
        rows = [torch.arange(s.first, s.first + s.max_count, device=states.device) for s in segments]
        return torch.cat(rows), states

    def read_by(
        self, operator: int, rows: Rows, values: Tensor, own: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Give what an operator reads: values [n, r, ...] live rows first, predicted positions [n, r], counts [n].

        `values` [n, r, ...] are those of the operator's rows in the order of the plan, `own` [r] their numbers.
        """
        live = rows.live[:, own]
        positions = rows.positions[:, own] + self.ahead[own]
        if not self.compact[operator]:
            order = (~live).long().sort(dim=1, stable=True).indices
            positions = positions.gather(1, order)
            wide = order.view(*order.shape, *[1] * (values.dim() - 2)).expand_as(values)
            values = values.gather(1, wide)
        return values, positions, live.sum(1)

    def sight(self, rows: Rows) -> Tensor:
        """Tell which rows of its block a row sees, bool [n, R, R]."""
        if self.plan.tree is None:
            return rows.mask
        # Nodes of earlier forwards stand in front of the block's slots.
        column = (rows.slots - rows.block[:, :1]).clamp(0, rows.mask.shape[2] - 1)
        return rows.mask.gather(2, column.unsqueeze(1).expand(-1, self.rows, -1)) & rows.live.unsqueeze(1)

    def first_ids(self, operator: int, rows: Rows) -> Tensor:
        """Give the input id of the first live row that an operator reads, int64 [n]."""
        own = self.readers[operator]
        first = rows.live[:, own].long().argmax(1, keepdim=True)
        return rows.ids[:, own].gather(1, first).squeeze(1)


def ancestors(parents: Tensor) -> Tensor:
    """Give the mask under which a node sees itself and its ancestors, int64 [n, v] -> bool [n, v, v].

    By doubling: after k products a node sees 2^k generations up.
    """
    width = parents.shape[1]
    numbers = torch.arange(width, device=parents.device)
    seen = ((parents.unsqueeze(2) == numbers) | (numbers.unsqueeze(1) == numbers)).float()
    for _ in range(max(width - 1, 1).bit_length()):
        seen = (seen @ seen > 0).float()
    return seen > 0
