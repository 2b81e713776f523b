"""The sample operator in fixed shapes gives each live row what the reading gives."""

from __future__ import annotations

from typing import get_args

import torch
from dense_batches import Batch, batches
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.choose import CounterChooser
from fsm_spec.kernels.fixed.sampling import sample
from fsm_spec.kernels.randomness import Purpose
from fsm_spec.kernels.sampling import Rule
from fsm_spec.kernels.sampling import sample as reading


@settings(derandomize=True, max_examples=80, deadline=None)
@given(batches, st.sampled_from(get_args(Rule)), st.booleans())
def test_equals_the_reading(batch: Batch, rule: Rule, want_law: bool) -> None:  # noqa: FBT001 -- drawn
    """Another token or law for one row would make a spec's output depend on where it runs."""
    tokens, laws = sample(
        batch.logits,
        batch.columns,
        batch.positions,
        Purpose.DRAFT,
        rule,
        exclude=batch.exclude,
        want_law=want_law,
    )
    request, row = batch.live.nonzero(as_tuple=True)
    expected, law = reading(
        batch.logits[request, row],
        batch.bounded.take(request),
        torch.tensor(batch.seeds)[request],
        batch.positions[request, row],
        Purpose.DRAFT,
        CounterChooser(),
        rule,
        exclude=batch.exclude,
        want_law=want_law,
    )
    assert expected.tolist() == tokens[request, row].tolist()
    assert (law is None) == (laws is None)
    if law is not None and laws is not None:
        assert torch.equal(law, laws[request, row])
