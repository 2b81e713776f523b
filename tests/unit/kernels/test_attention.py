"""Paged attention and the gated update, against readings that use neither pages nor groups."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from fsm_spec.kernels import attention
from fsm_spec.kernels.adapter import add_low_rank
from fsm_spec.kernels.attention import AttentionGroup, attend, plan_attention

HEADS, KV_HEADS, HEAD_DIM, SLOTS = 4, 2, 8, 64


def dense(query: torch.Tensor, cache: torch.Tensor, seen: list[list[int]]) -> torch.Tensor:
    """Attend row by row over the slots it sees, one head at a time."""
    out = torch.zeros_like(query)
    for row, slots in enumerate(seen):
        for head in range(HEADS):
            keys, values = cache[slots, :, head // (HEADS // KV_HEADS)].unbind(1)
            weights = torch.softmax(keys @ query[row, head], 0)
            out[row, head] = weights @ values
    return out.view(len(seen), -1)


def lay_out(
    rows: list[int], prefixes: list[int], *, scatter: bool, causal: bool = True
) -> tuple[list[int], torch.Tensor, list[torch.Tensor], list[torch.Tensor], list[list[int]]]:
    """Place requests on slots; returns the plan's arguments, and what each row sees."""
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(SLOTS, generator=generator) if scatter else torch.arange(SLOTS)
    starts, slots, contexts, masks = [0], [], [], []
    seen: list[list[int]] = []
    taken = 0
    for count, prefix in zip(rows, prefixes, strict=True):
        context = order[taken : taken + prefix]
        own = order[taken + prefix : taken + prefix + count]
        taken += prefix + count
        mask = torch.ones(count, count, dtype=torch.bool)
        mask = mask.tril() if causal else mask
        starts.append(starts[-1] + count)
        slots.append(own)
        contexts.append(context)
        masks.append(mask)
        seen.extend([*context.tolist(), *own[mask[row]].tolist()] for row in range(count))
    return starts, torch.cat(slots), contexts, masks, seen


def random_inputs(total: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw queries and a cache."""
    generator = torch.Generator().manual_seed(2)
    query = torch.randn(total, HEADS, HEAD_DIM, generator=generator, dtype=torch.float64)
    cache = torch.randn(SLOTS, 2, KV_HEADS, HEAD_DIM, generator=generator, dtype=torch.float64)
    return query, cache


def planned(
    starts: list[int], slots: torch.Tensor, contexts: list[torch.Tensor], masks: list[torch.Tensor]
) -> list[AttentionGroup]:
    """Plan with prefixes side by side; behind the shorter ones stands a slot that must not be seen."""
    beside = pad_sequence(contexts, batch_first=True, padding_value=SLOTS - 1)
    lengths = [len(context) for context in contexts]
    return plan_attention(starts, slots, beside, lengths, masks, KV_HEADS, torch.float64)


@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize(
    ("rows", "prefixes"),
    [
        ([1], [9]),
        ([3], [0]),
        ([2, 2], [5, 1]),
        ([1, 3, 1], [4, 0, 7]),
        ([2, 0, 2], [3, 1, 3]),
        ([5, 5], [6, 6]),
    ],
)
def test_attention_equals_dense_reading(rows: list[int], prefixes: list[int], *, scatter: bool) -> None:
    """A wrong group, padding, page order or head order would show in some row."""
    starts, slots, contexts, masks, seen = lay_out(rows, prefixes, scatter=scatter)
    query, cache = random_inputs(len(slots))
    groups = planned(starts, slots, contexts, masks)
    assert len({count for count in rows if count}) == len(groups)
    torch.testing.assert_close(attend(query, cache, groups), dense(query, cache, seen), atol=1e-12, rtol=0)


def test_bidirectional_block_needs_no_bias() -> None:
    """A block whose rows all see each other runs without masks."""
    starts, slots, contexts, masks, seen = lay_out([4], [5], scatter=False, causal=False)
    query, cache = random_inputs(4)
    groups = planned(starts, slots, contexts, masks)
    assert groups[0].bias is None
    assert groups[0].span == slice(0, 9)
    torch.testing.assert_close(attend(query, cache, groups), dense(query, cache, seen), atol=1e-12, rtol=0)


def test_long_blocks_run_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of query rows give what the whole block gives."""
    monkeypatch.setattr(attention, "SCORE_LIMIT", 100)
    starts, slots, contexts, masks, seen = lay_out([7], [5], scatter=True)
    query, cache = random_inputs(7)
    groups = planned(starts, slots, contexts, masks)
    torch.testing.assert_close(attend(query, cache, groups), dense(query, cache, seen), atol=1e-12, rtol=0)


@pytest.mark.parametrize("scatter", [False, True])
def test_wide_mask_speaks_of_the_context(*, scatter: bool) -> None:
    """Nodes of a tree see those of their ancestors that earlier forwards have left in the last context slots."""
    starts, slots, contexts, _, _ = lay_out([2, 2], [5, 7], scatter=scatter)
    masks = [torch.tensor([[1, 0, 1, 1, 0], [0, 1, 0, 0, 1]]).bool(), torch.eye(2).bool()]
    seen = [
        [*context[: len(context) + 2 - mask.shape[1]].tolist(), *last[mask[row]].tolist()]
        for context, mask, own in zip(contexts, masks, (slots[:2], slots[2:]), strict=True)
        for last in [torch.cat((context, own))[-mask.shape[1] :]]
        for row in range(2)
    ]
    query, cache = random_inputs(4)
    groups = planned(starts, slots, contexts, masks)
    torch.testing.assert_close(attend(query, cache, groups), dense(query, cache, seen), atol=1e-12, rtol=0)


def test_row_that_sees_nothing_stays_finite() -> None:
    """A dead row must not write NaN, which a later mask could not hide."""
    starts, slots, contexts, masks, _ = lay_out([2], [0], scatter=False)
    query, cache = random_inputs(2)
    groups = planned(starts, slots, contexts, [torch.zeros_like(masks[0])])
    assert bool(attend(query, cache, groups).isfinite().all())


def test_no_rows_give_no_output() -> None:
    """A launch whose requests are all out of rows is legal."""
    groups = planned([0, 0], torch.arange(0), [torch.arange(3)], [torch.ones(0, 0).bool()])
    query, cache = random_inputs(0)
    assert attend(query, cache, groups).shape == (0, HEADS * HEAD_DIM)


def test_mask_of_another_size_is_refused() -> None:
    """A mask of another block would silently hide or show the wrong rows."""
    with pytest.raises(ValueError, match="mask 0 has shape"):
        planned([0, 2], torch.arange(2), [torch.arange(0)], [torch.ones(1, 1).bool()])


def test_update_touches_gated_rows_only() -> None:
    """Rows without the gate equal base weights bit for bit."""
    rows_in, out = torch.randn(5, 6), torch.randn(5, 7)
    down, up = torch.randn(2, 6), torch.randn(7, 2)
    got = add_low_rank(out.clone(), rows_in, torch.tensor([1, 4]), down, up)
    assert torch.equal(got[[0, 2, 3]], out[[0, 2, 3]])
    torch.testing.assert_close(got[[1, 4]], out[[1, 4]] + rows_in[[1, 4]] @ down.T @ up.T)
