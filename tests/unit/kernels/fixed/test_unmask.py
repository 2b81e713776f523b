"""The unmask operator in fixed shapes gives each request what the reading gives."""

from __future__ import annotations

import pytest
import torch
from dense_batches import Batch, batches, drawn_block
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.choose import CounterChooser
from fsm_spec.kernels.fixed.unmask import unmask
from fsm_spec.kernels.unmask import UNMASK_RULES
from fsm_spec.kernels.unmask import unmask as reading


@settings(derandomize=True, max_examples=150, deadline=None)
@given(batches, st.sampled_from(UNMASK_RULES), st.booleans())
def test_equals_the_reading(batch: Batch, rule: str, freezes: bool) -> None:  # noqa: FBT001 -- drawn
    """Another row committed, or another token, would change what a diffusion block becomes."""
    tokens, options = drawn_block(batch)
    turns = torch.tensor([batch.source.randrange(9) for _ in batch.params])
    stops = [[], [1], [0, 3]]
    each = [batch.source.choice(stops) for _ in batch.params]
    padded = torch.tensor([ids + [-1] * (2 - len(ids)) for ids in each])
    rest, filled = unmask(
        rule,
        batch.logits,
        tokens,
        batch.rows,
        batch.columns,
        batch.positions,
        turns,
        stop_ids=padded if freezes else None,
        **options,
    )
    expected = reading(
        rule,
        batch.logits,
        tokens,
        batch.rows,
        batch.bounded,
        torch.tensor(batch.seeds),
        batch.positions,
        turns,
        CounterChooser(),
        stop_ids=each if freezes else None,
        **options,
    )
    assert [one.tolist() for one in expected] == [rest.tolist(), filled.tolist()]


@pytest.mark.parametrize(
    ("rule", "message"),
    [("surest", "unknown unmask rule"), ("schedule", "the unmask rule schedule needs quota")],
)
def test_refusals(rule: str, message: str) -> None:
    """A rule without its number would commit by another one."""
    columns = tuple(torch.zeros(1) for _ in range(5))
    one = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        unmask(rule, torch.zeros(1, 1, 2), one, one[0], columns, one, one[0])  # type: ignore[arg-type]
