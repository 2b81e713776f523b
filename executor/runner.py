"""The runner: the executor's side of the engine loop. It runs every row plan and holds no code of any algorithm.

A launch becomes one batch of rows and one forward of the model; operators read its logits. Prefill chunks are laid
out and read in `prefill.py`, what a transition emits and carries in `transitions.py`. Scheduling and columns are the
engine's (`fsm_spec/engine.py`), pages and block tables the allocator's (`cache.py`), text and counts the request's
(`request.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from fsm_spec.executor.batch import Batch
from fsm_spec.executor.block import Block, Layout
from fsm_spec.executor.cache import PageAllocator
from fsm_spec.executor.carry import Carries, Scope
from fsm_spec.executor.drafting import Drafting, DraftModel, Ran
from fsm_spec.executor.members import Roster
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.executor.operators import Operators
from fsm_spec.executor.prefill import Prefill, ReadChunk
from fsm_spec.executor.prefix_cache import PrefixCache
from fsm_spec.executor.request import Request
from fsm_spec.executor.transitions import Transitions
from fsm_spec.kernels.choose import CounterChooser
from fsm_spec.launch import Args, Group, Launch
from fsm_spec.step import Columns, Step
from fsm_spec.table import CarryPlan, Table


class Model(Protocol):
    """Be what a runner needs of a model."""

    def forward(self, rows: RowBatch, cache: Any) -> torch.Tensor:  # noqa: ANN401 -- the model's own kind of cache
        """Run rows, write their KV to their slots, and give logits [rows wanted, vocabulary]."""


@runtime_checkable
class CapturingModel(Model, Protocol):
    """Be what a runner needs of a target whose hidden states draft models read."""

    def forward_captured(
        self,
        rows: RowBatch,
        cache: Any,  # noqa: ANN401 -- the model's own kind of cache
        capture: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run rows as `forward` does, and give hidden states [rows, width] of the named layers beside the logits."""


class Runner:
    """Run launches on a model: a `Backend` of the engine.

    `mask_id` stands on mask rows and is never proposed as a draft; `vocabulary` bounds the ids of noise rows.
    `drafters` are the draft models that the table names, each with a cache in slots of the same numbers.
    Requests are made known by `add` under the engine's numbers, and forgotten at their end. `carry` gives the carries
    where those of `table` are not the largest that a policy's tiers ask for. `prefixes` may be set before the first
    request: full pages are then left to later ones.
    """

    def __init__(  # noqa: PLR0913 -- a runner ties all parts together
        self,
        table: Table,
        model: Model,
        cache: Any,  # noqa: ANN401 -- the model's own kind of cache
        allocator: PageAllocator,
        *,
        vocabulary: int,
        mask_id: int,
        operators: Operators | None = None,
        carry: Sequence[CarryPlan] = (),
        drafters: Mapping[str, DraftModel] | None = None,
    ) -> None:
        self.drafting = Drafting(table, drafters or {}, allocator)
        self.model = model
        self.cache = cache
        self.allocator = allocator
        self.vocabulary = vocabulary
        self.mask_id = mask_id
        self.operators = operators or Operators(CounterChooser())
        self.roster = Roster(Carries(carry or table.carry))
        self.requests, self.carries = self.roster.requests, self.roster.carries
        self.prefill = Prefill(table, self.roster, self.operators)
        self.transitions = Transitions(table, self.roster, self.prefill, allocator, cache, mask_id)
        # Requests whose logits were no numbers, until the session asks for them.
        self.faulty: set[int] = set()
        self.forwards = 0
        self._no_logits = torch.zeros(0, vocabulary)
        self.use(table)

    def use(self, table: Table) -> None:
        """Run the row plans of this table from now on."""
        self.table = table
        self.prefill.use(table)
        self.transitions.use(table)
        self._layout_of: dict[str, Layout] = table.cached("layouts", lambda: _layouts(table))

    @property
    def prefixes(self) -> PrefixCache | None:
        """Give the cache of full pages, if there is one."""
        return self.transitions.prefixes

    @prefixes.setter
    def prefixes(self, prefixes: PrefixCache | None) -> None:
        self.transitions.prefixes = prefixes

    def add(self, number: int, request: Request) -> None:
        """Make a request known under the number that the engine gave it."""
        self.roster.add(number, request)

    # Launches --------------------------------------------------------------------------------------------------

    def launch(self, launch: Launch) -> list[Args]:
        """Run a launch: a forward over the rows of all groups and chunks by model, then the operators of each group."""
        batches: dict[str | None, Batch] = {
            name: Batch(self.allocator) for name in (None, *self.table.models)
        }
        blocks = [self._block(group, batches) for group in launch.groups]
        chunks = [self.prefill.add(chunk, batches[None]) for chunk in launch.chunks]
        if not any(batch.total or batch.silent for batch in batches.values()):
            return self._operate(launch, blocks, chunks, {None: Ran(self._no_logits)})
        # Entering the mode costs as much as a few operations, so once a launch and only where a model runs.
        with torch.inference_mode():
            ran: dict[str | None, Ran] = {None: self._run_target(batches[None], blocks, chunks)}
            self._note_faults(ran[None].logits, batches[None], launch, blocks)
            for name in self.table.models:
                hidden = ran[None].hidden
                for chunk, stop, _ in chunks:
                    states = None if hidden is None else hidden[stop - chunk.tokens : stop]
                    self.drafting.prefill(name, chunk, self.requests[chunk.request], states, batches[name])
                ran[name] = self.drafting.run(name, batches[name])
            return self._operate(launch, blocks, chunks, ran)

    def _run_target(self, batch: Batch, blocks: list[Block], chunks: Sequence[ReadChunk]) -> Ran:
        """Run the target, with the hidden states that draft models read where this launch is asked for them."""
        if not batch.total:
            return Ran(self._no_logits)
        self.forwards += 1
        capture = self.drafting.capture
        asked = chunks or any(block.layout.captures and block.layout.plan.model is None for block in blocks)
        if not capture or not asked:
            return Ran(self.model.forward(batch.rows(), self.cache))
        assert isinstance(self.model, CapturingModel), "a draft model reads hidden states of its target"
        ran = Ran(*self.model.forward_captured(batch.rows(), self.cache, capture))
        assert ran.hidden is not None
        self.prefill.keep_states(chunks, ran.hidden)
        return ran

    def _note_faults(
        self, logits: torch.Tensor, batch: Batch, launch: Launch, blocks: Sequence[Block]
    ) -> None:
        """Note the requests whose logits are no numbers, and let their rows read zeros until they end.

        A stream that is not finite gives NaN in every column behind the final norm, so one column tells.
        """
        if not math.isnan(logits.select(1, 0).sum().item()):
            return
        owners = [
            number
            for group, block in zip(launch.groups, blocks, strict=True)
            if block.layout.plan.model is None and block.layout.plan.rows
            for number in group.requests.tolist()
        ]
        owners += [chunk.request for chunk in launch.chunks]
        bad = logits[:, 0].isnan().nonzero().view(-1)
        rows = np.concatenate(batch.wanted)[bad.numpy()]
        members = np.searchsorted(np.concatenate(batch.counts).cumsum(), rows, "right")
        self.faulty |= {owners[member] for member in members.tolist()}
        logits[bad] = 0

    def _operate(
        self,
        launch: Launch,
        blocks: list[Block],
        chunks: Sequence[ReadChunk],
        ran: Mapping[str | None, Ran],
    ) -> list[Args]:
        """Run the operators of each group, and sample after prefills, on their parts of the logits."""
        read = dict.fromkeys(ran, 0)
        passed = dict.fromkeys(ran, 0)
        results: list[Args] = []
        for group, block in zip(launch.groups, blocks, strict=True):
            plan = block.layout.plan
            given, at, first = ran[plan.model], read[plan.model], passed[plan.model]
            read[plan.model] += block.wanted
            passed[plan.model] += block.rows
            results.append(
                self.operators.run(
                    block,
                    _part(given.logits, at, read[plan.model]),
                    self.roster.members(group.requests).sampling,
                    None if given.hidden is None else _part(given.hidden, first, passed[plan.model]),
                    None if plan.model is None else self.drafting.models[plan.model].model,
                )
            )
            self.transitions.blocks[group.state] = block
        if chunks:
            self.prefill.read(chunks, ran[None].logits[read[None] :])
        return results

    def _block(self, group: Group, batches: Mapping[str | None, Batch]) -> Block:
        """Lay out the rows of a group and add them to the batch of their model."""
        layout, members = self._layout_of[group.state], self.roster.members(group.requests)
        columns = dict(group.columns)
        scope = Scope(self.table, members.requests, members.lines, self.carries, columns, self.mask_id)
        block = Block(layout, scope, members.sampling.seeds, self.vocabulary)
        if layout.rows == 0:
            return block
        batch, target = batches[layout.plan.model], layout.plan.model is None
        first, shape = batch.total, block.shape
        if members.tables is None:
            members.tables = self.allocator.lines(group.requests.tolist())
        lines, positions = members.tables, block.flat(block.positions)
        slots = positions if block.slots is block.positions else block.flat(block.slots)
        # All that lies before its rows is committed, or was written for later forwards of this round.
        before = group.columns["kv"] if target else block.first_slots()
        batch.add(
            lines,
            shape.counts,
            block.flat(block.ids),
            positions,
            slots,
            before,
            block.masks,
            shape.gated,
        )
        if target:
            for request, count in zip(scope.requests, shape.counts.tolist(), strict=True):
                if count:
                    request.forwards += 1
        else:
            for member in range(len(lines)):
                self._add_states(block, member, lines[member : member + 1], batch)
        batch.wanted += [first + rows.numbers for rows in block.logit_readers]
        return block

    def _add_states(self, block: Block, member: int, line: NDArray[np.int64], batch: Batch) -> None:
        """Add the hidden states that a request's rows of a draft model read."""
        features = block.features(member)
        if features is not None:
            batch.features.append(features)
        silent = block.slots[member, block.shape.silent[member]]
        if len(silent):
            slots = torch.from_numpy(self.allocator.physical(line, silent))
            batch.silent.append(block.context_rows(member, slots))

    # Transitions -----------------------------------------------------------------------------------------------

    def stops(
        self, event: str, requests: NDArray[np.int64], columns: Columns, args: Args
    ) -> NDArray[np.int32]:
        """Give the tokens before the first stop token of each run about to be emitted."""
        return self.transitions.stops(event, requests, columns, args)

    def settle(self, event: str, requests: NDArray[np.int64], before: Columns, done: Step) -> None:
        """Follow a step."""
        self.transitions.settle(event, requests, before, done)

    def resize(self, request: int, pages: int) -> None:
        """Follow the pages a request owns; 0 releases all."""
        if pages:
            self.allocator.resize(request, pages)
            return
        self.roster.part()
        if self.prefixes is not None:
            self.prefixes.leave(request)
        self.allocator.release(request)


def _part(rows: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Give some rows of a tensor, without a view of its own where they are all: making one costs microseconds."""
    return rows if stop - start == rows.shape[0] else rows[start:stop]


def _layouts(table: Table) -> dict[str, Layout]:
    """Lay out the forwards of a table, by state."""
    layouts = {name: Layout(table, plan) for name, plan in table.forwards.items()}
    return {state.name: layouts[state.forward] for state in table.states if state.forward is not None}
