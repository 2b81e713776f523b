"""What a request asks of its laws, on the device: `executor/control.py` in fixed shapes.

Numbers that say what a newcomer asks for go down with its text; its line keeps them. Only phases of requests that ask
for something read them (`Wishes`), so that all others pay nothing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsm_spec.errors import UserError
from fsm_spec.executor.control import reads_in_order
from fsm_spec.executor.device.rows import RowForm, Rows
from fsm_spec.executor.device.scope import DeviceScope
from fsm_spec.executor.device.state import BIAS_IDS, STOP_IDS
from fsm_spec.executor.logprobs import MOST_TOP
from fsm_spec.executor.request import Request
from fsm_spec.kernels.fixed.adjust import Texts, adjust
from fsm_spec.kernels.fixed.attention import unpack_mask
from fsm_spec.kernels.law import as_real
from fsm_spec.table import Table


@dataclass(frozen=True)
class Wishes:
    """Say what a phase does for its requests beyond decoding: adjust logits, score tokens, follow grammars."""

    adjusts: bool = False
    scores: bool = False
    follows: bool = False

    @property
    def name(self) -> str:
        """Name them in the keys of graphs."""
        return " ".join(name for name in ("adjusts", "scores", "follows") if getattr(self, name))


NO_WISHES = Wishes()


def wishes_of(requests: list[Request]) -> Wishes:
    """Tell what a batch of requests asks for together."""
    return Wishes(
        any(not request.controls.neutral for request in requests),
        any(request.scores is not None for request in requests),
        any(request.controls.grammar is not None for request in requests),
    )


def refuse(request: Request, table: Table) -> None:
    """Raise UserError for a request that asks for what the device cannot hold, or cannot know."""
    if len(request.stop_ids) > STOP_IDS:
        raise UserError(
            f"a request has {len(request.stop_ids)} stop tokens, and the resident runner holds {STOP_IDS}; "
            "give fewer stop tokens, or run without --resident"
        )
    if len(request.controls.adjustment.bias) > BIAS_IDS:
        raise UserError(
            f"a request has a bias for {len(request.controls.adjustment.bias)} tokens, and the resident runner holds "
            f"{BIAS_IDS}; give fewer, or run without --resident"
        )
    if request.scores is not None:
        if request.scores.top > MOST_TOP:
            raise UserError(
                f"the {request.scores.top} most probable tokens are asked for at each place, and the resident runner "
                f"gives {MOST_TOP}; ask for fewer, or run without --resident"
            )
        if not reads_in_order(table):
            raise UserError(
                f"logprobs need the tokens before each token, and {table.name} fills places in any order; "
                "leave them out or take another spec"
            )


def numbers_of(request: Request, vocabulary: int, mask_id: int) -> NDArray[np.int64]:
    """Lay out what a request asks of its logits, as `DeviceState.put_controls` reads it."""
    controls = request.controls
    given = controls.adjustment
    ids, values = np.zeros(BIAS_IDS, np.int64), np.zeros(BIAS_IDS)
    if given.bias:
        ids[: len(given.bias)], values[: len(given.bias)] = zip(*given.bias, strict=True)
    # A vocabulary of nothing but stop tokens leaves no other token to take.
    # The masks of a grammar hold it too: one that is complete may end the text before.
    least = 0 if controls.grammar is not None else controls.min_tokens
    least = least if len({*request.stop_ids, mask_id}) < vocabulary else 0
    reals = np.array([given.presence, given.frequency, given.repetition], np.float64)
    return np.concatenate([reals.view(np.int64), [least], ids, values.view(np.int64)])


def bits(value: float) -> int:
    """Give the bits of a float64 as an int64."""
    found: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return found


def tokens_ahead(form: RowForm, rows: Rows, scope: DeviceScope, own: Tensor) -> Tensor:
    """List the tokens between the text and what rows predict, as far as they are known without a gap.

    `own` int64 [r] are rows of the plan; -> int64 [n, r, R], -1 behind the last one.
    """
    text = (scope.integers["prompt"] + scope.integers["emitted"]).long().view(-1, 1, 1)
    count = rows.ids.shape[1]
    usable = form.sight(rows)[:, own] & form.known
    place = torch.arange(count, device=own.device)
    at = (rows.positions.unsqueeze(1) - text == place.view(-1, 1)).unsqueeze(1) & usable.unsqueeze(2)
    # Of rows at one place, the last one counts.
    last = (at * torch.arange(1, count + 1, dtype=torch.int32, device=own.device)).amax(3)
    wanted = (rows.positions[:, own] + form.ahead[own]).unsqueeze(2) - text
    known = ((last > 0) & (place < wanted)).int().cumprod(2) > 0
    ids = rows.ids.gather(1, (last - 1).clamp(min=0).flatten(1).long()).view_as(known)
    return torch.where(known, ids, -1)


def shaped(
    form: RowForm, operator: int, rows: Rows, scope: DeviceScope, logits: Tensor, wishes: Wishes
) -> Tensor:
    """Give logits [n, r, V] of the rows that an operator reads as their requests want them."""
    own = form.readers[operator]
    predicted = rows.positions[:, own] + form.ahead[own]
    adjusted = _adjusted(scope, logits, tokens_ahead(form, rows, scope, own), predicted)
    return _followed(scope, adjusted, form.masked[operator]) if wishes.follows else adjusted


def shaped_first(scope: DeviceScope, logits: Tensor, positions: Tensor, wishes: Wishes) -> Tensor:
    """Give logits [n, 1, V] behind prefills as their requests want them; `positions` [n, 1] are those predicted."""
    none = torch.full((*positions.shape, 1), -1, dtype=torch.int64, device=positions.device)
    adjusted = _adjusted(scope, logits, none, positions)
    return _followed(scope, adjusted, 0) if wishes.follows else adjusted


def _followed(scope: DeviceScope, logits: Tensor, first: int) -> Tensor:
    """Leave logits [n, r, V] to the tokens that the masks from number `first` on allow."""
    held = scope.state.allowed
    assert held is not None, "the host has told what grammars allow"
    words = held[:, first : first + logits.shape[1]].index_select(0, scope.lines)
    return logits.masked_fill(~unpack_mask(words, logits.shape[2]), -torch.inf)


def _adjusted(scope: DeviceScope, logits: Tensor, ahead: Tensor, positions: Tensor) -> Tensor:
    """Adjust logits [n, r, V] of rows that predict the tokens at `positions` [n, r]."""
    state, lines = scope.state, scope.lines
    prompt = scope.integers["prompt"].long()
    texts = Texts(
        state.text[:, :-1].index_select(0, lines), prompt, prompt + scope.integers["emitted"].long()
    )
    least = state.least.index_select(0, lines)
    banned = positions - prompt.unsqueeze(1) < least.unsqueeze(1)
    stop_ids = state.stop_ids.index_select(0, lines)
    return adjust(as_real(logits), state.controls_of(lines), texts, ahead, stop_ids, banned)
