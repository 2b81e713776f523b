"""Prefill on the device: the rows of one chunk, whose tokens lie there already, and the event behind it.

Chunks have the lengths that the scheduler gives them, so they run without a graph, in the order of the device's work.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fsm_spec import life_cycle
from fsm_spec.engine import Chunk
from fsm_spec.executor.device.phase import Machine
from fsm_spec.executor.device.results import Form, pack
from fsm_spec.executor.device.scope import DeviceScope, namespace
from fsm_spec.executor.device.transition import Moved, Transition
from fsm_spec.executor.models.drafter import ContextRows
from fsm_spec.executor.models.rows import FixedRows
from fsm_spec.kernels.fixed.attention import pack_mask
from fsm_spec.kernels.fixed.operators import FIXED_OPERATORS
from fsm_spec.kernels.randomness import Purpose
from fsm_spec.rules.draft_rows import BESIDE
from fsm_spec.table import PREFILL, Table

NEXT, FEATURES = "next", "features"


class Prefill:
    """Run prefill chunks of a table's requests, and admit those whose text is shorter than a block."""

    def __init__(self, table: Table, machine: Machine) -> None:
        self.table = table
        self.machine = machine
        self.first = Transition(table, life_cycle.FIRST)
        self.chunk = Transition(table, life_cycle.CHUNK)
        self.admit = Transition(table, life_cycle.ADMIT)
        self.results = Form(life_cycle.FIRST, (), table.column_names)
        rows = self.first.rows
        pieces = [piece for row in rows for piece in (*row.emit, *(p for _, ps in row.carries for p in ps))]
        self.samples = any(piece.name == NEXT for piece in pieces)
        # An admission that enters the start state at once sets carries: the device computes them.
        self.admits_here = any(row.carries for row in self.admit.rows)

    def begin(self, lines: Tensor) -> None:
        """Admit lines int64 [n] that wait, with all their columns as before."""
        scope = self._scope(lines)
        self.admit.apply(
            scope, {"hit": torch.zeros_like(lines, dtype=torch.int32)}, self._alive(scope, "wait")
        )

    def run(self, chunk: Chunk, line: Tensor) -> Tensor | None:
        """Run a chunk for the request in `line` int64 [1]; give the packed results of FIRST behind the last one."""
        unit = self.table.prefill_block
        stop = chunk.start + chunk.tokens
        start = chunk.start - chunk.start % unit
        samples = self.samples and chunk.last
        machine = self.machine
        rows = self._rows(line, start, stop, unit, 0, 1 if samples else 0)
        scope = self._scope(line)
        alive = self._alive(scope, PREFILL)
        model = machine.weights.model
        if machine.capture:
            logits, hidden = model.forward_captured(rows, machine.cache, machine.capture)
        else:
            logits, hidden = model.forward(rows, machine.cache), None
        for name in machine.drafters:
            self._prefill_drafter(
                name, chunk, line, None if hidden is None else hidden[chunk.start - start :]
            )
        if not chunk.last:
            count = torch.full_like(line, chunk.tokens, dtype=torch.int32)
            self.chunk.apply(scope, {"n": count}, alive)
            return None
        if samples:
            where = torch.full((1, 1), stop, dtype=torch.int64, device=line.device)
            sampling = machine.state.sampling_of(line)
            token, _ = FIXED_OPERATORS["sample"](logits[None], sampling, where, Purpose.TARGET, "law")
            scope.outputs[NEXT] = token
        if hidden is not None:
            scope.outputs[FEATURES] = hidden[None, -1:]
        moved: Moved = self.first.apply(scope, {}, alive)
        return pack(self.results, moved, {})

    def _scope(self, lines: Tensor) -> DeviceScope:
        machine = self.machine
        space = namespace(self.table, lines.device)
        columns = machine.state.take(lines)
        return DeviceScope(self.table, space, machine.state, lines, columns, {}, machine.mask_id)

    def _alive(self, scope: DeviceScope, state: str) -> Tensor:
        return scope.integers["state"] == self.table.codes[state]

    def _rows(self, line: Tensor, start: int, stop: int, unit: int, ahead: int, wanted: int) -> FixedRows:
        """Lay out rows for the positions start .. stop - 1; a row reads the token `ahead` of its position."""
        state = self.machine.state
        places = torch.arange(start, stop, device=line.device)
        slots = state.physical(line, places[None], torch.ones_like(places[None], dtype=torch.bool))
        block = (places - start) // unit
        count = stop - start
        return FixedRows(
            token_ids=state.text.index_select(0, line)[0, start + ahead : stop + ahead],
            positions=places,
            slots=slots,
            block_table=state.block_table.index_select(0, line),
            context=torch.full_like(line, start, dtype=torch.int32),
            block_slots=slots,
            mask=pack_mask((block[:, None] >= block)[None]),
            logits_rows=torch.arange(count - wanted, count, device=line.device),
            page_size=state.sizes.page_size,
            attention=self.machine.attention,
        )

    def _prefill_drafter(self, name: str, chunk: Chunk, line: Tensor, hidden: Tensor | None) -> None:
        """Give a draft model a chunk's rows, as `drafting.py` does; `hidden` [tokens, width] are the target's."""
        draft = self.machine.drafters[name]
        kind = self.table.models[name].kind
        start, stop = chunk.start, chunk.start + chunk.tokens
        if kind == "context_head":
            assert hidden is not None, "a context head reads hidden states"
            rows = self._rows(line, start, stop, 1, 0, 0)
            draft.model.write_context(ContextRows(hidden, rows.positions, rows.slots.flatten()), draft.cache)
            return
        beside = int(kind in BESIDE)
        stop -= beside and chunk.last
        if stop > start:
            features = None if hidden is None or not beside else hidden[: stop - start]
            draft.model.forward(self._rows(line, start, stop, 1, beside, 0), draft.cache, features)
