"""Input ids in fixed shapes, place by place."""

from __future__ import annotations

import torch

from fsm_spec.kernels.fixed.gather import gather_ids
from fsm_spec.kernels.unmask import MASKED


def test_masked_places_and_ends_of_lines() -> None:
    """An id outside the vocabulary reads beyond the embedding; a place outside a line another request's tokens."""
    source = torch.tensor([[5, MASKED, 7], [1, 99, -1]])
    found = gather_ids(source, torch.tensor([1, 0, 0]), torch.tensor([1, 1, -1]), 3, 8, 10)
    assert [[9, 0, 0], [8, 7, 7], [5, 5, 8]] == found.tolist()


def test_op_holds_its_contract() -> None:
    """The runner is tested under fake tensors, where an op without a fake fails."""
    arguments = (torch.zeros(2, 3, dtype=torch.int64), torch.tensor([1, 0]), torch.tensor([0, 1]), 2, 8, 10)
    torch.library.opcheck(gather_ids, arguments, test_utils=("test_schema", "test_faketensor"))
