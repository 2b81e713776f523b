"""The op that lays out token pieces, and the one that finds slots: what they promise a graph."""

from __future__ import annotations

import torch

from fsm_spec.kernels.fixed.pages import physical_slots
from fsm_spec.kernels.fixed.pieces import lay_tokens

CHECKS = ("test_schema", "test_faketensor")


def test_ops_hold_their_contract() -> None:
    """A graph capture trusts what an op says it changes."""
    run, held, lines = torch.zeros(2, 5).long(), torch.arange(12).view(3, 4), torch.tensor([2, 0])
    ends = torch.tensor([1, 5])
    for source, own in ((held, lines), (held, None), (None, None)):
        torch.library.opcheck(
            lay_tokens, (run, source, own, [1, 0, 0], None, None, ends, -2), test_utils=CHECKS
        )
    live = torch.tensor([[True], [False]])
    inputs = (held.int(), lines, torch.tensor([[1, 7], [0, 3]]), live, 2)
    torch.library.opcheck(physical_slots, inputs, test_utils=CHECKS)


def test_pieces_stand_one_behind_the_other() -> None:
    """Each keeps to its places; what is read beyond a line's end is its last token."""
    run, held = torch.full((2, 6), -1), torch.tensor([[10, 11, 12], [20, 21, 22]])
    second = torch.tensor([1, 3])
    lay_tokens(run, held, torch.tensor([1, 0]), [0, 0, 0], None, None, second, -2)
    lay_tokens(run, None, None, [0, 0, 5], None, second, None, -2)
    lay_tokens(run, held, None, [2, 5, 6], None, None, None, -2)
    assert [[20, -2, -2, -2, -2, 12], [10, 11, 12, -2, -2, 22]] == run.tolist()
