"""Budgets in fixed shapes grant what the host's functions grant, whoever else stands in the batch."""

from __future__ import annotations

import numpy as np
import torch
from fake_device import device_only
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.budget import Rate, best_total, table_rate
from fsm_spec.budget import grant as host_grant
from fsm_spec.budget import share as host_share
from fsm_spec.kernels.fixed.budget import grant, share

DRAFTS, REQUESTS = 3, 5
# Few values, so that ties are met.
chances = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]), min_size=DRAFTS, max_size=DRAFTS)
survivals = st.lists(chances, min_size=REQUESTS, max_size=REQUESTS)
masks = st.lists(st.booleans(), min_size=REQUESTS, max_size=REQUESTS)
rates = st.lists(st.sampled_from([50.0, 80.0, 100.0, 400.0]), min_size=1, max_size=9)


def falling(rows: list[list[float]]) -> torch.Tensor:
    """Return survivals: products of chances."""
    return torch.tensor(rows, dtype=torch.float64).cumprod(1)


def rates_of(rate: Rate | None) -> torch.Tensor:
    """Lay out rates by rows, as the device state does."""
    rows = np.arange(REQUESTS * (DRAFTS + 1) + 1)
    return torch.from_numpy(rows.astype(np.float64) if rate is None else rate(rows))


@settings(derandomize=True, max_examples=200, deadline=None)
@given(survivals, survivals, masks, rates, st.booleans())
def test_equals_the_host(
    now: list[list[float]],
    before: list[list[float]],
    mask: list[bool],
    steps: list[float],
    free: bool,  # noqa: FBT001 -- drawn
) -> None:
    """A dead request that took a draft, or counted as a row, would change what the others get."""
    rate = None if free else table_rate(range(1, len(steps) + 1), steps)
    alive, survival, earlier = torch.tensor(mask), falling(now), falling(before)
    wanted = host_grant(survival[alive].numpy(), rate)
    assert wanted.tolist() == grant(survival, alive, rates_of(rate))[alive].tolist()
    wanted = host_share(survival[alive].numpy(), best_total(earlier[alive].numpy(), rate))
    assert wanted.tolist() == share(survival, alive, rates_of(rate), earlier)[alive].tolist()


def test_what_is_no_probability_is_not_granted() -> None:
    """NaN, from a head that overflowed, stands behind all others."""
    survival = torch.tensor([[0.9, torch.nan, torch.nan], [0.8, 0.7, 0.6]])
    rate = rates_of(table_rate([64], [100.0]))
    assert [1, 3] == grant(survival, torch.tensor([True, True]), rate).tolist()


def test_nothing_waits_for_the_host() -> None:
    """On fake CUDA tensors, which hold no values to wait for."""
    with device_only():
        survival, alive = torch.empty(REQUESTS, DRAFTS), torch.empty(REQUESTS, dtype=torch.bool)
        steps = torch.empty(9, dtype=torch.float64)
        assert (
            (REQUESTS,)
            == grant(survival, alive, steps).shape
            == share(survival, alive, steps, survival).shape
        )
