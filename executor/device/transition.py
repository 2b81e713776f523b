"""What an event does to its requests on the device: stop cut, step, text, carries and kept rows, in one go.

The rows are chosen and the columns moved by the step that the table's emitter writes (`fsm_spec/step.py`); this file
reads what the rows emit, set and keep, as `executor/runner.py` does on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fsm_spec.executor.carry import EMPTY
from fsm_spec.executor.device.scope import DeviceScope
from fsm_spec.executor.device.table_kernel import TableStep
from fsm_spec.kernels.fixed.cache import kv_move
from fsm_spec.kernels.tree import Tree
from fsm_spec.table import END, NO_STOP, STOP, Row, Table


@dataclass(frozen=True)
class Moved:
    """Hold what an event did to n members; what is said of dead ones means nothing."""

    alive: Tensor
    """bool [n]: the members that took the event"""
    transition: Tensor
    """int32 [n]"""
    emitted: Tensor
    """int32 [n]"""
    stop: Tensor
    """int32 [n]"""
    run: Tensor
    """int64 [n, most]: the tokens about to be emitted, EMPTY behind the last"""
    columns: dict[str, Tensor]
    """int32 [n] each, after the event"""


class Transition:
    """Apply one event of a table; `data` is the KV whose kept rows are moved together, where the event asks for it."""

    def __init__(self, table: Table, event: str, data: Tensor | None = None) -> None:
        self.table = table
        self.event = event
        self.data = data
        self.rows = table.rows_of(event)
        self.emits = table.events[event].emits
        # Where all rows emit the same, nobody need know which one is taken before a stop token is looked for.
        self.alike = len({row.emit for row in self.rows}) == 1
        self.end = table.codes[END]
        self.code = TableStep(table, event)
        self.moving = [row for row in self.rows if row.keep_rows is not None or row.keep_stride is not None]

    def apply(
        self, scope: DeviceScope, args: dict[str, Tensor], alive: Tensor, slots: Tensor | None = None
    ) -> Moved:
        """Step the members that are alive, and write what follows; `slots` [n, R] are those of the event's rows.

        All that is written is computed from the values before.
        """
        before = {name: scope.integers[name] for name in self.table.column_names}
        scope = replace(scope, integers={**before, **args})
        if self.emits:
            run = self._alike(scope) if self.alike else self._run(scope, self.code.choose(before, args))
            stop = self._stop(scope, run)
            done = self.code.apply(before, {**args, STOP: stop})
            taken = done.transition // 2
        else:
            # Nothing stands between choosing a row and taking it: one launch does both.
            done = self.code.apply(before, args)
            taken = done.transition // 2
            run, stop = self._run(scope, taken), torch.full_like(taken, NO_STOP)
        into = torch.where(alive, scope.lines, scope.state.dump)
        lives = alive & (done.columns["state"] != self.end)
        carried = list(self._carried(scope, taken, lives))
        if self.moving and self.data is not None:
            assert slots is not None, "rows that are kept stand in slots"
            self._compact(scope, taken, lives, slots, done.columns["kv"] - before["kv"], self.data)
        if self.emits:
            self._append(scope, run, done.emitted, into)
        for name, values in done.columns.items():
            if values is not before[name]:
                scope.state.columns[name].index_copy_(0, into, values)
        for name, lines, value in carried:
            if isinstance(value, Tree):
                scope.state.put_tree(name, lines, value)
            else:
                held = scope.state.tokens.get(name, scope.state.wide.get(name))
                assert held is not None, "a carry is one of the table's"
                held.index_copy_(0, lines, value)
        return Moved(alive, done.transition, done.emitted, stop, run, done.columns)

    def _alike(self, scope: DeviceScope) -> Tensor:
        """Read the tokens about to be emitted, int64 [n, most], where every row emits the same."""
        emit = self.rows[0].emit
        return scope.tokens(emit, sum(scope.room(piece) for piece in emit))

    def _run(self, scope: DeviceScope, taken: Tensor) -> Tensor:
        """Read the tokens about to be emitted, int64 [n, most]."""
        emitting = [row for row in self.rows if row.emit]
        room = max((sum(scope.room(piece) for piece in row.emit) for row in emitting), default=0)
        run = torch.full((len(scope.lines), room), EMPTY, dtype=torch.int64, device=scope.lines.device)
        for row in emitting:
            run = torch.where((taken == row.index).unsqueeze(1), scope.tokens(row.emit, room), run)
        return run

    @staticmethod
    def _stop(scope: DeviceScope, run: Tensor) -> Tensor:
        """Count the tokens before the first stop token, int32 [n]; NO_STOP where there is none."""
        stop_ids = scope.state.stop_ids.index_select(0, scope.lines)
        stops = (run.unsqueeze(2) == stop_ids.unsqueeze(1)).any(2)
        place = torch.arange(run.shape[1], dtype=torch.int32, device=run.device)
        where = torch.where(stops, place, NO_STOP)
        return where.amin(1) if run.shape[1] else torch.full_like(scope.integers["state"], NO_STOP)

    @staticmethod
    def _append(scope: DeviceScope, run: Tensor, emitted: Tensor, into: Tensor) -> None:
        """Put the emitted tokens behind the text."""
        text = scope.state.text
        place = torch.arange(run.shape[1], device=run.device)
        length = (scope.integers["prompt"] + scope.integers["emitted"]).long()
        last = text.shape[1] - 1
        at = torch.where(place < emitted.unsqueeze(1), length.unsqueeze(1) + place, last).clamp(max=last)
        flat = (into.unsqueeze(1) * text.shape[1] + at).flatten()
        text.view(-1).index_copy_(0, flat, run.flatten())

    def _carried(
        self, scope: DeviceScope, taken: Tensor, lives: Tensor
    ) -> Iterator[tuple[str, Tensor, Tensor | Tree]]:
        """Compute what carries become -> (name, lines int64 [n], value); members that set none point to the dump."""
        state = scope.state
        for row in self.rows:
            lines = torch.where(lives & (taken == row.index), scope.lines, state.dump)
            for name, pieces in row.carries:
                if name in state.trees:
                    yield name, lines, scope.tree(pieces[0].name)
                elif name in state.tokens:
                    yield name, lines, scope.tokens(pieces, state.tokens[name].shape[1])
                else:
                    yield name, lines, scope.wide(pieces, state.wide[name])

    def _compact(
        self, scope: DeviceScope, taken: Tensor, lives: Tensor, slots: Tensor, kept: Tensor, data: Tensor
    ) -> None:
        """Move the KV of kept rows that are not the first ones together, behind what was committed."""
        for row in self.moving:
            count = torch.where(lives & (taken == row.index), kept, 0)
            rows = self._kept_rows(scope, row, slots)
            place = torch.arange(rows.shape[1], device=slots.device)
            inside = place < count.unsqueeze(1)
            source = slots.gather(1, rows.clamp(0, slots.shape[1] - 1))
            target = scope.integers["kv"].long().unsqueeze(1) + place
            kv_move(
                data,
                scope.state.physical(scope.lines, source, inside),
                scope.state.physical(scope.lines, target, inside),
                count.int(),
            )

    @staticmethod
    def _kept_rows(scope: DeviceScope, row: Row, slots: Tensor) -> Tensor:
        """Give the rows that a row of the table keeps, int64 [n, most]."""
        if row.keep_rows is not None:
            path = scope.outputs[row.keep_rows]
            assert isinstance(path, Tensor)
            return path
        stride = row.keep_stride or 1
        rows = torch.arange(0, slots.shape[1], stride, device=slots.device)
        return rows.expand(len(slots), -1)
