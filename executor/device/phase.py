"""The round of a phase: one launch of the requests in some states, from their columns to their settled results.

A phase is a function of device tensors alone: which line each place of the batch stands for is read from a tensor,
and what a line is due by its state column. A line in none of the phase's states is dead: nothing of it changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fsm_spec.executor.block import Layout
from fsm_spec.executor.cache import PagedCache
from fsm_spec.executor.device.control import NO_WISHES, Wishes, tokens_ahead
from fsm_spec.executor.device.grammars import Asked
from fsm_spec.executor.device.operators import Ran, run_operators
from fsm_spec.executor.device.place import Place
from fsm_spec.executor.device.results import Form, pack
from fsm_spec.executor.device.rows import RowForm, Rows
from fsm_spec.executor.device.scope import DeviceScope, namespace
from fsm_spec.executor.device.scores import ScoredRows, ScoreForm, pack_scores, score_form
from fsm_spec.executor.device.state import DeviceState
from fsm_spec.executor.device.transition import Transition
from fsm_spec.executor.device.weights import Weights
from fsm_spec.executor.drafting import DraftModel
from fsm_spec.executor.models.drafter import ContextRows
from fsm_spec.executor.models.rows import FixedRows
from fsm_spec.kernels.fixed.attention import pack_mask
from fsm_spec.plan import ForwardPlan
from fsm_spec.table import Table


@dataclass(frozen=True)
class Machine:
    """Hold what all phases run on: the target, its cache, draft models, and the state of requests."""

    place: Place
    weights: Weights
    cache: PagedCache
    drafters: Mapping[str, DraftModel]
    capture: tuple[int, ...]
    state: DeviceState
    mask_id: int
    vocabulary: int
    attention: str = "auto"


@dataclass(frozen=True)
class _Member:
    """Hold one state of a phase."""

    code: int
    form: RowForm
    transition: Transition
    results: Form
    reads: tuple[tuple[int, int] | Tensor | None, ...]
    """where the rows of each operator stand among those that give logits"""
    judges: tuple[int, ...]
    """the operators that read the target's laws of tokens to be emitted, where these are scored"""
    scores: ScoreForm | None


@dataclass(frozen=True)
class Laid:
    """Hold one state's rows in a batch."""

    member: _Member
    scope: DeviceScope
    alive: Tensor
    rows: Rows


class Phase:
    """Run the requests of a batch that are in some states of a table, whose forwards are of one model.

    `wishes` is what its requests ask for together.
    """

    def __init__(
        self, table: Table, states: Sequence[str], machine: Machine, wishes: Wishes = NO_WISHES
    ) -> None:
        self.table = table
        self.digest = table.digest
        self.states = tuple(states)
        self.wishes = wishes
        self.variant = wishes.name
        self.machine = machine
        self.device = machine.state.device
        plans = [table.forwards[table.state(name).forward or ""] for name in states]
        models = {plan.model for plan in plans}
        assert len(models) == 1, "the states of a phase run one model"
        self.drafter = None if None in models else machine.drafters[str(plans[0].model)]
        layouts = [Layout(table, plan) for plan in plans]
        self.height = max(layout.plan.rows for layout in layouts)
        wanted = sorted({int(row) for layout in layouts for row in _logit_rows(layout)})
        self.wanted = machine.place.constant(np.array(wanted, np.int64))
        self.members = [
            self._member(name, layout, wanted) for name, layout in zip(states, layouts, strict=True)
        ]
        self.all_gated = all(layout.gated.all() for layout in layouts)
        self.gated = any(layout.gated.any() for layout in layouts)
        self.runs_target = self.drafter is None and self.height > 0
        self.captures = bool(machine.capture) and any(layout.captures for layout in layouts)
        self.asked = [
            Asked(layout.plan, layout.readers, member.form.masked)
            for layout, member in zip(layouts, self.members, strict=True)
        ]
        self.results: list[Form | ScoreForm] = []
        for member in self.members:
            self.results += [member.results] if member.scores is None else [member.scores, member.results]

    def _member(self, name: str, layout: Layout, wanted: list[int]) -> _Member:
        machine, table = self.machine, self.table
        form = RowForm(layout, machine.place, machine.mask_id, machine.vocabulary)
        place = {row: at for at, row in enumerate(wanted)}
        reads: list[tuple[int, int] | Tensor | None] = []
        for reader in layout.readers:
            rows = [place[int(row)] for row in reader if int(row) in place]
            if not rows:
                reads.append(None)
            elif rows == list(range(rows[0], rows[0] + len(rows))):
                reads.append((rows[0], rows[-1] + 1))
            else:
                reads.append(machine.place.constant(np.array(rows, np.int64)))
        args = tuple(arg.name for arg in table.events[name].args)
        data = machine.cache.data if layout.plan.model is None else None
        transition = Transition(table, name, data)
        judges = _judges(layout.plan) if self.wishes.scores else ()
        scores = None
        if judges:
            count = sum(len(layout.readers[index]) for index in judges)
            scores = score_form(name, count, layout.plan.rows, machine.vocabulary)
        results = Form(name, args, table.column_names)
        return _Member(table.codes[name], form, transition, results, tuple(reads), judges, scores)

    def blank(self, size: int) -> Tensor:
        """Give a batch of nobody."""
        padding = self.machine.state.padding
        return torch.full((size,), padding, dtype=torch.int64, device=self.device)

    def __call__(self, lines: Tensor) -> list[Tensor]:
        """Run the lines of a batch, int64 [n]; give the packed results of each state."""
        laid = self.lay(lines)
        return self.finish(laid, *self._forward(laid, lines))

    def lay(self, lines: Tensor) -> list[Laid]:
        """Lay out the rows of each state."""
        state = self.machine.state
        columns = state.take(lines)
        parts = []
        for member in self.members:
            alive = columns["state"] == member.code
            space = namespace(self.table, self.device)
            scope = DeviceScope(self.table, space, state, lines, dict(columns), {}, self.machine.mask_id)
            rows = member.form.lay(scope, alive) if member.form.rows else _no_rows(lines)
            parts.append(Laid(member, scope, alive, rows))
        return parts

    def finish(self, parts: Sequence[Laid], logits: Tensor, hidden: Tensor | None) -> list[Tensor]:
        """Run the operators and the events behind a forward: logits [n, wanted, V], hidden states [n, R, width]."""
        packed = []
        for part in parts:
            member = part.member
            drafter = None if self.drafter is None else self.drafter.model
            read = partial(self._read, member, logits)
            ran = Ran(member.form, part.rows, part.scope, part.alive, read, hidden, drafter, self.wishes)
            args = run_operators(ran)
            if member.scores is not None:
                packed.append(self._scored(part, member.scores, logits))
            moved = member.transition.apply(part.scope, args, part.alive, part.rows.slots)
            packed.append(pack(member.results, moved, args, logits if self.drafter is None else None))
        return packed

    def _scored(self, part: Laid, form: ScoreForm, logits: Tensor) -> Tensor:
        """Score the judging rows of a state, as the target gave their laws."""
        member, rows, scope = part.member, part.rows, part.scope
        own = torch.cat([member.form.readers[index] for index in member.judges])
        given = [
            scope.outputs[output.name]
            for index in member.judges
            for output in member.form.plan.operators[index].outputs
            if output.kind == "token"
        ]
        known = torch.cat([rows.ids, *(tokens for tokens in given if isinstance(tokens, Tensor))], 1)
        scored = ScoredRows(
            torch.cat([self._read(member, logits, index) for index in member.judges], 1),
            rows.live[:, own],
            rows.positions[:, own] + member.form.ahead[own],
            tokens_ahead(member.form, rows, scope, own),
        )
        return pack_scores(form, scored, known.unsqueeze(1).expand(-1, len(own), -1))

    @staticmethod
    def _read(member: _Member, logits: Tensor, operator: int) -> Tensor:
        """Take the logits of an operator's rows, [n, r, V]."""
        read = member.reads[operator]
        assert read is not None, "an operator of rows reads some"
        return logits[:, read[0] : read[1]] if isinstance(read, tuple) else logits[:, read]

    def _forward(self, parts: Sequence[Laid], lines: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run the model over all rows -> logits [n, wanted, V], hidden states [n, R, width] where they are read."""
        if not self.height:
            return torch.zeros(len(lines), 0, self.machine.vocabulary, device=self.device), None
        rows = self.rows(parts, lines)
        machine = self.machine
        hidden: Tensor | None
        if self.drafter is not None:
            part = parts[0]
            if not bool(part.member.form.layout.query.all()):
                self._write_context(part, lines, self.drafter)
            drafted = self.drafter.model.forward(rows, self.drafter.cache, self._features(part))
            logits, hidden = drafted.logits, drafted.hidden
        else:
            model = machine.weights.of(gated=self.all_gated)
            if self.captures:
                logits, hidden = model.forward_captured(rows, machine.cache, machine.capture)
            else:
                logits, hidden = model.forward(rows, machine.cache), None
        shape = (len(lines), self.height)
        return logits.unflatten(0, (len(lines), -1)), None if hidden is None else hidden.unflatten(0, shape)

    @staticmethod
    def _features(part: Laid) -> Tensor | None:
        features = part.member.form.features(part.scope)
        return None if features is None else features.flatten(0, 1)

    def _write_context(self, part: Laid, lines: Tensor, drafter: DraftModel) -> None:
        """Write K and V of the rows without queries."""
        numbers, states = part.member.form.silent(part.scope)
        rows = part.rows
        live = rows.filled[:, numbers]
        slots = self.machine.state.physical(lines, rows.slots[:, numbers], live)
        positions = rows.positions[:, numbers].flatten()
        drafter.model.write_context(
            ContextRows(states.flatten(0, 1), positions, slots.flatten()), drafter.cache
        )

    def rows(self, parts: Sequence[Laid], lines: Tensor) -> FixedRows:
        """Join the rows of all states: each request has those of its own."""
        state = self.machine.state
        block = max(part.rows.block.shape[1] for part in parts)
        live = self._joined(parts, [part.rows.live for part in parts], (self.height,))
        slots = self._joined(parts, [part.rows.slots for part in parts], (self.height,))
        seen = self._joined(parts, [part.rows.mask for part in parts], (self.height, block))
        blocks = self._joined(parts, [part.rows.block for part in parts], (block,))
        context = self._joined(parts, [part.rows.context for part in parts], ())
        alive = torch.stack([part.alive for part in parts]).any(0)
        first = torch.arange(len(lines), device=self.device).unsqueeze(1) * self.height
        gated = None
        if self.gated:
            own = [part.member.form.gated.expand_as(part.rows.live) for part in parts]
            gated = (self._joined(parts, own, (self.height,)) & live).flatten()
        return FixedRows(
            token_ids=self._joined(parts, [part.rows.ids for part in parts], (self.height,)).flatten(),
            positions=self._joined(parts, [part.rows.positions for part in parts], (self.height,)).flatten(),
            slots=state.physical(lines, slots, live),
            block_table=state.block_table.index_select(0, lines),
            context=torch.where(alive, context, 0).int(),
            block_slots=state.physical(lines, blocks, seen.any(1)),
            mask=pack_mask(seen),
            logits_rows=(first + self.wanted).flatten(),
            page_size=state.sizes.page_size,
            adapter_rows=gated,
            attention=self.machine.attention,
        )

    @staticmethod
    def _joined(parts: Sequence[Laid], values: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
        """Take for each request the values of its own state, filled up to one shape."""
        joined = None
        for part, value in zip(parts, values, strict=True):
            missing = [0] * (2 * len(shape))
            for axis, size in enumerate(shape):
                missing[2 * (len(shape) - 1 - axis) + 1] = size - value.shape[1 + axis]
            padded = functional.pad(value, missing) if any(missing) else value
            alive = part.alive.view(-1, *[1] * len(shape))
            joined = padded if joined is None else torch.where(alive, padded, joined)
        assert joined is not None, "a phase has a state"
        return joined


def _logit_rows(layout: Layout) -> list[int]:
    """List the rows of a plan whose logits an operator reads."""
    operators = zip(layout.plan.operators, layout.readers, strict=True)
    return [int(row) for operator, rows in operators if operator.op != "capture" for row in rows]


def _judges(plan: ForwardPlan) -> tuple[int, ...]:
    """List the operators whose rows give laws of tokens to be emitted."""
    if plan.model is not None:
        return ()
    operators = enumerate(plan.operators)
    return tuple(index for index, each in operators if each.rows and not each.draft and each.op != "capture")


def _no_rows(lines: Tensor) -> Rows:
    """Give the rows of a state that runs no model."""
    none = torch.zeros(len(lines), 0, dtype=torch.int64, device=lines.device)
    dead = none.bool()
    return Rows(dead, dead, none, none, none, none.sum(1), none, dead.unsqueeze(2))
