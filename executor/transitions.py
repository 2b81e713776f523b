"""What a transition means to the requests that take it: runs emitted, carries, KV kept, the ends of requests.

The engine asks for the stops of the runs about to be emitted, steps, and lets `settle` follow. All that is emitted
and carried is read from the table's rows, by the scope of the launch before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fsm_spec import life_cycle
from fsm_spec.executor.block import Block
from fsm_spec.executor.cache import PageAllocator
from fsm_spec.executor.carry import EMPTY, Scope
from fsm_spec.executor.members import Roster
from fsm_spec.executor.prefill import Prefill
from fsm_spec.executor.prefix_cache import PrefixCache
from fsm_spec.executor.request import Request, Tokens
from fsm_spec.kernels.tree import Tree
from fsm_spec.language.piece import Piece
from fsm_spec.launch import Args
from fsm_spec.step import Columns, Step, choose
from fsm_spec.table import END, Row, Table

# Carries by name, with the pieces that a row sets them to.
Carried = Sequence[tuple[str, Sequence[Piece]]]
# A row of the table, and the members of an event that take it; None means all.
Taken = tuple[Row, NDArray[np.int64] | None]


class Transitions:
    """Follow the steps of requests: the half of a `Backend` that computes nothing.

    `blocks` holds what the present launch ran, by state; `prefixes` is told of full pages where there is one.
    """

    def __init__(
        self,
        table: Table,
        roster: Roster,
        prefill: Prefill,
        allocator: PageAllocator,
        cache: Any,  # noqa: ANN401 -- the model's own kind of cache
        mask_id: int,
    ) -> None:
        self.roster = roster
        self.carries = roster.carries
        self.prefill = prefill
        self.allocator = allocator
        self.cache = cache
        self.mask_id = mask_id
        self.prefixes: PrefixCache | None = None
        self.blocks: dict[str, Block] = {}
        # The runs of the present event, and the rows that were taken.
        self._runs: Tokens = np.zeros((0, 0), np.int64)
        self._taken: list[Taken] = []
        self.use(table)

    def use(self, table: Table) -> None:
        """Follow the rows of this table from now on."""
        self.table = table
        # Carries of tokens that a row sets, and others, by the row's index.
        self._carried: dict[int, tuple[Carried, Carried]] = {}
        # The events that end a launch of their state; all others are the life cycle's.
        self._launched = frozenset(state.name for state in table.states if state.forward is not None)

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
        return self.roster.members(requests).stops(self._runs)

    def settle(self, event: str, requests: NDArray[np.int64], before: Columns, done: Step) -> None:
        """Follow a step: write carries, append the cut runs, count, and forget who ended."""
        scope = self._scope_of(event, requests, before)
        end = self.table.codes[END]
        states = done.columns["state"].tolist()
        if event in self._launched and self.table.cached(("moves", event), lambda: self._moves(event)):
            self._compact(self.blocks[event], requests, before, done)
        alive = (done.columns["state"] != end).nonzero()[0] if end in states else None
        # An event that emits has just been asked for its stops, and the cut takes no request to another row.
        known = alive is None and self.table.events[event].emits
        for row, members in self._taken if known else self._by_row(done.transition // 2, alive):
            self._move_carries(scope, row, members)
        self._append(event, scope.requests, states, done.emitted)
        if self.prefixes is not None:
            self.prefixes.follow(self.table, event, requests, done.columns)
        if alive is not None:
            for number in requests[done.columns["state"] == end].tolist():
                self.roster.forget(number)
        if event not in self._launched:
            self._follow_life(event, scope, requests, done)

    def _append(
        self, event: str, requests: Sequence[Request], states: Sequence[int], emitted: NDArray[np.int32]
    ) -> None:
        """Append the runs of an event, as they were cut, and count rounds and what they emitted."""
        is_round = event in self._launched
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
                self.prefill.forget(number)

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

    def _by_row(self, rows: NDArray[np.int32], members: NDArray[np.int64] | None = None) -> list[Taken]:
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

    def _scope_of(self, event: str, numbers: NDArray[np.int64], columns: Columns) -> Scope:
        """Give the scope of an event: of its launch, or a fresh one for the life cycle's events."""
        if event in self._launched:
            return self.blocks[event].scope
        members = self.roster.members(numbers)
        scope = Scope(self.table, members.requests, members.lines, self.carries, dict(columns), self.mask_id)
        if event == life_cycle.FIRST:
            scope.outputs.update(self.prefill.outputs(numbers.tolist()))
        return scope


def _rejoined(runs: Sequence[Tokens], members: Sequence[NDArray[np.int64] | None]) -> Tokens:
    """Put the runs of members, each [m, longest], back in the order of all: [n, longest], EMPTY behind each run."""
    joined = np.full((sum(map(len, runs)), max(run.shape[1] for run in runs)), EMPTY, np.int64)
    for run, own in zip(runs, members, strict=True):
        joined[own, : run.shape[1]] = run
    return joined
