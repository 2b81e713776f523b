"""Attention of a block of rows over a paged prefix and the block itself, in fixed shapes: the op `paged_attention`.

The ragged reading is `kernels/attention.py`, the kernel `kernels/triton/attention.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fsm_spec.kernels.attention import HIDDEN

WORD_BITS = 32


def pack_mask(mask: Tensor) -> Tensor:
    """Pack a bool mask [..., M] into int32 words [..., ceil(M / 32)]; bit j % 32 of word j // 32 is entry j."""
    words = -(-mask.shape[-1] // WORD_BITS)
    padded = torch.nn.functional.pad(mask.long(), (0, words * WORD_BITS - mask.shape[-1]))
    bits = torch.arange(WORD_BITS, device=mask.device)
    # Bit 31 is the sign: the sum is taken in 64 bits, and the low half of it kept.
    packed: Tensor = (padded.unflatten(-1, (words, WORD_BITS)) << bits).sum(-1)
    return packed.to(torch.int32)


def unpack_mask(words: Tensor, width: int) -> Tensor:
    """Return the bool mask [..., width] of words [..., ceil(width / 32)]."""
    bits = torch.arange(WORD_BITS, device=words.device, dtype=torch.int32)
    return ((words.unsqueeze(-1) >> bits) & 1).bool().flatten(-2)[..., :width]


@torch.library.custom_op("fsm_spec::paged_attention", mutates_args=(), device_types="cpu")
def paged_attention(
    query: Tensor,
    cache: Tensor,
    block_table: Tensor,
    context: Tensor,
    block_slots: Tensor,
    mask: Tensor,
    page_size: int,
) -> Tensor:
    """Attend the rows of n requests over their prefix and, by mask bits, over their block -> [n, R, heads, head_dim].

    query [n, R, heads, head_dim], turned and scaled; cache [slots, 2, kv_heads, head_dim]; block_table int32 [n, P],
    page numbers; context int32 [n], the slots of the prefix; block_slots int32 [n, M], slots of the cache in which
    the block's K and V are written, negative where there is none; mask int32 [n or 1, R, ceil(M / 32)], packed.
    Every row of a request sees slots 0 to context - 1 of its pages, and block slot j where bit j of its line is set.
    A row that sees nothing gives zeros. What no row of a request sees may hold anything, NaN too.
    """
    # Here the host may look at lengths: pages behind every prefix are not read.
    pages = max(1, -(-int(context.max()) // page_size)) if len(context) else 1
    return paged_attention_fixed(query, cache, block_table[:, :pages], context, block_slots, mask, page_size)


@paged_attention.register_kernel("cuda")
def _(
    query: Tensor,
    cache: Tensor,
    block_table: Tensor,
    context: Tensor,
    block_slots: Tensor,
    mask: Tensor,
    page_size: int,
) -> Tensor:
    from fsm_spec.kernels.triton import attention  # noqa: PLC0415 -- a CPU needs no Triton

    return attention.paged_attention(query, cache, block_table, context, block_slots, mask, page_size)


@paged_attention.register_fake
def _(
    query: Tensor,
    cache: Tensor,  # noqa: ARG001 -- the op's signature
    block_table: Tensor,  # noqa: ARG001
    context: Tensor,  # noqa: ARG001
    block_slots: Tensor,  # noqa: ARG001
    mask: Tensor,  # noqa: ARG001
    page_size: int,  # noqa: ARG001
) -> Tensor:
    return torch.empty(query.shape, dtype=query.dtype, device=query.device)


def paged_attention_fixed(
    query: Tensor,
    cache: Tensor,
    block_table: Tensor,
    context: Tensor,
    block_slots: Tensor,
    mask: Tensor,
    page_size: int,
) -> Tensor:
    """Compute `paged_attention` in torch: all slots of all pages are read, scores in float32 or float64."""
    requests, rows, heads, head_dim = query.shape
    kv_heads, block = cache.shape[2], block_slots.shape[1]
    wide = torch.promote_types(torch.promote_types(query.dtype, cache.dtype), torch.float32)
    offsets = torch.arange(page_size, dtype=torch.int32, device=query.device)
    prefix = (block_table.unsqueeze(2) * page_size + offsets).flatten(1)
    numbers = torch.arange(prefix.shape[1], dtype=torch.int32, device=query.device)
    in_prefix = (numbers < context.unsqueeze(1)).unsqueeze(1).expand(-1, rows, -1)
    in_block = unpack_mask(mask, block) & (block_slots >= 0).unsqueeze(1)
    seen = torch.cat((in_prefix, in_block.expand(requests, -1, -1)), 2)
    slots = torch.cat((prefix, block_slots), 1).clamp(min=0)
    read = cache.index_select(0, slots.flatten()).to(wide).unflatten(0, slots.shape)
    # Weight 0 times NaN is NaN, so what no row sees is cleared.
    read = torch.where(seen.any(1)[:, :, None, None, None], read, 0)
    keys, values = read.permute(2, 0, 3, 1, 4).unbind(0)
    # Heads that share K and V are lines of one product: as a dimension of their own they would be copied for each.
    lines = query.to(wide).unflatten(2, (kv_heads, heads // kv_heads)).permute(0, 2, 3, 1, 4)
    scores = torch.matmul(lines.flatten(2, 3), keys.transpose(2, 3)).unflatten(2, lines.shape[2:4])
    scores.add_(torch.where(seen, 0, HIDDEN).to(wide)[:, None, None])
    out = torch.matmul(scores.softmax(-1).flatten(2, 3), values).unflatten(2, lines.shape[2:4])
    # A hidden slot weighs exp(HIDDEN), which is 0, but where a row sees none.
    out = out.masked_fill(~seen.any(2)[:, None, None, :, None], 0)
    result: Tensor = out.permute(0, 3, 1, 2, 4).reshape(requests, rows, heads, head_dim).to(query.dtype)
    return result.contiguous()
