"""The `grow` and `prune` operators: token trees of drafts, grown over marginals at once or level by level.

The same in plain Python is `tree_plain.py`; walking a tree with the target's verdicts is `walk.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fsm_spec.kernels.law import SamplingRows, as_real, best_tokens

# The parent of a root; token and parent of a node that is not there.
NO_NODE = -1


@dataclass(frozen=True)
class Tree:
    """Hold a tree of up to v nodes for each of n requests; node 0 is the root, parents stand before children.

    A score is the log-probability of the path from the root. Nodes from `count` on are not there.
    """

    tokens: Tensor  # int64 [n, v]
    parents: Tensor  # int64 [n, v], index of the parent
    depths: Tensor  # int64 [n, v], edges from the root
    scores: Tensor  # float32 (float64 for float64 logits) [n, v]
    count: Tensor  # int64 [n]

    def take(self, request: int) -> Tree:
        """Return the tree of one request."""
        one = slice(request, request + 1)
        return Tree(self.tokens[one], self.parents[one], self.depths[one], self.scores[one], self.count[one])

    @classmethod
    def join(cls, trees: Sequence[Tree]) -> Tree:
        """Put trees of the same capacity together."""
        return cls(
            *(
                torch.cat([getattr(tree, name) for tree in trees])
                for name in ("tokens", "parents", "depths", "scores", "count")
            )
        )

    @classmethod
    def rooted(cls, root: Tensor, capacity: int, dtype: torch.dtype = torch.float32) -> Tree:
        """Return trees of the root alone with room for `capacity` nodes; `root` is its token, int64 [n]."""
        tokens = torch.full((len(root), capacity), NO_NODE, dtype=torch.int64, device=root.device)
        scores = torch.full(tokens.shape, -torch.inf, dtype=dtype, device=root.device)
        parents, depths = tokens.clone(), torch.zeros_like(tokens)
        tokens[:, 0], scores[:, 0] = root, 0.0
        return cls(tokens, parents, depths, scores, torch.ones_like(root))


# Appends the best children of a beam to pools: what `extend` does.
Append = Callable[[Tree, Tensor, Tensor, Tensor, int], tuple[Tree, Tensor]]


def grow_best(
    logits: Tensor, root: Tensor, rows: SamplingRows, top: int, size: int, *, exclude: int | None = None
) -> Tree:
    """Grow the tree of the `size` most probable nodes over marginals, best first; every tree is full.

    logits [n, d, V]: row i gives the candidates of depth i + 1, its `top` best tokens, the same below every
    parent; root int64 [n]. Log-probabilities are over all tokens at the request's temperature (1 if greedy);
    `exclude` is no candidate. Ties go to the shallower node, the lower rank among the candidates (which is the
    lower token), the lower parent. Raises ValueError where so many candidates or nodes do not exist.

    Source: Uno's tree sampler, which adds the best unused edge, one at a time. As no child is more probable than
    its parent, those are the best nodes of all, and of one depth only the best `size - 1` can be among them.
    """
    require_nodes(logits.shape[1], top, size)
    tokens, chances = _candidates(logits, rows, top, exclude)
    return best_tree(root, tokens, chances, size, extend)


def require_nodes(levels: int, top: int, size: int) -> None:
    """Raise ValueError where a tree of `levels` with `top` candidates a node has no `size` nodes."""
    if not 1 <= size <= sum(top**depth for depth in range(levels + 1)):
        raise ValueError(f"a tree of depth {levels} with {top} candidates a node has no {size} nodes")


def best_tree(root: Tensor, tokens: Tensor, chances: Tensor, size: int, append: Append) -> Tree:
    """Grow `grow_best`'s tree over candidates and their log-probabilities [n, d, top] each, best first.

    `append` is `extend` or a kernel for it. Of fixed shape, without a copy to the host.
    """
    _, levels, top = tokens.shape
    widths = [1]
    for _ in range(levels):
        widths.append(min(size - 1, widths[-1] * top))
    pool = Tree.rooted(root, sum(widths), chances.dtype)
    beam = torch.zeros_like(root).unsqueeze(1)
    for level in range(levels):
        one = slice(level, level + 1)
        pool, beam = append(pool, beam, tokens[:, one], chances[:, one], widths[level + 1])
    # The pool is in order within each depth, so a stable sort leaves ties as they should stand.
    best = pool.scores.sort(dim=1, stable=True, descending=True).indices
    return _chosen(pool, best[:, :size])


def grow_level(
    logits: Tensor,
    pool: Tree,
    beam: Tensor,
    rows: SamplingRows,
    top: int,
    *,
    added: int | None = None,
    exclude: int | None = None,
) -> tuple[Tree, Tensor]:
    """Add the best children of the beam's nodes to the pool -> (pool, next beam int64 [n, top]).

    logits [n, b, V]: row i gives the children of node `beam[i]` (int64 [n, b]). Of the b * top candidates, the
    best `added` by score enter the pool, best first (`top` of them if not given; the reference adds all), and the
    best `top` are the next beam. Ties go to the lower rank, then to the earlier parent; log-probabilities are as
    in `grow_best`. Raises ValueError where the pool or the vocabulary has no room.

    Source: EAGLE-2 and EAGLE-3, the expansion of their dynamic draft tree.
    """
    tokens, chances = _candidates(logits, rows, top, exclude)
    added = top if added is None else added
    if added < top:
        raise ValueError(f"{added} nodes a level leave no beam of {top}; give at least {top}")
    width = min(added, beam.shape[1] * top)
    if int(pool.count.max()) + width > pool.tokens.shape[1]:
        raise ValueError(f"the pool has no room for {width} more nodes; it holds {pool.tokens.shape[1]}")
    pool, children = extend(pool, beam, tokens, chances, width)
    return pool, children[:, :top]


def grow_newest(
    logits: Tensor,
    pool: Tree,
    rows: SamplingRows,
    top: int,
    *,
    exclude: int | None = None,
) -> tuple[Tree, Tensor]:
    """Add the `top` best children of the pool's newest level -> (pool, the rows they hang on, int64 [n, top]).

    logits [n, b, V]: row i stands for the i-th of the b newest nodes, which are one level, or the root alone.
    As `grow_level` with `added` = `top`, where the beam is what was added last.
    """
    beam = newest(pool, logits.shape[1])
    grown, children = grow_level(logits, pool, beam, rows, top, exclude=exclude)
    return grown, grown.parents.gather(1, children) - beam[:, :1]


def newest(pool: Tree, width: int) -> Tensor:
    """Return the last `width` nodes of each pool, int64 [n, width]."""
    return pool.count.unsqueeze(1) - width + torch.arange(width, device=pool.count.device)


def prune(pool: Tree, size: int) -> Tree:
    """Keep the `size` best nodes by score, the lower index on ties, in the order of the pool.

    A parent is never worse than its child and stands before it, so what is kept is a tree. A pool of fewer nodes
    is kept whole. Raises ValueError unless 1 <= size <= the pool's room.
    """
    capacity = pool.tokens.shape[1]
    if not 1 <= size <= capacity:
        raise ValueError(f"{size} nodes are to be kept of {capacity}; give a number from 1 to {capacity}")
    best = pool.scores.sort(dim=1, stable=True, descending=True).indices
    return _chosen(pool, best[:, :size].sort(dim=1).values)


def _candidates(logits: Tensor, rows: SamplingRows, top: int, exclude: int | None) -> tuple[Tensor, Tensor]:
    """Return the best tokens of logits [n, r, V] and their log-probabilities, [n, r, top] each."""
    batch, depth, _ = logits.shape
    scores = as_real(logits)
    temperature = torch.where(rows.temperature == 0, 1.0, rows.temperature).to(scores.dtype)
    scores = (scores / temperature.view(batch, 1, 1)).flatten(0, 1)
    values, tokens = best_tokens(scores, top, exclude)
    # No probability is above 1, whatever the rounding: a child never passes its parent.
    chances = (values - scores.logsumexp(-1, keepdim=True)).clamp(max=0.0)
    return tokens.view(batch, depth, top), chances.view(batch, depth, top)


def extend(pool: Tree, beam: Tensor, tokens: Tensor, chances: Tensor, width: int) -> tuple[Tree, Tensor]:
    """Append the best `width` children of the beam's nodes, best first -> (pool, their indices [n, width]).

    beam int64 [n, b]; tokens, chances [n, b, k], or [n, 1, k] if all parents have the same candidates.
    The pool must have room. Of fixed shape, without a copy to the host.
    """
    parents = beam.shape[1]
    scores = pool.scores.gather(1, beam).unsqueeze(2) + chances
    # By rank, then by parent: the order in which a stable sort leaves ties.
    scores, order = scores.transpose(1, 2).flatten(1).sort(dim=1, stable=True, descending=True)
    scores, order = scores[:, :width], order[:, :width]
    by_rank = tokens.expand(-1, parents, -1).transpose(1, 2).flatten(1)
    parent = beam.gather(1, order % parents)
    at = pool.count.unsqueeze(1) + torch.arange(width, device=beam.device)
    return Tree(
        tokens=pool.tokens.scatter(1, at, by_rank.gather(1, order)),
        parents=pool.parents.scatter(1, at, parent),
        depths=pool.depths.scatter(1, at, pool.depths.gather(1, parent) + 1),
        scores=pool.scores.scatter(1, at, scores),
        count=pool.count + width,
    ), at


def _chosen(pool: Tree, nodes: Tensor) -> Tree:
    """Return the tree of some nodes, int64 [n, v], in this order, each behind its parent."""
    place = torch.zeros_like(pool.parents)
    place.scatter_(1, nodes, torch.arange(nodes.shape[1], device=nodes.device).expand_as(nodes))
    parents = pool.parents.gather(1, nodes)
    moved = place.gather(1, parents.clamp(min=0))
    return Tree(
        tokens=pool.tokens.gather(1, nodes),
        parents=torch.where(parents == NO_NODE, NO_NODE, moved),
        depths=pool.depths.gather(1, nodes),
        scores=pool.scores.gather(1, nodes),
        count=pool.count.clamp(max=nodes.shape[1]),
    )
