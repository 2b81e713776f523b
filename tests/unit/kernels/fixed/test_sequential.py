"""The sample operator with a sequential head in fixed shapes drafts what the reading drafts."""

from __future__ import annotations

from typing import get_args

import torch
from dense_batches import Batch, batches
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.choose import CounterChooser
from fsm_spec.kernels.fixed.sequential import sample_sequential
from fsm_spec.kernels.sampling import Rule
from fsm_spec.kernels.sequential import sample_sequential as reading


@settings(derandomize=True, max_examples=50, deadline=None)
@given(batches, st.sampled_from(get_args(Rule)), st.booleans())
def test_equals_the_reading(batch: Batch, rule: Rule, want_law: bool) -> None:  # noqa: FBT001 -- drawn
    """Each draft is drawn under the bias of the one before it, by a number of its own step."""
    logits = batch.logits.nan_to_num(nan=1.0)
    head = torch.randn(logits.shape[2], logits.shape[2], generator=torch.Generator().manual_seed(3))
    seen: list[tuple[int, list[int]]] = []

    def bias(step: int, previous: torch.Tensor) -> torch.Tensor:
        seen.append((step, previous.tolist()))
        return head[previous] * step

    options = {"exclude": batch.exclude, "want_law": want_law}
    first = batch.tokens(len(logits))
    found = sample_sequential(logits, first, bias, batch.columns, batch.positions, rule, **options)  # type: ignore[arg-type]
    asked = seen.copy()
    seen.clear()
    expected = reading(
        logits,
        first,
        bias,
        batch.bounded,
        torch.tensor(batch.seeds),
        batch.positions,
        CounterChooser(),
        rule,
        **options,  # type: ignore[arg-type]
    )
    assert seen == asked
    assert expected[0].tolist() == found[0].tolist()
    if expected[1] is None or found[1] is None:
        assert expected[1] is found[1]
    else:
        assert torch.equal(expected[1], found[1])
