"""What the host asks of a phase before its launch, where a request follows a grammar: work that a graph can hold.

Nothing moves by it, so the launch behind it finds everything as it was. What is told says `grammars.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fsm_spec.executor.device.control import tokens_ahead
from fsm_spec.executor.device.grammars import asking
from fsm_spec.executor.device.phase import Phase


class Peek:
    """Tell, by state of a phase, the tokens in front of those that its rows predict."""

    variant = "peek"

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        self.digest = phase.digest
        self.states = phase.states

    def blank(self, size: int) -> Tensor:
        """Give a batch of nobody."""
        return self.phase.blank(size)

    def __call__(self, lines: Tensor) -> list[Tensor]:
        """Read lines int64 [n] -> int64 [n, width] of each state, as `grammars.py:Asked` reads it."""
        found = []
        for part in self.phase.lay(lines):
            form, rows = part.member.form, part.rows
            told = [part.alive.unsqueeze(1)]
            for operator in asking(form.plan):
                own = form.readers[operator]
                told += [rows.live[:, own], rows.positions[:, own] + form.ahead[own]]
                told.append(tokens_ahead(form, rows, part.scope, own).flatten(1))
            found.append(torch.cat([each.long() for each in told], 1))
        return found
