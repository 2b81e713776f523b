"""Prefill on the device: the rows of some chunks, whose tokens lie there already, and the events behind them.

Chunks have the lengths that the scheduler gives them. They are cut into pieces of one length, all of which run at
once: K and V of every row are written before attention reads any, so that a piece finds those before it in its
request's pages. So the shape of a launch is the number of its pieces, however many chunks of what lengths they are of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fsm_spec import life_cycle
from fsm_spec.executor.device.control import NO_WISHES, Wishes, shaped_first
from fsm_spec.executor.device.phase import Machine
from fsm_spec.executor.device.pieces import PIECE_NUMBERS, PIECE_ROWS, row_bucket, rows_for
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

    @property
    def piece_rows(self) -> int:
        """Give the rows of a piece where graphs hold them: whole blocks."""
        unit = self.table.prefill_block
        return -(-PIECE_ROWS // unit) * unit

    def rows_of(self, chunks: Sequence[Chunk]) -> int:
        """Give the rows of the pieces of chunks that run together: on a CPU without tapes those that cost least."""
        if self.machine.place.graphs or self.machine.state.device.type != "cpu":
            return self.piece_rows
        unit = self.table.prefill_block
        return rows_for([chunk.start % unit + chunk.tokens for chunk in chunks], unit)

    def alone(self, chunk: Chunk) -> int:
        """Give the rows that hold a chunk in one piece, with the block in whose middle it may begin."""
        return row_bucket(chunk.start % self.table.prefill_block + chunk.tokens)

    def chunks(self, rows: int, wishes: Wishes = NO_WISHES, *, prompt: bool = False) -> Chunks:
        """Give the work of pieces of so many rows; with `prompt` the tokens of their texts are scored."""
        key = (rows, wishes, prompt)
        if key not in self._works:
            self._works[key] = Chunks(self.table, self.machine, rows, wishes, prompt=prompt)
        return self._works[key]


@dataclass(frozen=True)
class Pieces:
    """Hold n pieces that are laid out: those of requests that prefill are alive; int64 [n] each, and their rows."""

    scope: DeviceScope
    alive: Tensor
    """bool [n]"""
    begin: Tensor
    """the first position"""
    tokens: Tensor
    last: Tensor
    """1 where the text ends with the piece"""
    whole: Tensor
    """the tokens of the chunk that ends with the piece, else 0"""
    start: Tensor
    """the position of the first row"""
    count: Tensor
    """the rows that run"""
    rows: FixedRows


class Chunks:
    """Run pieces of chunks of several requests in `rows` rows each: work that a graph can hold."""

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
        self.samples = any(life_cycle.NEXT in row.read for row in self.first.rows)
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
        """Give pieces of nobody."""
        given = torch.zeros(size, PIECE_NUMBERS, dtype=torch.int64, device=self.machine.state.device)
        given[:, 0] = self.machine.state.padding
        return given

    def __call__(self, given: Tensor) -> list[Tensor]:
        """Run pieces int64 [n, 5] as `pieces.py` lays them out -> packed results, those of FIRST the last."""
        laid = self.lay(given)
        model, cache, capture = self.machine.weights.model, self.machine.cache, self.machine.capture
        if not capture:
            return self.finish(laid, model.forward(laid.rows, cache), None)
        return self.finish(laid, *model.forward_captured(laid.rows, cache, capture))

    def lay(self, given: Tensor) -> Pieces:
        """Lay out the rows of pieces."""
        lines, begin, tokens, last, whole = (given[:, place].contiguous() for place in range(PIECE_NUMBERS))
        scope = _scope(self.table, self.machine, lines)
        alive = scope.integers["state"] == self.table.codes[PREFILL]
        unit = self.table.prefill_block
        start = begin - begin % unit
        count = torch.where(alive, begin + tokens - start, 0)
        wanted = self.place if self.prompt else (count - 1).clamp(min=0).unsqueeze(1)
        rows = self._rows(lines, start, count, unit, 0, wanted)
        return Pieces(scope, alive, begin, torch.where(alive, tokens, 0), last, whole, start, count, rows)

    def finish(self, laid: Pieces, logits: Tensor, flat: Tensor | None) -> list[Tensor]:
        """Do what follows a forward of the rows: draft models, the first token, and the events of whole chunks.

        `logits` [n, V], or [n * rows, V] where prompts are scored; hidden states `flat` [n * rows, width].
        """
        scope, count = laid.scope, laid.count
        pieces = len(scope.lines)
        logits = logits.unflatten(0, (pieces, -1))
        hidden = None if flat is None else flat.unflatten(0, (pieces, self.rows))
        for name in self.machine.drafters:
            behind = _behind(hidden, laid.begin - laid.start)
            self._draft(name, scope, laid.begin, laid.tokens, laid.last, behind)
        found = []
        if self.prompt:
            found.append(self._prompt_scores(scope, laid.rows, count, logits))
            logits = _row(logits, count - 1)
        if self.samples:
            found += self._sample(scope, logits, (laid.begin + laid.tokens).unsqueeze(1))
        if hidden is not None:
            scope.outputs[life_cycle.FEATURES] = _row(hidden, count - 1)
        # The last piece of a chunk steps for the whole of it.
        steps, ends = laid.alive & (laid.whole > 0), laid.last > 0
        self.chunk.apply(scope, {"n": laid.whole.int()}, steps & ~ends)
        moved = self.first.apply(scope, {}, steps & ends)
        form = self.results[-1]
        assert isinstance(form, Form)
        return [*found, pack(form, moved, {}, logits)]

    def _sample(self, scope: DeviceScope, logits: Tensor, positions: Tensor) -> list[Tensor]:
        """Sample the token behind each text by logits [n, 1, V] -> its scores, where they are wanted."""
        law = shaped_first(scope, logits, positions, self.wishes) if self.wishes.adjusts else logits
        sampling = self.machine.state.sampling_of(scope.lines)
        token, _ = FIXED_OPERATORS["sample"](law, sampling, positions, Purpose.TARGET, "law")
        scope.outputs[life_cycle.NEXT] = token
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
