"""Prefill on the device: the rows of one chunk, whose tokens lie there already, and the event behind it.

Chunks have the lengths that the scheduler gives them, so they run without a graph, in the order of the device's work.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fsm_spec import life_cycle
from fsm_spec.engine import Chunk
from fsm_spec.executor.device.control import NO_WISHES, Wishes, shaped_first
from fsm_spec.executor.device.phase import Machine
from fsm_spec.executor.device.results import Form, pack
from fsm_spec.executor.device.scope import DeviceScope, namespace
from fsm_spec.executor.device.scores import PROMPT, ScoredRows, ScoreForm, pack_scores, score_form
from fsm_spec.executor.device.transition import Moved, Transition
from fsm_spec.executor.models.drafter import ContextRows
from fsm_spec.executor.models.rows import FixedRows
from fsm_spec.kernels.fixed.attention import pack_mask
from fsm_spec.kernels.fixed.operators import FIXED_OPERATORS
from fsm_spec.kernels.randomness import Purpose
from fsm_spec.rules.draft_rows import BESIDE
from fsm_spec.table import PREFILL, WAIT, Table

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

    def begin(self, lines: Tensor, hits: Tensor) -> None:
        """Admit lines int64 [n] that wait, with all their columns as before, behind `hits` int64 [n] tokens."""
        scope = self._scope(lines)
        self.admit.apply(scope, {"hit": hits.int()}, self._alive(scope, WAIT))

    def run(
        self, chunk: Chunk, line: Tensor, wishes: Wishes = NO_WISHES, *, scores_prompt: bool = False
    ) -> list[tuple[Form | ScoreForm, Tensor]]:
        """Run a chunk for the request in `line` int64 [1] -> packed results by their forms: of FIRST behind the last.

        With `scores_prompt` the tokens of the text are scored, where the request wants that.
        """
        unit = self.table.prefill_block
        stop = chunk.start + chunk.tokens
        start = chunk.start - chunk.start % unit
        samples = self.samples and chunk.last
        machine = self.machine
        wanted = stop - start if scores_prompt else int(samples)
        rows = self._rows(line, start, stop, unit, 0, wanted)
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
        found: list[tuple[Form | ScoreForm, Tensor]] = []
        if scores_prompt:
            behind = (rows.positions + 1)[None]
            text = machine.state.text.index_select(0, line).gather(1, behind)
            found.append(self._scored(PROMPT, logits[None], behind, text))
        if not chunk.last:
            count = torch.full_like(line, chunk.tokens, dtype=torch.int32)
            self.chunk.apply(scope, {"n": count}, alive)
            return found
        if samples:
            where = torch.full((1, 1), stop, dtype=torch.int64, device=line.device)
            last = logits[None, -1:]
            law = shaped_first(scope, last, where) if wishes.adjusts else last
            sampling = machine.state.sampling_of(line)
            token, _ = FIXED_OPERATORS["sample"](law, sampling, where, Purpose.TARGET, "law")
            scope.outputs[NEXT] = token
            if wishes.scores:
                found.append(self._scored(life_cycle.FIRST, last, where, token))
        if hidden is not None:
            scope.outputs[FEATURES] = hidden[None, -1:]
        moved: Moved = self.first.apply(scope, {}, alive)
        found.append((self.results, pack(self.results, moved, {})))
        return found

    def _scored(
        self, event: str, logits: Tensor, positions: Tensor, tokens: Tensor
    ) -> tuple[ScoreForm, Tensor]:
        """Score `tokens` [1, r] at `positions` [1, r] by logits [1, r, V]."""
        none = torch.zeros(*positions.shape, 0, dtype=torch.int64, device=positions.device)
        live = torch.ones_like(positions, dtype=torch.bool)
        form = score_form(event, positions.shape[1], 0, logits.shape[2])
        return form, pack_scores(form, ScoredRows(logits, live, positions, none), tokens.unsqueeze(2))

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
