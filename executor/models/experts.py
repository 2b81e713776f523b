"""A feed-forward layer that mixes experts: each row runs the few that its router chose, and adds them by weight."""

from __future__ import annotations

import torch
from torch.nn import functional

from fsm_spec.executor.models.config import Experts

Tensor = torch.Tensor

# Rows that run together through all experts: of 128 experts of 2,048 outputs they take 0.4 GB.
ROWS = 128


def mix_experts(read: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, experts: Experts) -> Tensor:
    """Run rows [T, hidden] through their experts -> [T, hidden] float32, or float64 for float64 rows.

    `router` [E, hidden], `gate_up` [E, 2 * ffn, hidden], `down` [E, hidden, ffn]. The weights of the chosen experts are
    their chances among all (Qwen3-MoE, arXiv:2505.09388, section 2), in float32 or wider, and so is the sum, so that
    it depends on no other row.
    """
    wide = torch.promote_types(read.dtype, torch.float32)
    chances = functional.linear(read, router).to(wide).softmax(-1)
    shares, chosen = chances.topk(experts.per_token, -1)
    if experts.normalised:
        shares = shares / shares.sum(-1, keepdim=True)
    if read.device.type == "cpu":
        return run_by_expert(read, gate_up, down, shares, chosen)
    # Beyond as many choices as experts, copies of what each row chose are larger than all experts together.
    run = run_by_row if chosen.numel() <= len(gate_up) else run_all
    return run(read, gate_up, down, shares, chosen)


def run_by_expert(read: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
    """Run each expert once for all rows that chose it; the floor is one read of each expert that some row chose."""
    mixed = torch.zeros(read.shape, dtype=shares.dtype)
    for number in chosen.unique().tolist():
        rows, ranks = (chosen == number).nonzero(as_tuple=True)
        gate, up = functional.linear(read[rows], gate_up[number]).chunk(2, 1)
        out = functional.linear(functional.silu(gate).mul_(up), down[number])
        mixed.index_add_(0, rows, out.to(shares.dtype) * shares[rows, ranks, None])
    return mixed


def run_by_row(read: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
    """Gather the experts of each row, so that no count comes to the host; reads an expert for every choice of it."""
    picked = chosen.reshape(-1)
    each = read.unsqueeze(1).expand(*chosen.shape, -1).reshape(len(picked), -1, 1)
    gate, up = torch.bmm(gate_up.index_select(0, picked), each).chunk(2, 1)
    out = torch.bmm(down.index_select(0, picked), functional.silu(gate) * up)
    return (out.view(*chosen.shape, -1).to(shares.dtype) * shares.unsqueeze(2)).sum(1)


def run_all(read: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
    """Run all experts for all rows, so that no count comes to the host; each is read once for ROWS rows.

    2,048 rows of Qwen3-30B-A3B would copy 103 GB of experts a layer by `run_by_row`. Floor: a read of each expert;
    above some 300 rows its products count, which are experts / per_token times those that are wanted.
    """
    weights = shares.new_zeros(len(read), len(gate_up)).scatter(1, chosen, shares)
    mixed = []
    for rows, own in zip(read.split(ROWS), weights.split(ROWS), strict=True):
        gate, up = torch.matmul(rows, gate_up.transpose(1, 2)).chunk(2, 2)
        out = torch.bmm(functional.silu(gate) * up, down.transpose(1, 2))
        share = own.t().unsqueeze(2)
        # What was not chosen may be infinite.
        mixed.append(torch.where(share > 0, out.to(shares.dtype) * share, 0).sum(0))
    return torch.cat(mixed)
