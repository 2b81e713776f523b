"""The output mailbox: what a launch says to the host, packed into one integer tensor, and read back there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsm_spec.executor.device.transition import Moved


@dataclass(frozen=True)
class Form:
    """Name the numbers of an event's results in order; the run of tokens stands behind them."""

    event: str
    args: tuple[str, ...]
    columns: tuple[str, ...]

    def read(self, numbers: NDArray[np.int64], values: NDArray[np.int64]) -> Results:
        """Read what `pack` laid out."""
        return Results(self, numbers, values)

    @property
    def heads(self) -> int:
        """Count the numbers in front of the run."""
        return 4 + len(self.args) + len(self.columns)


def pack(form: Form, moved: Moved, args: dict[str, Tensor], logits: Tensor | None) -> Tensor:
    """Lay the results of an event side by side, int64 [n, heads + most].

    A request is alive twice where one of its target's logits [n, wanted, V] is no number: a stream that is not finite
    gives NaN in every column behind the final norm, so one column tells.
    """
    alive = moved.alive
    if logits is not None and logits.shape[1]:
        alive = alive.long() + (alive & logits[:, :, 0].isnan().any(1)).long()
    heads = [alive, moved.transition, moved.emitted, moved.stop]
    heads += [args[name] for name in form.args]
    heads += [moved.columns[name] for name in form.columns]
    return torch.cat((torch.stack([head.long() for head in heads], 1), moved.run), 1)


class Results:
    """Hold an event's results on the host, for n requests."""

    def __init__(self, form: Form, numbers: NDArray[np.int64], values: NDArray[np.int64]) -> None:
        """Read `values` [n, heads + most]; `numbers` [n] are the requests."""
        self.form = form
        self.numbers = numbers
        alive, transition, emitted, stop = values[:, :4].T
        self.alive = alive > 0
        self.faulty = alive > 1
        self.transition = transition.astype(np.int32)
        self.emitted = emitted
        self.stop: NDArray[np.int32] = stop.astype(np.int32)
        ends = 4 + len(form.args)
        self.args = {name: values[:, 4 + at].astype(np.int32) for at, name in enumerate(form.args)}
        self.columns = {name: values[:, ends + at].astype(np.int32) for at, name in enumerate(form.columns)}
        self.run = values[:, form.heads :]

    def take(self, members: NDArray[np.int64]) -> Results:
        """Give the results of some members."""
        part = Results.__new__(Results)
        part.form = self.form
        part.numbers, part.alive = self.numbers[members], self.alive[members]
        part.faulty = self.faulty[members]
        part.transition, part.emitted = self.transition[members], self.emitted[members]
        part.stop, part.run = self.stop[members], self.run[members]
        part.args = {name: values[members] for name, values in self.args.items()}
        part.columns = {name: values[members] for name, values in self.columns.items()}
        return part
