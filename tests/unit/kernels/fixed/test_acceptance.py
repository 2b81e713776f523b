"""The accept operator in fixed shapes gives each request what the reading gives, whatever dead drafts hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dense_batches import Batch, batches
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.acceptance import ACCEPT_RULES, LOSSY_ACCEPT_RULES
from fsm_spec.kernels.acceptance import accept as reading
from fsm_spec.kernels.choose import CounterChooser
from fsm_spec.kernels.fixed.acceptance import accept

OPTIONS: dict[str, dict[str, Any]] = {"topk": {"top": 2}, "threshold": {"threshold": 0.2}}


@settings(derandomize=True, max_examples=200, deadline=None)
@given(batches, st.sampled_from([*ACCEPT_RULES, *LOSSY_ACCEPT_RULES]), st.booleans())
def test_equals_the_reading(batch: Batch, rule: str, with_q: bool) -> None:  # noqa: FBT001 -- drawn
    """Another verdict or correction would change the output law."""
    n, r, width = batch.logits.shape
    drafts, count = batch.tokens(n, r - 1), batch.rows - 1
    q = torch.rand(n, r - 1, width, generator=torch.Generator().manual_seed(1)).to(batch.logits.dtype)
    q /= q.sum(-1, keepdim=True)
    dead = ~batch.live[:, 1:]
    drafts[dead], q[dead] = batch.source.choice([-1, -2, width]), torch.nan
    options = {"q": q if with_q else None, "exclude": batch.exclude, **OPTIONS.get(rule, {})}
    accepted, token = accept(rule, batch.logits, drafts, count, batch.columns, batch.positions, **options)
    expected = reading(
        rule,
        batch.logits,
        drafts,
        count,
        batch.bounded,
        torch.tensor(batch.seeds),
        batch.positions,
        CounterChooser(),
        **options,
    )
    assert [one.tolist() for one in expected] == [accepted.tolist(), token.tolist()]


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        ("nearest", {}, "unknown accept rule 'nearest'"),
        ("topk", {"top": 0}, "top is 0"),
        ("threshold", {"threshold": 2}, "threshold is 2"),
    ],
)
def test_refusals(rule: str, options: dict[str, Any], message: str) -> None:
    """A rule without its number would judge by another one."""
    columns = tuple(torch.zeros(1) for _ in range(5))
    one = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        accept(rule, torch.zeros(1, 1, 2), one[:, 1:], one[:, 0], columns, one, **options)  # type: ignore[arg-type]
