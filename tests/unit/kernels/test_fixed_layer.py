"""The ops between a layer's products: what they promise a graph, and that an input is not what they write."""

from __future__ import annotations

import torch

from fsm_spec.kernels.fixed.layer import add_norm, gate, turn_append


def test_ops_hold_their_contract() -> None:
    """A graph capture trusts what an op says it changes."""
    checks = ("test_schema", "test_faketensor")
    floor = torch.tensor(0.1)
    for added in (None, torch.randn(3, 8).bfloat16()):
        inputs = (torch.randn(3, 8), added, torch.randn(8), floor, torch.bfloat16)
        torch.library.opcheck(add_norm, inputs, test_utils=checks)
    cache, slots = torch.zeros(5, 2, 1, 4), torch.tensor([1, -1, 4]).int()
    tables = torch.randn(2, 3, 3, 4).unbind(0)
    for norms in ([], [torch.ones(4), floor, torch.ones(4), floor]):
        torch.library.opcheck(
            turn_append, (torch.randn(3, 16), *tables, norms, cache, slots), test_utils=checks
        )
    torch.library.opcheck(gate, (torch.randn(3, 10),), test_utils=checks)


def test_slots_keep_their_rows() -> None:
    """Values are kept as they are, keys turned; a row without a slot is nowhere."""
    qkv, cache = torch.arange(24.0).view(2, 12), torch.zeros(3, 2, 1, 4)
    cos, sin = torch.full((2, 2, 4), 2.0), torch.zeros(2, 2, 4)
    query = turn_append(qkv, cos, sin, [], cache, torch.tensor([2, -1]).int())
    assert query.flatten(1).equal(qkv[:, :4] * 2)
    assert cache[2].flatten().equal(torch.cat([qkv[0, 4:8] * 2, qkv[0, 8:]]))
    assert not cache[:2].any()
