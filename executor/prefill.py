"""Prefill chunks: their rows in the target's batch, and what their logits and hidden states give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from fsm_spec import life_cycle
from fsm_spec.executor.batch import Batch
from fsm_spec.executor.carry import Output
from fsm_spec.executor.control import shape_first
from fsm_spec.executor.members import Roster
from fsm_spec.executor.operators import Operators
from fsm_spec.executor.request import Request, Tokens
from fsm_spec.language.expression import evaluate
from fsm_spec.launch import Chunk
from fsm_spec.table import Table


class ReadChunk(NamedTuple):
    """Name a chunk that runs: the rows of the target's batch up to its end, and how many of them give logits."""

    chunk: Chunk
    stop: int
    wanted: int


class Prefill:
    """Lay out prefill chunks, and hold what they gave until the event `first` has read it."""

    def __init__(self, table: Table, roster: Roster, operators: Operators) -> None:
        self.table = table
        self.roster = roster
        self.operators = operators
        self._causal: dict[int, torch.Tensor] = {}
        # First tokens and hidden states, by request.
        self._first: dict[int, Tokens] = {}
        self._states: dict[int, torch.Tensor] = {}

    def use(self, table: Table) -> None:
        """Fill by this table from now on."""
        self.table = table

    def add(self, chunk: Chunk, batch: Batch) -> ReadChunk:
        """Add the rows of a chunk to the target's batch."""
        request = self.roster.requests[chunk.request]
        unit = self.table.prefill_block
        stop = chunk.start + chunk.tokens
        # A block that the last chunk cut is run again from its start, so that its rows see all of it.
        start = chunk.start - chunk.start % unit
        batch.add(
            batch.allocator.lines([chunk.request]),
            np.array([stop - start]),
            request.text[start:stop],
            np.arange(start, stop),
            np.arange(start, stop),
            np.array([start]),
            [self._mask(stop - start)],
        )
        wanted = int(self._samples(chunk))
        if request.scores is not None and request.scores.wants_prompt:
            wanted = stop - start
        batch.wanted.append(np.arange(batch.total - wanted, batch.total))
        return ReadChunk(chunk, batch.total, wanted)

    def keep_states(self, read: Sequence[ReadChunk], hidden: torch.Tensor) -> None:
        """Keep the hidden state of each prefill's last row, out of those of the target's batch [T, width]."""
        for chunk, stop, _ in read:
            if chunk.last:
                self._states[chunk.request] = hidden[stop - 1 : stop].clone()

    def read(self, read: Sequence[ReadChunk], logits: torch.Tensor) -> None:
        """Score prompts where that is wanted, and sample the token after each prefill."""
        at = 0
        sampled: list[tuple[Chunk, int]] = []
        for chunk, _, rows in read:
            request = self.roster.requests[chunk.request]
            if request.scores is not None and request.scores.wants_prompt:
                request.scores.see_prompt(chunk.start, request.text[: request.prompt], logits[at : at + rows])
            at += rows
            if self._samples(chunk):
                sampled.append((chunk, at - 1))
        if sampled:
            chosen = logits if len(sampled) == at else logits[[row for _, row in sampled]]
            self._sample_first([chunk for chunk, _ in sampled], chosen)

    def _sample_first(self, chunks: Sequence[Chunk], logits: torch.Tensor) -> None:
        logits = shape_first([self.roster.requests[chunk.request] for chunk in chunks], logits)
        numbers = np.array([chunk.request for chunk in chunks], np.int64)
        positions = np.array([chunk.start + chunk.tokens for chunk in chunks], np.int64)
        tokens = self.operators.first_tokens(logits, self.roster.members(numbers).sampling, positions)
        for number, token in zip(numbers.tolist(), tokens, strict=True):
            self._first[number] = np.array([[token]], np.int64)

    def outputs(self, numbers: Sequence[int]) -> Mapping[str, Output]:
        """Give what the prefills of these requests left for the event `first`."""
        found: dict[str, Output] = {}
        first = [self._first[number] for number in numbers if number in self._first]
        if len(first) == len(numbers):
            found[life_cycle.NEXT] = np.concatenate(first)
        if all(number in self._states for number in numbers):
            found[life_cycle.FEATURES] = torch.stack([self._states[number] for number in numbers])
        return found

    def forget(self, number: int) -> None:
        """Drop what a request's prefill gave."""
        self._first.pop(number, None)
        self._states.pop(number, None)

    def _samples(self, chunk: Chunk) -> bool:
        return chunk.last and self._reads_logits(self.roster.requests[chunk.request], chunk.start)

    def _mask(self, rows: int) -> torch.Tensor:
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
        return any(life_cycle.NEXT in row.read for row in rows)
