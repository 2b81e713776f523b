"""A phase and pieces of prefill chunks in one forward: weights are read once for the rows of both.

Decode rows and pieces have shapes of their own, so attention runs part by part (`models/rows.py:JoinedRows`); all
products with weights, which are what a launch of few rows costs, run over the rows of both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fsm_spec.executor.device.phase import Phase
from fsm_spec.executor.device.pieces import PIECE_NUMBERS
from fsm_spec.executor.device.prefill import Chunks
from fsm_spec.executor.models.rows import JoinedRows


class Mixed:
    """Run a phase of the target and `pieces` pieces of chunks together: work that a graph can hold."""

    def __init__(self, phase: Phase, chunks: Chunks, pieces: int) -> None:
        assert phase.runs_target, "chunks are rows of the target"
        assert not chunks.prompt, "scored prompts run alone"
        self.phase = phase
        self.chunks = chunks
        self.pieces = pieces
        self.digest = phase.digest
        self.states = (*phase.states, *chunks.states)
        # Each has wishes of its own, so both are named.
        self.variant = f"{phase.variant} + {pieces} x {chunks.variant}".strip()

    def size(self, lines: int) -> int:
        """Count the numbers of an input for a batch of so many lines."""
        return lines + self.pieces * PIECE_NUMBERS

    def blank(self, size: int) -> Tensor:
        """Give a batch of nobody, with pieces of nobody behind it."""
        lines = self.phase.blank(size - self.pieces * PIECE_NUMBERS)
        return torch.cat((lines, self.chunks.blank(self.pieces).flatten()))

    def __call__(self, given: Tensor) -> list[Tensor]:
        """Run lines [n] with the numbers of pieces behind them -> packed results of the phase, then of the pieces."""
        phase, machine = self.phase, self.phase.machine
        numbers = self.pieces * PIECE_NUMBERS
        lines = given[: len(given) - numbers]
        laid = phase.lay(lines)
        pieces = self.chunks.lay(given[len(given) - numbers :].view(self.pieces, PIECE_NUMBERS))
        parts = (phase.rows(laid, lines), pieces.rows)
        rows, model = JoinedRows(parts), machine.weights.model
        own = hidden = behind = None
        if machine.capture:
            logits, hidden = model.forward_captured(rows, machine.cache, machine.capture)
            own, behind = hidden.split([len(part.positions) for part in parts])
            own = own.unflatten(0, (len(lines), phase.height)) if phase.captures else None
        else:
            logits = model.forward(rows, machine.cache)
        first, second = logits.split([len(part.logits_rows) for part in parts])
        packed = phase.finish(laid, first.unflatten(0, (len(lines), -1)), own)
        return [*packed, *self.chunks.finish(pieces, second, behind)]
