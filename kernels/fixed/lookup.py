"""The `lookup` operator in fixed shapes; what it means says `kernels/lookup.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fsm_spec.kernels.lookup import require_lengths


def lookup(texts: Tensor, lengths: Tensor, size: int, shortest: int, longest: int) -> tuple[Tensor, Tensor]:
    """Draft up to `size` tokens for each text -> (drafts int64 [n, size], 0 past the count; count int64 [n]).

    Shapes: texts int64 [n, most], live up to `lengths` int64 [n]. Raises ValueError as the reading does.
    """
    require_lengths(size, shortest, longest)
    return _lookup(texts, lengths, size, shortest, longest)  # type: ignore[no-any-return]


@torch.library.custom_op("fsm_spec::lookup", mutates_args=())
def _lookup(texts: Tensor, lengths: Tensor, size: int, shortest: int, longest: int) -> tuple[Tensor, Tensor]:
    """Draft by the fixed form."""
    return lookup_torch(texts, lengths, size, shortest, longest)


@_lookup.register_fake
def _(texts: Tensor, lengths: Tensor, size: int, *_: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401 -- torch's
    """Give shapes and types."""
    return texts.new_empty((len(texts), size)), torch.empty_like(lengths)


def lookup_torch(
    texts: Tensor, lengths: Tensor, size: int, shortest: int, longest: int
) -> tuple[Tensor, Tensor]:
    """Draft in plain torch, as `lookup` says.

    For each place, the tokens up to it that equal the text's last ones are counted, `longest` at most: the places
    with the highest count are the occurrences of the longest known suffix.
    """
    most = texts.shape[1]
    places = torch.arange(most, device=texts.device)
    last = lengths.unsqueeze(1) - 1
    running = places < last  # an occurrence ends before the text does
    matched = torch.zeros_like(texts)
    for back in range(min(longest, most)):
        wanted = texts.gather(1, (last - back).clamp(0, most - 1))
        shifted = texts.roll(back, 1)
        running = running & (places >= back) & (shifted == wanted)
        matched = matched + running.long()
    found = matched.amax(1, keepdim=True)
    start = matched.argmax(1, keepdim=True) + 1  # the first place of the most: the earliest occurrence
    columns = start + torch.arange(size, device=texts.device)
    inside = (found >= shortest) & (columns < lengths.unsqueeze(1))
    drafts = texts.gather(1, columns.clamp(max=most - 1))
    return torch.where(inside, drafts, 0), inside.sum(1)
