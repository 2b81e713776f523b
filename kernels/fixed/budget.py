"""The `budget` operator in fixed shapes: drafts granted over all requests of a launch, without a wait for the host.

What it means, and why it stops where it does, says `fsm_spec/budget.py`, to which tests hold it. What is no
probability cannot be refused here: it counts as 0 or 1, whichever is nearer, NaN as 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def grant(survival: Tensor, alive: Tensor, rates: Tensor) -> Tensor:
    """Grant drafts in order of survival while the expected throughput rises -> int64 [n].

    survival [n, g], along a row never rising; alive bool [n] are the requests of the launch; `rates` float64 [m] are
    its steps a second by its rows, the last one standing for all larger ones.
    """
    chances, request = _candidates(survival, alive)
    throughput = _throughput(chances, alive, rates)
    place = torch.arange(len(chances), device=chances.device)
    falls = throughput[1:] <= throughput[:-1]
    return _counted(request, torch.where(falls, place, len(place)).amin(), alive, survival.shape[1])


def share(survival: Tensor, alive: Tensor, rates: Tensor, earlier: Tensor) -> Tensor:
    """Grant the likeliest drafts -> int64 [n]: as many as would have been best by the survivals `earlier` [n, g].

    Shapes as in `grant`.
    """
    chances, _ = _candidates(earlier, alive)
    throughput = _throughput(chances, alive, rates)
    place = torch.arange(len(throughput), device=chances.device)
    total = torch.where(throughput == throughput.amax(), place, len(place)).amin()
    _, request = _candidates(survival, alive)
    return _counted(request, total, alive, survival.shape[1])


def _candidates(survival: Tensor, alive: Tensor) -> tuple[Tensor, Tensor]:
    """Return (survival, request) of all drafts, the likeliest first, those of dead requests behind all others."""
    chances = survival.double().nan_to_num(0.0).clamp(0, 1).cummin(1).values
    # By draft, then by request: the order in which a stable sort leaves ties.
    flat = torch.where(alive.unsqueeze(1), chances, -1.0).t().flatten()
    ordered = flat.sort(descending=True, stable=True)
    return ordered.values, ordered.indices % len(alive)


def _throughput(chances: Tensor, alive: Tensor, rates: Tensor) -> Tensor:
    """Return the expected tokens a second after 0, 1, ... granted drafts; -1 where there are no more."""
    count = alive.sum()
    gained = torch.cat((chances.new_zeros(1), chances.clamp(min=0).cumsum(0)))
    granted = torch.arange(len(gained), device=gained.device)
    rate = rates.index_select(0, (count + granted).clamp(max=len(rates) - 1))
    there = torch.cat((torch.ones_like(alive[:1]), chances >= 0))
    return torch.where(there, (count + gained) * rate, -1.0)


def _counted(request: Tensor, total: Tensor, alive: Tensor, most: int) -> Tensor:
    """Count the granted drafts of each request: those of the first `total` candidates."""
    granted = (torch.arange(len(request), device=request.device) < total).long()
    counts = torch.zeros_like(alive, dtype=torch.int64).scatter_add(0, request, granted)
    return torch.where(alive, counts, most)
