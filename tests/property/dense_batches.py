"""Drawn batches for kernels over logits: padded, with ties, dead rows of poison and parameters of every kind."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.law import SamplingParams, SamplingRows
from fsm_spec.kernels.tree import NO_NODE, Tree
from fsm_spec.kernels.unmask import MASKED

CHOICES = [
    SamplingParams(),
    SamplingParams(1.0),
    SamplingParams(0.6, 3),
    SamplingParams(1.2, 0, 0.8),
    SamplingParams(1.0, 0, 1.0, 0.2),
    SamplingParams(0.9, 5, 0.7, 0.05),
    SamplingParams(1.0, 1000),
]


@dataclass(frozen=True)
class Batch:
    """Hold logits [n, r, V] of n requests with `rows` live rows each; what lies past them is poison."""

    logits: Tensor
    rows: Tensor  # int64 [n], 1..r
    params: list[SamplingParams]
    seeds: list[int]
    positions: Tensor  # int64 [n, r]
    source: random.Random
    exclude: int | None

    @property
    def columns(self) -> SamplingColumns:
        """Return the parameters as the fixed forms take them."""
        return SamplingColumns.of(self.params, self.seeds)

    @property
    def bounded(self) -> SamplingRows:
        """Return the parameters as the readings take them."""
        return SamplingRows.of(self.params)

    @property
    def live(self) -> Tensor:
        """Tell which rows are live, bool [n, r]."""
        return torch.arange(self.logits.shape[1]) < self.rows.unsqueeze(1)

    def tokens(self, *shape: int) -> Tensor:
        """Draw token ids of a shape; few, so that they are often right."""
        width = min(self.logits.shape[2], 6)
        drawn = [self.source.randrange(width) for _ in range(torch.Size(shape).numel())]
        return torch.tensor(drawn, dtype=torch.int64).view(shape)

    def trees(self) -> Tree:
        """Draw a tree for each request with as many nodes as it has live rows, siblings of one token included.

        What stands behind them is poison.
        """
        n, v, width = self.logits.shape
        trees = Tree.rooted(self.tokens(n), v)
        for request, live in enumerate(self.rows.tolist()):
            for node in range(1, live):
                parent = self.source.randrange(node)
                trees.parents[request, node] = parent
                trees.depths[request, node] = trees.depths[request, parent] + 1
                trees.tokens[request, node] = self.source.randrange(min(width, 4))
            trees.parents[request, live:] = self.source.choice([NO_NODE, 0, v])
            trees.tokens[request, live:] = self.source.choice([NO_NODE, 0, width])
            trees.depths[request, live:] = self.source.choice([0, -1, v])
        return Tree(trees.tokens, trees.parents, trees.depths, trees.scores, self.rows)


def batch_of(seed: int, n: int, r: int, width: int, *, wide: bool = False) -> Batch:
    """Make a batch; logits are coarse, so that ties are common, and the first tokens the likelier ones."""
    source = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, r, width, generator=generator) * 2
    logits[..., : min(6, width)] += 3
    if source.random() < 0.5:
        logits = (logits * 2).round() / 2
    logits = logits.to(torch.float64 if wide else torch.float32)
    rows = torch.tensor([source.randrange(1, r + 1) for _ in range(n)])
    logits[torch.arange(r) >= rows.unsqueeze(1)] = torch.nan
    every = [SamplingParams()] if source.random() < 0.2 else CHOICES
    return Batch(
        logits=logits,
        rows=rows,
        params=[source.choice(every) for _ in range(n)],
        seeds=[source.randrange(-(2**40), 2**40) for _ in range(n)],
        positions=torch.randint(0, 10_000, (n, 1), generator=generator) + torch.arange(r),
        source=source,
        exclude=source.choice([None, 0, width - 1]),
    )


batches = st.builds(
    batch_of,
    st.integers(0, 2**32),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([2, 5, 11, 256, 257, 600]),
    wide=st.booleans(),
)

# For Triton's interpreter, where a row with top-k or top-p takes a tenth of a second.
cheap_batches = st.builds(
    lambda seed, width, dtype: as_type(batch_of(seed, 2, 3, width), dtype),
    st.integers(0, 2**32),
    st.sampled_from([5, 20]),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
)


def as_type(batch: Batch, dtype: torch.dtype) -> Batch:
    """Return the batch with logits of a type."""
    return replace(batch, logits=batch.logits.to(dtype))


def drawn_block(batch: Batch) -> tuple[torch.Tensor, dict[str, Any]]:
    """Draw the tokens of a block, some of them masked, and the numbers of all rules."""
    n, r, _ = batch.logits.shape
    source = batch.source
    tokens = batch.tokens(n, r)
    tokens[torch.tensor([[source.random() < 0.7 for _ in range(r)] for _ in range(n)])] = MASKED
    tokens[~batch.live] = source.choice([MASKED, -1, 0])
    options = {
        "threshold": source.choice([0.0, 0.2, 0.5, 1.0]),
        "quota": torch.tensor([source.randrange(4) for _ in range(n)]),
        "bound": source.choice([0.0, 1.5, 9.0]),
        "last": source.choice([None, torch.tensor([source.random() < 0.3 for _ in range(n)])]),
        "first": source.choice([None, torch.tensor([source.randrange(3) for _ in range(n)])]),
        "exclude": batch.exclude,
    }
    return tokens, options
