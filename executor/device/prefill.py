"""Prefill on the device: the rows of some chunks, whose tokens lie there already, and the events behind them.

Chunks have the lengths that the scheduler gives them. They run in rows of a few lengths, filled up with dead ones, so
that each length and number of chunks is one graph; chunks of one length run in one launch.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsm_spec import life_cycle
from fsm_spec.executor.device.control import NO_WISHES, Wishes, shaped_first
from fsm_spec.executor.device.phase import Machine
from fsm_spec.executor.device.results import Form, pack
from fsm_spec.executor.device.scope import DeviceScope, namespace
from fsm_spec.executor.device.scores import PROMPT, ScoredRows, ScoreForm, pack_scores, score_form
from fsm_spec.executor.device.transition import Transition
from fsm_spec.executor.models.drafter import ContextRows
from fsm_spec.executor.models.rows import FixedRows
from fsm_spec.kernels.fixed.attention import pack_mask
from fsm_spec.kernels.fixed.gather import gather_ids
from fsm_spec.kernels.fixed.operators import FIXED_OPERATORS
from fsm_spec.kernels.randomness import Purpose
from fsm_spec.launch import Chunk
from fsm_spec.rules.draft_rows import BESIDE
from fsm_spec.table import PREFILL, WAIT, Table

NEXT, FEATURES = "next", "features"
# The numbers that say what a chunk is: line, first position, tokens, whether it is the last of its text.
CHUNK_NUMBERS = 4


class Prefill:
    """Give the work of prefill chunks of a table's requests, and admit those whose text is shorter than a block."""

    def __init__(self, table: Table, machine: Machine) -> None:
        self.table = table
        self.machine = machine
        self.admit = Transition(table, life_cycle.ADMIT)
        # An admission that enters the start state at once sets carries: the device computes them.
        self.admits_here = any(row.carries for row in self.admit.rows)
        self._works: dict[tuple[int, Wishes, bool], Chunks] = {}

    def begin(self, lines: Tensor, hits: Tensor) -> None:
        """Admit lines int64 [n] that wait, with all their columns as before, behind `hits` int64 [n] tokens."""
        scope = _scope(self.table, self.machine, lines)
        alive = scope.integers["state"] == self.table.codes[WAIT]
        self.admit.apply(scope, {"hit": hits.int()}, alive)

    def rows_of(self, chunk: Chunk) -> int:
        """Give the rows in which a chunk runs: a block that it begins in the middle of is run from its start."""
        return row_bucket(chunk.start % self.table.prefill_block + chunk.tokens)

    def chunks(self, rows: int, wishes: Wishes = NO_WISHES, *, prompt: bool = False) -> Chunks:
        """Give the work of chunks in so many rows; with `prompt` the tokens of their texts are scored."""
        key = (rows, wishes, prompt)
        if key not in self._works:
            self._works[key] = Chunks(self.table, self.machine, rows, wishes, prompt=prompt)
        return self._works[key]


def row_bucket(rows: int) -> int:
    """Give the least of 1, 2, 3, 4, 6, 8, 12, ... that holds so many rows: no more than a third of it is dead."""
    power = 1 << max(rows - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and rows <= power * 3 // 4 else power


def numbers_of(chunks: Iterable[tuple[int, Chunk]], size: int, nobody: int) -> NDArray[np.int64]:
    """Lay out chunks of lines as `Chunks` reads them, filled up to `size` with some of the line that is nobody's."""
    numbers = np.zeros((size, CHUNK_NUMBERS), np.int64)
    numbers[:, 0] = nobody
    for row, (line, chunk) in zip(numbers, chunks, strict=False):
        row[:] = line, chunk.start, chunk.tokens, chunk.last
    return numbers


class Chunks:
    """Run chunks of several requests in `rows` rows each: work that a graph can hold."""

    states = ("prefill",)

    def __init__(self, table: Table, machine: Machine, rows: int, wishes: Wishes, *, prompt: bool) -> None:
        self.table = table
        self.machine = machine
        self.digest = table.digest
        self.rows = rows
        self.wishes = wishes
        self.prompt = prompt
        self.variant = " ".join(filter(None, [f"{rows} rows", wishes.name, "prompt" if prompt else ""]))
        self.first = Transition(table, life_cycle.FIRST)
        self.chunk = Transition(table, life_cycle.CHUNK)
        pieces = [
            p for row in self.first.rows for p in (*row.emit, *(p for _, ps in row.carries for p in ps))
        ]
        self.samples = any(piece.name == NEXT for piece in pieces)
        self.place = torch.arange(rows, device=machine.state.device)
        self.masks = {unit: self._mask(unit) for unit in {1, table.prefill_block}}
        self.results: list[Form | ScoreForm] = [Form(life_cycle.FIRST, (), table.column_names)]
        if wishes.scores and self.samples:
            self.results.insert(0, score_form(life_cycle.FIRST, 1, 0, machine.vocabulary))
        if prompt:
            self.results.insert(0, score_form(PROMPT, rows, 0, machine.vocabulary))

    def _mask(self, unit: int) -> Tensor:
        """Pack the sight of rows: all of their own block, and of those before."""
        block = self.place // unit
        return pack_mask((block[:, None] >= block)[None])

    def blank(self, size: int) -> Tensor:
        """Give chunks of nobody."""
        given = torch.zeros(size, CHUNK_NUMBERS, dtype=torch.int64, device=self.machine.state.device)
        given[:, 0] = self.machine.state.padding
        return given

    def __call__(self, given: Tensor) -> list[Tensor]:
        """Run chunks int64 [n, 4] as `numbers_of` lays them out -> packed results, those of FIRST the last."""
        machine = self.machine
        lines, begin, tokens, last = (given[:, place].contiguous() for place in range(CHUNK_NUMBERS))
        scope = _scope(self.table, machine, lines)
        alive = scope.integers["state"] == self.table.codes[PREFILL]
        unit = self.table.prefill_block
        start, stop = begin - begin % unit, begin + tokens
        count = torch.where(alive, stop - start, 0)
        wanted = self.place if self.prompt else (count - 1).clamp(min=0).unsqueeze(1)
        rows = self._rows(lines, start, count, unit, 0, wanted)
        if machine.capture:
            logits, flat = machine.weights.model.forward_captured(rows, machine.cache, machine.capture)
            hidden: Tensor | None = flat.unflatten(0, (len(lines), self.rows))
        else:
            logits, hidden = machine.weights.model.forward(rows, machine.cache), None
        logits = logits.unflatten(0, (len(lines), -1))
        for name in machine.drafters:
            self._draft(
                name, scope, begin, torch.where(alive, tokens, 0), last, _behind(hidden, begin - start)
            )
        found = []
        if self.prompt:
            found.append(self._prompt_scores(scope, rows, count, logits))
            logits = _row(logits, count - 1)
        if self.samples:
            found += self._sample(scope, logits, stop.unsqueeze(1))
        if hidden is not None:
            scope.outputs[FEATURES] = _row(hidden, count - 1)
        ends = last > 0
        self.chunk.apply(scope, {"n": tokens.int()}, alive & ~ends)
        moved = self.first.apply(scope, {}, alive & ends)
        form = self.results[-1]
        assert isinstance(form, Form)
        return [*found, pack(form, moved, {})]

    def _sample(self, scope: DeviceScope, logits: Tensor, positions: Tensor) -> list[Tensor]:
        """Sample the token behind each text by logits [n, 1, V] -> its scores, where they are wanted."""
        law = shaped_first(scope, logits, positions) if self.wishes.adjusts else logits
        sampling = self.machine.state.sampling_of(scope.lines)
        token, _ = FIXED_OPERATORS["sample"](law, sampling, positions, Purpose.TARGET, "law")
        scope.outputs[NEXT] = token
        if not self.wishes.scores:
            return []
        form = next(each for each in self.results if each.event == life_cycle.FIRST)
        assert isinstance(form, ScoreForm)
        return [
            pack_scores(
                form, _scored(logits, torch.ones_like(positions).bool(), positions), token.unsqueeze(2)
            )
        ]

    def _prompt_scores(self, scope: DeviceScope, rows: FixedRows, count: Tensor, logits: Tensor) -> Tensor:
        """Score the tokens of the text behind each row."""
        form = self.results[0]
        assert isinstance(form, ScoreForm)
        behind = rows.positions.unflatten(0, (len(count), self.rows)) + 1
        text = self.machine.state.text
        tokens = text.index_select(0, scope.lines).gather(1, behind.clamp(max=text.shape[1] - 1))
        live = self.place < count.unsqueeze(1)
        return pack_scores(form, _scored(logits, live, behind), tokens.unsqueeze(2))

    def _rows(
        self, lines: Tensor, start: Tensor, count: Tensor, unit: int, ahead: int, wanted: Tensor
    ) -> FixedRows:
        """Lay out `count` rows from position `start` on; a row reads the token `ahead` of its position.

        `wanted` int64 [n, m] or [m] are the rows of each chunk whose logits are read.
        """
        machine = self.machine
        state = machine.state
        positions = start.unsqueeze(1) + self.place
        slots = state.physical(lines, positions, self.place < count.unsqueeze(1))
        first = torch.arange(len(lines), device=lines.device).unsqueeze(1) * self.rows
        return FixedRows(
            token_ids=gather_ids(
                state.text, lines, start + ahead, self.rows, machine.mask_id, machine.vocabulary
            ).flatten(),
            positions=positions.flatten(),
            slots=slots,
            block_table=state.block_table.index_select(0, lines),
            context=torch.where(count > 0, start, 0).int(),
            block_slots=slots,
            mask=self.masks[unit],
            logits_rows=(first + wanted).flatten(),
            page_size=state.sizes.page_size,
            attention=machine.attention,
        )

    def _draft(
        self,
        name: str,
        scope: DeviceScope,
        begin: Tensor,
        tokens: Tensor,
        last: Tensor,
        hidden: Tensor | None,
    ) -> None:
        """Give a draft model the rows of chunks, as `drafting.py` does; `hidden` [n, rows, width] are the target's."""
        draft = self.machine.drafters[name]
        kind = self.table.models[name].kind
        flat = None if hidden is None else hidden.flatten(0, 1)
        none = self.place[:0]
        if kind == "context_head":
            assert flat is not None, "a context head reads hidden states"
            rows = self._rows(scope.lines, begin, tokens, 1, 0, none)
            draft.model.write_context(ContextRows(flat, rows.positions, rows.slots.flatten()), draft.cache)
            return
        beside = int(kind in BESIDE)
        count = (tokens - last).clamp(min=0) if beside else tokens
        rows = self._rows(scope.lines, begin, count, 1, beside, none)
        draft.model.forward(rows, draft.cache, flat if beside else None)


def _scope(table: Table, machine: Machine, lines: Tensor) -> DeviceScope:
    columns = machine.state.take(lines)
    return DeviceScope(
        table, namespace(table, lines.device), machine.state, lines, columns, {}, machine.mask_id
    )


def _row(values: Tensor, row: Tensor) -> Tensor:
    """Take one row of each chunk, [n, rows, width] -> [n, 1, width]; any where `row` is negative."""
    at = row.clamp(min=0).view(-1, 1, 1).expand(-1, 1, values.shape[2])
    return values.gather(1, at)


def _behind(hidden: Tensor | None, rows: Tensor) -> Tensor | None:
    """Leave out the first `rows` int64 [n] rows of each chunk; what fills it up behind is dead."""
    if hidden is None:
        return None
    place = (torch.arange(hidden.shape[1], device=rows.device) + rows.unsqueeze(1)).clamp(
        max=hidden.shape[1] - 1
    )
    return hidden.gather(1, place.unsqueeze(2).expand(-1, -1, hidden.shape[2]))


def _scored(logits: Tensor, live: Tensor, positions: Tensor) -> ScoredRows:
    """Name rows that follow the text alone."""
    none = torch.zeros(*positions.shape, 0, dtype=torch.int64, device=positions.device)
    return ScoredRows(logits, live, positions, none)
