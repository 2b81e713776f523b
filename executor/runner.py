"""The runner: the executor's side of the engine loop. It runs every row plan and holds no code of any algorithm.

A launch becomes one batch of rows and one forward of the model; operators read its logits; what a transition emits
and carries is read from the table's rows. Scheduling and columns are the engine's (`fsm_spec/engine.py`), pages and
block tables the allocator's (`cache.py`), text and counts the request's (`request.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from fsm_spec import life_cycle, prefix_cache
from fsm_spec.engine import Args, Chunk, Group, Launch
from fsm_spec.executor.batch import Batch
from fsm_spec.executor.block import Block, Layout
from fsm_spec.executor.cache import PageAllocator
from fsm_spec.executor.carry import EMPTY, Carries, Scope
from fsm_spec.executor.control import shape_first
from fsm_spec.executor.drafting import Drafting, DraftModel, Ran
from fsm_spec.executor.members import Members
from fsm_spec.executor.models.rows import RowBatch
from fsm_spec.executor.operators import Operators
from fsm_spec.executor.prefix_cache import PrefixCache
from fsm_spec.executor.request import Request, Tokens
from fsm_spec.kernels.choose import CounterChooser
from fsm_spec.kernels.tree import Tree
from fsm_spec.language.expression import evaluate
from fsm_spec.language.piece import Piece
from fsm_spec.step import Columns, Step, choose
from fsm_spec.table import END, CarryPlan, Row, Table

# The output that a prefill gives, as the life cycle's rows name it.
NEXT = "next"
# The hidden states of its last row, as draft models read them.
FEATURES = "features"
_MOST_GROUPS = 1024
# A prefill chunk, the rows of the target's batch up to its end, and how many of them give logits.
ReadChunk = tuple[Chunk, int, int]
# Carries by name, with the pieces that a row sets them to.
Carried = Sequence[tuple[str, Sequence[Piece]]]
# A row of the table, and the members of an event that take it; None means all.
Taken = tuple[Row, NDArray[np.int64] | None]


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
        self.requests: dict[int, Request] = {}
        self.prefixes: PrefixCache | None = None
        # Requests whose logits were no numbers, until the session asks for them.
        self.faulty: set[int] = set()
        self.carries = Carries(carry or table.carry)
        self.forwards = 0
        self._no_logits = torch.zeros(0, vocabulary)
        self._lines: dict[int, int] = {}
        self.use(table)
        self._causal: dict[int, torch.Tensor] = {}
        # By the engine's numbers, for as long as nobody comes, ends or gives its pages back.
        self._known: dict[bytes, Members] = {}
        # What the present launch gave, by event; for prefills by request.
        self._blocks: dict[str, Block] = {}
        self._first: dict[int, Tokens] = {}
        self._states: dict[int, torch.Tensor] = {}
        self._runs: Tokens = np.zeros((0, 0), np.int64)
        self._taken: list[Taken] = []

    def use(self, table: Table) -> None:
        """Run the row plans of this table from now on."""
        self.table = table
        self._layout_of: dict[str, Layout] = table.cached("layouts", lambda: _layouts(table))
        # Carries of tokens that a row sets, and others, by the row's index.
        self._carried: dict[int, tuple[Carried, Carried]] = {}

    # Requests --------------------------------------------------------------------------------------------------

    def add(self, number: int, request: Request) -> None:
        """Make a request known under the number that the engine gave it."""
        self.requests[number] = request
        self._lines[number] = self.carries.take()
        # A number names another request in a new engine only.
        self._known.clear()

    def _forget(self, number: int) -> None:
        self.carries.give_back(self._lines.pop(number))
        del self.requests[number]

    # Launches --------------------------------------------------------------------------------------------------

    def launch(self, launch: Launch) -> list[Args]:
        """Run a launch: a forward over the rows of all groups and chunks by model, then the operators of each group."""
        batches: dict[str | None, Batch] = {
            name: Batch(self.allocator) for name in (None, *self.table.models)
        }
        blocks = [self._block(group, batches) for group in launch.groups]
        chunks = [(chunk, *self._add_chunk(chunk, batches[None])) for chunk in launch.chunks]
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
        for chunk, stop, _ in chunks:
            if chunk.last:
                self._states[chunk.request] = ran.hidden[stop - 1 : stop].clone()
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
                    self._members(group.requests).sampling,
                    None if given.hidden is None else _part(given.hidden, first, passed[plan.model]),
                    None if plan.model is None else self.drafting.models[plan.model].model,
                )
            )
            self._blocks[group.state] = block
        if chunks:
            self._read_chunks([(chunk, count) for chunk, _, count in chunks], ran[None].logits[read[None] :])
        return results

    def _block(self, group: Group, batches: Mapping[str | None, Batch]) -> Block:
        """Lay out the rows of a group and add them to the batch of their model."""
        layout, members = self._layout_of[group.state], self._members(group.requests)
        scope = self._scope(members, group.columns)
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

    def _add_chunk(self, chunk: Chunk, batch: Batch) -> tuple[int, int]:
        """Add the rows of a prefill chunk; give the rows of the batch behind it, and how many last ones give logits."""
        request = self.requests[chunk.request]
        unit = self.table.prefill_block
        stop = chunk.start + chunk.tokens
        # A block that the last chunk cut is run again from its start, so that its rows see all of it.
        start = chunk.start - chunk.start % unit
        batch.add(
            self.allocator.lines([chunk.request]),
            np.array([stop - start]),
            request.text[start:stop],
            np.arange(start, stop),
            np.arange(start, stop),
            np.array([start]),
            [self._prefill_mask(stop - start)],
        )
        wanted = int(self._samples(chunk))
        if request.scores is not None and request.scores.wants_prompt:
            wanted = stop - start
        batch.wanted.append(np.arange(batch.total - wanted, batch.total))
        return batch.total, wanted

    def _samples(self, chunk: Chunk) -> bool:
        return chunk.last and self._reads_logits(self.requests[chunk.request], chunk.start)

    def _prefill_mask(self, rows: int) -> torch.Tensor:
        if rows not in self._causal:
            if len(self._causal) >= 16:  # each chunk length is another mask; few occur at a time
                self._causal.clear()
            block = torch.arange(rows) // self.table.prefill_block
            self._causal[rows] = block[:, None] >= block
        return self._causal[rows]

    def _reads_logits(self, request: Request, kv: int) -> bool:
        """Tell whether the row that ends this prefill reads a token from its logits."""
        values = self.table.new_request(request.prompt, request.limit)
        values |= {"emitted": request.length - request.prompt, "kv": kv}
        rows = [row for row in self.table.rows_of(life_cycle.FIRST) if evaluate(row.guard, values)]
        pieces = [piece for row in rows for piece in (*row.emit, *(p for _, ps in row.carries for p in ps))]
        return any(piece.name == NEXT for piece in pieces)

    def _read_chunks(self, read: list[tuple[Chunk, int]], logits: torch.Tensor) -> None:
        """Score prompts where that is wanted, and sample the token after each prefill."""
        at = 0
        sampled: list[tuple[Chunk, int]] = []
        for chunk, rows in read:
            request = self.requests[chunk.request]
            if request.scores is not None and request.scores.wants_prompt:
                request.scores.see_prompt(chunk.start, request.text[: request.prompt], logits[at : at + rows])
            at += rows
            if self._samples(chunk):
                sampled.append((chunk, at - 1))
        if sampled:
            chosen = logits if len(sampled) == at else logits[[row for _, row in sampled]]
            self._sample_first([chunk for chunk, _ in sampled], chosen)

    def _sample_first(self, chunks: Sequence[Chunk], logits: torch.Tensor) -> None:
        logits = shape_first([self.requests[chunk.request] for chunk in chunks], logits)
        numbers = np.array([chunk.request for chunk in chunks], np.int64)
        positions = np.array([chunk.start + chunk.tokens for chunk in chunks], np.int64)
        tokens = self.operators.first_tokens(logits, self._members(numbers).sampling, positions)
        for number, token in zip(numbers.tolist(), tokens, strict=True):
            self._first[number] = np.array([[token]], np.int64)

    def _members(self, numbers: NDArray[np.int64]) -> Members:
        """Gather requests by the engine's numbers."""
        key = numbers.tobytes()
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_GROUPS:
                self._known.clear()
            listed = numbers.tolist()
            found = Members(
                [self.requests[number] for number in listed], [self._lines[number] for number in listed]
            )
            self._known[key] = found
        return found

    # Transitions -----------------------------------------------------------------------------------------------

    def stops(
        self,
        event: str,
        requests: NDArray[np.int64],
        columns: Columns,
        args: Args,
    ) -> NDArray[np.int32]:
        """Read the runs about to be emitted, and give the tokens before the first stop token of each."""
        scope = self._scope_of(event, requests, columns)
        self._taken = self._by_row(choose(self.table, columns, event, args, np))
        runs = [scope.runs(row.emit, members) for row, members in self._taken]
        self._runs = runs[0] if len(runs) == 1 else _rejoined(runs, [members for _, members in self._taken])
        return self._members(requests).stops(self._runs)

    def settle(self, event: str, requests: NDArray[np.int64], before: Columns, done: Step) -> None:
        """Follow a step: write carries, append the cut runs, count, and forget who ended."""
        scope = self._scope_of(event, requests, before)
        end = self.table.codes[END]
        states = done.columns["state"].tolist()
        if event in self._layout_of and self.table.cached(("moves", event), lambda: self._moves(event)):
            self._compact(self._blocks[event], requests, before, done)
        alive = (done.columns["state"] != end).nonzero()[0] if end in states else None
        # An event that emits has just been asked for its stops, and the cut takes no request to another row.
        known = alive is None and self.table.events[event].emits
        for row, members in self._taken if known else self._by_row(done.transition // 2, alive):
            self._move_carries(scope, row, members)
        self._append(event, scope.requests, states, done.emitted)
        if self.prefixes is not None and prefix_cache.commits(self.table, event):
            full = prefix_cache.committed(self.table, event, done.columns) // self.allocator.page_size
            for number, pages in zip(requests.tolist(), full.tolist(), strict=True):
                self.prefixes.enter(number, pages)
        if alive is not None:
            for number in requests[done.columns["state"] == end].tolist():
                self._forget(number)
        if event not in self._layout_of:
            self._follow_life(event, scope, requests, done)

    def _append(
        self, event: str, requests: Sequence[Request], states: Sequence[int], emitted: NDArray[np.int32]
    ) -> None:
        """Append the runs of an event, as they were cut, and count rounds and what they emitted."""
        is_round = event in self._layout_of
        if self.table.events[event].emits:
            for request, run, count in zip(requests, self._runs, emitted.tolist(), strict=True):
                if count:
                    request.append(run[:count])
                    if is_round:
                        request.emitted += count
        if is_round:
            over = self._ends_round
            for request, state in zip(requests, states, strict=True):
                if over[state]:
                    request.rounds += 1

    def _follow_life(self, event: str, scope: Scope, numbers: NDArray[np.int64], done: Step) -> None:
        """Follow what the life cycle's own events mean to a request."""
        if event == life_cycle.PREEMPT:
            for line in scope.lines.tolist():
                self.carries.drop(line)
        elif event == life_cycle.HALT:
            for request, emitted in zip(scope.requests, done.columns["emitted"].tolist(), strict=True):
                request.halt(emitted)
        elif event == life_cycle.ADMIT:
            for request, kv in zip(scope.requests, done.columns["kv"].tolist(), strict=True):
                if request.cached is None:
                    request.cached = kv
        elif event == life_cycle.FIRST:
            for number in numbers.tolist():
                self._first.pop(number, None)
                self._states.pop(number, None)

    @property
    def _ends_round(self) -> list[bool]:
        """Tell by state code whether a round is over where a request has come to that state."""
        found: list[bool] = self.table.cached(
            "ends_round", lambda: [state.round or state.name == END for state in self.table.states]
        )
        return found

    def _moves(self, event: str) -> bool:
        """Tell whether a row of an event keeps other rows than the first ones."""
        rows = self.table.rows_of(event)
        return any(row.keep_rows is not None or row.keep_stride is not None for row in rows)

    def _compact(self, block: Block, requests: NDArray[np.int64], before: Columns, done: Step) -> None:
        """Move the KV of kept rows that are not the first ones together, for all requests of an event at once."""
        sources, targets = [], []
        end = self.table.codes[END]
        kept = (done.columns["kv"] - before["kv"]).tolist()
        for member, (code, count) in enumerate(zip(done.transition.tolist(), kept, strict=True)):
            row = self.table.rows[code // 2]
            if (row.keep_rows is None and row.keep_stride is None) or done.columns["state"][member] == end:
                continue
            if row.keep_rows is None:
                rows = np.arange(count) * (row.keep_stride or 1)
            else:
                path = block.scope.outputs[row.keep_rows]
                assert isinstance(path, np.ndarray)
                rows = path[member, :count]
            number, kv = int(requests[member]), int(before["kv"][member])
            line = self.allocator.lines([number])
            sources.append(self.allocator.physical(line, block.slots[member, rows]))
            targets.append(self.allocator.physical(line, np.arange(kv, kv + count)))
        if sources:
            self.cache.move(*(torch.from_numpy(np.concatenate(slots)) for slots in (sources, targets)))

    def resize(self, request: int, pages: int) -> None:
        """Follow the pages a request owns; 0 releases all."""
        if pages:
            self.allocator.resize(request, pages)
            return
        self._known.clear()
        if self.prefixes is not None:
            self.prefixes.leave(request)
        self.allocator.release(request)

    def _by_row(
        self, rows: NDArray[np.int32], members: NDArray[np.int64] | None = None
    ) -> list[Taken]:
        """Group members of an event by the row of the table that each takes, given for all; None means all."""
        rows = rows if members is None else rows[members]
        taken = sorted(set(rows.tolist()))
        if len(taken) == 1:
            return [(self.table.rows[taken[0]], members)]
        places = [(rows == row).nonzero()[0] for row in taken]
        return [
            (self.table.rows[row], own if members is None else members[own])
            for row, own in zip(taken, places, strict=True)
        ]

    def _move_carries(self, scope: Scope, row: Row, members: NDArray[np.int64] | None) -> None:
        """Write the carries that a row sets; all values are read before any is written."""
        tokens = self.carries.tokens
        lines = scope.lines if members is None else scope.lines[members]
        if row.index not in self._carried:
            self._carried[row.index] = (
                [each for each in row.carries if each[0] in tokens],
                [each for each in row.carries if each[0] not in tokens],
            )
        narrow, others = self._carried[row.index]
        gathered = {name: scope.gather(pieces, members, tokens[name].shape[1]) for name, pieces in narrow}
        if others:
            for member in range(len(lines)) if members is None else members.tolist():
                self._move_others(scope, others, member, int(scope.lines[member]))
        for name, values in gathered.items():
            tokens[name][lines] = values

    def _move_others(self, scope: Scope, carries: Carried, member: int, line: int) -> None:
        """Write one request's laws, hidden states and trees."""
        values = [
            scope.tree(pieces[0].name, member) if name in self.carries.trees else scope.wide(pieces, member)
            for name, pieces in carries
        ]
        for (name, _), value in zip(carries, values, strict=True):
            if isinstance(value, Tree):
                self.carries.trees[name][line] = value
            else:
                self.carries.wide[name][line] = value

    def _scope(self, members: Members, columns: Columns) -> Scope:
        """Gather what pieces may read of requests."""
        return Scope(self.table, members.requests, members.lines, self.carries, dict(columns), self.mask_id)

    def _scope_of(self, event: str, numbers: NDArray[np.int64], columns: Columns) -> Scope:
        """Give the scope of an event: of its launch, or a fresh one for the life cycle's events."""
        if event in self._layout_of:
            return self._blocks[event].scope
        scope = self._scope(self._members(numbers), columns)
        if event == life_cycle.FIRST:
            first = [self._first.get(number) for number in numbers.tolist()]
            if all(tokens is not None for tokens in first):
                scope.outputs[NEXT] = np.concatenate([tokens for tokens in first if tokens is not None])
            if self.drafting.capture:
                scope.outputs[FEATURES] = torch.stack([self._states[number] for number in numbers.tolist()])
        return scope


def _part(rows: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Give some rows of a tensor, without a view of its own where they are all: making one costs microseconds."""
    return rows if stop - start == rows.shape[0] else rows[start:stop]


def _rejoined(runs: Sequence[Tokens], members: Sequence[NDArray[np.int64] | None]) -> Tokens:
    """Put the runs of members, each [m, longest], back in the order of all: [n, longest], EMPTY behind each run."""
    joined = np.full((sum(map(len, runs)), max(run.shape[1] for run in runs)), EMPTY, np.int64)
    for run, own in zip(runs, members, strict=True):
        joined[own, : run.shape[1]] = run
    return joined


def _layouts(table: Table) -> dict[str, Layout]:
    """Lay out the forwards of a table, by state."""
    layouts = {name: Layout(table, plan) for name, plan in table.forwards.items()}
    return {state.name: layouts[state.forward] for state in table.states if state.forward is not None}
