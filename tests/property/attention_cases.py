"""Drawn inputs of paged attention in fixed shapes, poisoned wherever no live row may look, with the ragged answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fsm_spec.kernels.attention import attend, plan_attention
from fsm_spec.kernels.fixed.attention import pack_mask


@dataclass(frozen=True)
class Shape:
    """Hold what a case is drawn from; `live` rows of each request count, the others pad; `context` by request."""

    live: tuple[int, ...]
    context: tuple[int, ...]
    rows: int
    earlier: int
    """Block slots in front of the rows' own: those of an open block that earlier forwards wrote."""
    page_size: int
    kv_heads: int
    share: int
    head_dim: int
    kind: str
    """causal, bidirectional, groups, tree or random"""
    seed: int


@dataclass(frozen=True)
class Case:
    """Hold the arguments of `paged_attention`, and what its live rows should give."""

    query: Tensor
    cache: Tensor
    block_table: Tensor
    context: Tensor
    block_slots: Tensor
    mask: Tensor
    page_size: int
    expected: Tensor
    """[n, R, heads, head_dim], zeros on dead rows and on rows that see nothing"""
    live: Tensor
    """bool [n, R]"""

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int]:
        """Give the arguments in order."""
        return (
            self.query,
            self.cache,
            self.block_table,
            self.context,
            self.block_slots,
            self.mask,
            self.page_size,
        )


@st.composite
def shapes(draw: st.DrawFn, *, most_context: int = 40, most_rows: int = 9) -> Shape:
    """Draw small shapes, empty prefixes and padded requests among them."""
    requests = draw(st.integers(1, 3))
    rows = draw(st.integers(1, most_rows))
    return Shape(
        live=tuple(draw(st.integers(0, rows)) for _ in range(requests)),
        context=tuple(draw(st.integers(0, most_context)) for _ in range(requests)),
        rows=rows,
        earlier=draw(st.integers(0, 3)),
        page_size=draw(st.sampled_from([1, 4, 16])),
        kv_heads=draw(st.integers(1, 2)),
        share=draw(st.sampled_from([1, 3, 4])),
        head_dim=draw(st.sampled_from([16, 24])),
        kind=draw(st.sampled_from(["causal", "bidirectional", "groups", "tree", "random"])),
        seed=draw(st.integers(0, 2**16)),
    )


def block_mask(kind: str, rows: int, generator: torch.Generator) -> Tensor:
    """Draw what rows of a block see of one another, bool [rows, rows]."""
    if kind == "bidirectional":
        return torch.ones(rows, rows, dtype=torch.bool)
    if kind == "groups":
        group = torch.arange(rows) // 2
        return group[:, None] == group
    if kind == "tree":
        seen = torch.eye(rows, dtype=torch.bool)
        for node in range(1, rows):
            parent = int(torch.randint(node, (), generator=generator))
            seen[node] |= seen[parent]
        return seen
    if kind == "random":
        return torch.rand(rows, rows, generator=generator) < 0.4
    return torch.ones(rows, rows, dtype=torch.bool).tril()


def build(shape: Shape, dtype: torch.dtype = torch.float32) -> Case:
    """Lay a case out on scattered pages and slots; all that no live row sees holds NaN."""
    generator = torch.Generator().manual_seed(shape.seed)
    requests, block = len(shape.live), shape.earlier + shape.rows
    pages = [-(-length // shape.page_size) for length in shape.context]
    width = max(*pages, 1) + 1
    in_pages = (sum(pages) + 2) * shape.page_size
    total = in_pages + requests * block
    page_order = torch.randperm(sum(pages) + 2, generator=generator)
    slot_order = in_pages + torch.randperm(requests * block, generator=generator)
    # What stands behind a request's last page is left over from others, or nothing.
    table = torch.where(
        torch.rand(requests, width, generator=generator) < 0.5, -1, int(page_order[sum(pages)])
    ).to(torch.int32)
    block_slots = torch.full((requests, block), -1, dtype=torch.int32)
    mask = torch.rand(requests, shape.rows, block, generator=generator) < 0.5
    starts, slots, contexts, masks = [0], [], [], []
    for request, (live, length) in enumerate(zip(shape.live, shape.context, strict=True)):
        taken = page_order[sum(pages[:request]) : sum(pages[: request + 1])]
        table[request, : pages[request]] = taken
        in_order = (taken[:, None] * shape.page_size + torch.arange(shape.page_size)).reshape(-1)[:length]
        own = slot_order[request * block : (request + 1) * block][: shape.earlier + live]
        block_slots[request, : len(own)] = own
        line = torch.ones(live, shape.earlier + live, dtype=torch.bool)
        if shape.kind == "random":
            line[:, : shape.earlier] = torch.rand(live, shape.earlier, generator=generator) < 0.5
        line[:, shape.earlier :] = block_mask(shape.kind, live, generator)
        mask[request, :live, : len(own)] = line
        mask[request, :live, len(own) :] = False
        starts.append(starts[-1] + live)
        slots.append(own[shape.earlier :])
        contexts.append(torch.cat((in_order, own[: shape.earlier])))
        masks.append(line)
    heads = shape.kv_heads * shape.share
    cache = torch.full((total, 2, shape.kv_heads, shape.head_dim), torch.nan)
    looked_at = [torch.cat((prefix, own)) for prefix, own in zip(contexts, slots, strict=True)]
    for seen in looked_at:
        cache[seen] = torch.randn(len(seen), *cache.shape[1:], generator=generator)
    query = torch.randn(requests, shape.rows, heads, shape.head_dim, generator=generator)
    query = (query * shape.head_dim**-0.5).to(dtype)
    cache = cache.to(dtype)
    is_live = torch.arange(shape.rows) < torch.tensor(shape.live)[:, None]
    expected = torch.zeros(query.shape, dtype=torch.float64)
    if starts[-1]:
        groups = plan_attention(
            starts,
            torch.cat(slots),
            pad_sequence(contexts, batch_first=True),
            [len(context) for context in contexts],
            masks,
            shape.kv_heads,
            torch.float64,
        )
        found = attend(query[is_live].double(), cache.nan_to_num().double(), groups)
        sighted = torch.cat(
            [mask.any(1) | (length > 0) for mask, length in zip(masks, shape.context, strict=True)]
        )
        expected[is_live] = found.view(starts[-1], heads, shape.head_dim) * sighted[:, None, None]
    query[~is_live] = torch.nan
    return Case(
        query,
        cache,
        table,
        torch.tensor(shape.context, dtype=torch.int32),
        block_slots,
        pack_mask(mask),
        shape.page_size,
        expected,
        is_live,
    )
