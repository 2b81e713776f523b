"""Attention of a block of rows over a paged prefix and, through a mask, over the block itself, in plain torch.

`plan_attention` does once per forward what does not depend on the layer: which requests run together, which
slots they read, and the bias that hides slots from rows.
`attend` then runs once per layer, and has to be short: at one row per request its launches cost more than its work.

Requests with equal row counts share one padded call.
A request alone whose slots are consecutive reads the cache in place; all others gather.
Scores are explicit matmuls and a softmax, not the fused operator of torch: measured on two cores in float32 with
3 KV heads of 64 and 1,024 slots, one query row takes 50 us against 102 us, and 8 rows 150 us against 200 us;
in bfloat16 both are slower than in float32, so a bfloat16 model does well to keep a float32 cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

# Finite, so that a row that sees nothing gives a mean instead of NaN; exp(HIDDEN - max) is exactly 0 in any dtype.
HIDDEN = -1e30
# Above this many scores (64 MB in float32) the query rows are worked off in pieces.
SCORE_LIMIT = 1 << 24


@dataclass(frozen=True)
class AttentionGroup:
    """Hold one padded call: `requests` requests of `rows` rows each, over `width` slots."""

    requests: int
    rows: int
    width: int
    query_rows: slice | torch.Tensor
    """Where the requests * rows query rows lie among all rows."""
    span: slice | None
    """The consecutive slots of a lone request, read in place."""
    gather: torch.Tensor | None
    """[2 * requests * kv_heads * width] int64 rows of the cache seen as [slots * 2 * kv_heads, head_dim]."""
    bias: torch.Tensor | None
    """[requests, 1, rows, 1, width], 0 or HIDDEN; None hides nothing."""


def plan_attention(
    row_start: Sequence[int],
    slots: torch.Tensor,
    context_slots: torch.Tensor,
    context: Sequence[int],
    masks: Sequence[torch.Tensor],
    kv_heads: int,
    dtype: torch.dtype,
) -> list[AttentionGroup]:
    """Group requests by row count, and compute slots, padding and bias of each group once for all layers.

    `slots` is [T] int64; request b sees the first `context[b]` of `context_slots[b]`, [B, C] int64 (behind them stand
    any slots), and `masks[b]`, bool [R_b, M_b], speaks of the last M_b slots of context and block, M_b >= R_b.
    Requests without rows are left out; `dtype` is that of the scores.
    Raises ValueError where a mask does not fit its rows.
    """
    groups: dict[int, list[int]] = {}
    for request, (start, stop) in enumerate(pairwise(row_start)):
        rows = stop - start
        lines, seen = masks[request].shape
        if lines != rows or not rows <= seen <= context[request] + rows:
            raise ValueError(f"mask {request} has shape {(lines, seen)}, its block has {rows} rows")
        if rows:
            groups.setdefault(rows, []).append(request)
    return [
        _plan_group(
            rows,
            [row_start[member] for member in members],
            slots,
            context_slots if len(members) == len(context) else context_slots[members],
            [context[member] for member in members],
            [masks[member] for member in members],
            kv_heads,
            dtype,
        )
        for rows, members in groups.items()
    ]


def _plan_group(
    rows: int,
    starts: list[int],
    slots: torch.Tensor,
    context_slots: torch.Tensor,
    context: list[int],
    masks: list[torch.Tensor],
    kv_heads: int,
    dtype: torch.dtype,
) -> AttentionGroup:
    """Lay out one group; the block's own rows stand right behind each request's prefix."""
    members, before = len(starts), torch.tensor(context)
    width = max(context) + rows
    query_rows: slice | torch.Tensor = slice(starts[0], starts[0] + rows * members)
    if not all(later - start == rows for start, later in pairwise(starts)):
        query_rows = (torch.tensor(starts)[:, None] + torch.arange(rows)).reshape(-1)
    seen = torch.zeros(members, width, dtype=torch.int64)
    kept = min(width, context_slots.shape[1])
    seen[:, :kept] = context_slots[:, :kept]
    seen.scatter_(1, before[:, None] + torch.arange(rows), slots[query_rows].view(members, rows))
    bias = _bias(rows, before + rows, width, masks, dtype)
    span = _span(seen[0]) if members == 1 else None
    gather = None if span is not None else _gather(seen, kv_heads)
    return AttentionGroup(members, rows, width, query_rows, span, gather, bias)


def _bias(
    rows: int, lengths: torch.Tensor, width: int, masks: Sequence[torch.Tensor], dtype: torch.dtype
) -> torch.Tensor | None:
    """Turn in-block masks and padding into an additive bias, or None where all rows see all slots."""
    # Requests of equal counts share one mask, so few are looked at.
    shared: dict[int, list[int]] = {}
    for member, mask in enumerate(masks):
        shared.setdefault(id(mask), []).append(member)
    hiding = [members for members in shared.values() if not bool(masks[members[0]].all())]
    padded = torch.arange(width) >= lengths[:, None]
    if not hiding and not bool(padded.any()):
        return None
    bias = torch.zeros(len(masks), rows, width, dtype=dtype)
    bias.masked_fill_(padded[:, None], HIDDEN)
    for members in hiding:
        mask = masks[members[0]]
        last = lengths[members, None] + torch.arange(-mask.shape[1], 0)
        hidden = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, HIDDEN)
        bias[torch.tensor(members)[:, None, None], torch.arange(rows)[:, None], last[:, None]] = hidden
    return bias[:, None, :, None]


def _span(seen: torch.Tensor) -> slice | None:
    """Name the slice that equals the slots, if they are consecutive."""
    first = int(seen[0])
    if int(seen[-1]) - first + 1 != len(seen):
        return None
    if not bool((seen[1:] - seen[:-1] == 1).all()):
        return None
    return slice(first, first + len(seen))


def _gather(seen: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Index K and V of all requests, head-major, so that the gathered block needs no further copy."""
    lanes = torch.arange(2 * kv_heads).view(2, 1, kv_heads, 1)
    return (seen[None, :, None, :] * (2 * kv_heads) + lanes).reshape(-1)


def attend(query: torch.Tensor, cache: torch.Tensor, groups: Sequence[AttentionGroup]) -> torch.Tensor:
    """Attend every row of the plan over its slots of one layer's cache.

    `query` is [T, heads, head_dim], already turned and scaled by 1 / sqrt(head_dim); `cache` is
    [slots, 2, kv_heads, head_dim] (K at 0, V at 1), in which the block's own K and V are already written.
    Query heads share KV heads in consecutive runs (grouped-query attention, arXiv:2305.13245 section 2.2).
    Returns [T, heads * head_dim].
    """
    total, heads, head_dim = query.shape
    if len(groups) == 1 and groups[0].requests * groups[0].rows == total:
        return _attend_group(query, cache, groups[0]).view(total, heads * head_dim)
    out = query.new_zeros(total, heads * head_dim)
    for group in groups:
        block = _attend_group(query[group.query_rows], cache, group)
        out[group.query_rows] = block.view(-1, heads * head_dim)
    return out


def _attend_group(query: torch.Tensor, cache: torch.Tensor, group: AttentionGroup) -> torch.Tensor:
    """Attend one group; returns [requests, rows, kv_heads, heads per KV head, head_dim] contiguous."""
    kv_heads, head_dim = cache.shape[2], cache.shape[3]
    share = query.shape[1] // kv_heads
    batch = group.requests * kv_heads
    lines = query.reshape(group.requests, group.rows, kv_heads, share, head_dim).transpose(1, 2)
    lines = lines.reshape(batch, group.rows * share, head_dim)
    if group.span is not None:
        block = cache[group.span]
        keys, values = block[:, 0].permute(1, 2, 0), block[:, 1].transpose(0, 1)
    else:
        assert group.gather is not None  # the plan fills one of the two
        rows = cache.view(-1, head_dim).index_select(0, group.gather)
        key_rows, values = rows.view(2, batch, group.width, head_dim)
        keys = key_rows.transpose(1, 2)
    piece = max(1, SCORE_LIMIT // (batch * share * group.width))
    if piece >= group.rows:
        out = torch.bmm(_weights(lines, keys, group, 0, group.rows), values)
    else:
        pieces = [
            torch.bmm(_weights(lines[:, a * share : (a + piece) * share], keys, group, a, a + piece), values)
            for a in range(0, group.rows, piece)
        ]
        out = torch.cat(pieces, 1)
    out = out.view(group.requests, kv_heads, group.rows, share, head_dim)
    return out.transpose(1, 2).contiguous()


def _weights(
    lines: torch.Tensor, keys: torch.Tensor, group: AttentionGroup, start: int, stop: int
) -> torch.Tensor:
    """Score the query rows start:stop against all slots and normalise."""
    scores = torch.bmm(lines, keys)
    if group.bias is not None:
        bias = group.bias[:, :, start:stop]
        scores.view(group.requests, -1, bias.shape[2], lines.shape[1] // bias.shape[2], group.width).add_(
            bias
        )
    return torch.softmax(scores, -1)
