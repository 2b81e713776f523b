"""The `grow` operators in fixed shapes; what they mean says `kernels/tree.py`.

`prune` is of fixed shape as it stands there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fsm_spec.kernels.fixed.law import SamplingColumns, best_tokens
from fsm_spec.kernels.law import as_real
from fsm_spec.kernels.tree import Tree, best_tree, extend, newest, require_nodes

Nodes = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def nodes_of(tree: Tree) -> Nodes:
    """Return the five tensors of trees, as custom ops take and give them."""
    return tree.tokens, tree.parents, tree.depths, tree.scores, tree.count


def grow_best(
    logits: Tensor,
    root: Tensor,
    sampling: SamplingColumns,
    top: int,
    size: int,
    *,
    exclude: int | None = None,
) -> Tree:
    """Grow the trees of the `size` most probable nodes over marginals: logits [n, d, V], root int64 [n].

    Raises ValueError as the reading does.
    """
    require_nodes(logits.shape[1], top, size)
    tokens, chances = _candidates(logits, sampling.temperature, top, exclude)
    return best_tree(root, tokens, chances, size, _extended)


def grow_newest(
    logits: Tensor, pool: Tree, sampling: SamplingColumns, top: int, *, exclude: int | None = None
) -> tuple[Tree, Tensor]:
    """Add the `top` best children of each pool's newest level -> (pools, the rows they hang on, int64 [n, top]).

    logits [n, b, V]. The pools must have room for `top` nodes more; what a pool without room gives is undefined.
    """
    tokens, chances = _candidates(logits, sampling.temperature, top, exclude)
    width, capacity = logits.shape[1], pool.tokens.shape[1]
    # The pool of a padded request may hold any count: it is held to one with b nodes at least, and room.
    count = pool.count.clamp(width, capacity - top)
    pool = Tree(pool.tokens, pool.parents, pool.depths, pool.scores, count)
    beam = newest(pool, width)
    grown, children = _extended(pool, beam, tokens, chances, top)
    return grown, grown.parents.gather(1, children) - beam[:, :1]


def _extended(pool: Tree, beam: Tensor, tokens: Tensor, chances: Tensor, width: int) -> tuple[Tree, Tensor]:
    """Append children to pools as `kernels.tree.extend` does, by the custom op."""
    nodes = _extend(*nodes_of(pool), beam, tokens, chances, width)
    tokens, parents, depths, scores, placed = nodes
    return Tree(tokens, parents, depths, scores, pool.count + width), placed


@torch.library.custom_op("fsm_spec::extend", mutates_args=())
def _extend(  # noqa: PLR0913, PLR0917 -- an operator of torch takes tensors and numbers, one each
    tokens: Tensor,
    parents: Tensor,
    depths: Tensor,
    scores: Tensor,
    count: Tensor,
    beam: Tensor,
    names: Tensor,
    chances: Tensor,
    width: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Append the best children -> (tokens, parents, depths, scores, their indices int64 [n, width])."""
    pool, placed = extend(Tree(tokens, parents, depths, scores, count), beam, names, chances, width)
    return pool.tokens, pool.parents, pool.depths, pool.scores, placed


@_extend.register_kernel("cuda")
def _(*inputs: Any) -> tuple[Tensor, ...]:  # noqa: ANN401 -- as above
    """Append children by the Triton kernel, which orders scores of 32 bits at most."""
    pool, others = Tree(*inputs[:5]), inputs[5:]
    if pool.scores.dtype == torch.float64:
        grown, placed = extend(pool, *others)
    else:
        from fsm_spec.kernels.triton import tree as kernels  # noqa: PLC0415 -- a CPU needs no Triton

        grown, placed = kernels.extend(pool, *others)
    return grown.tokens, grown.parents, grown.depths, grown.scores, placed


@_extend.register_fake
def _(*inputs: Any) -> tuple[Tensor, ...]:  # noqa: ANN401 -- as above
    """Give shapes and types."""
    beam, width = inputs[5], inputs[8]
    return (*(torch.empty_like(one) for one in inputs[:4]), beam.new_empty((len(beam), width)))


@torch.library.custom_op("fsm_spec::candidates", mutates_args=())
def _candidates(logits: Tensor, temperature: Tensor, top: int, exclude: int | None) -> tuple[Tensor, Tensor]:
    """Find the best tokens of logits [n, r, V] and their log-probabilities -> int64, real [n, r, top]."""
    return candidates_torch(logits, temperature, top, exclude)


@_candidates.register_kernel("cuda")
def _(logits: Tensor, temperature: Tensor, top: int, exclude: int | None) -> tuple[Tensor, Tensor]:
    """Find candidates by the Triton kernels, which order logits of 32 bits at most."""
    if logits.dtype == torch.float64:
        return candidates_torch(logits, temperature, top, exclude)
    from fsm_spec.kernels.triton import tree as kernels  # noqa: PLC0415 -- a CPU needs no Triton

    return kernels.candidates(logits, temperature, top, exclude)


@_candidates.register_fake
def _(logits: Tensor, _temperature: Tensor, top: int, *_: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401 -- torch's
    """Give shapes and types."""
    shape = (*logits.shape[:2], top)
    return logits.new_empty(shape, dtype=torch.int64), as_real(logits).new_empty(shape)


def candidates_torch(
    logits: Tensor, temperature: Tensor, top: int, exclude: int | None
) -> tuple[Tensor, Tensor]:
    """Find the candidates in plain torch: at the request's temperature, 1 if greedy, over all tokens."""
    scores = as_real(logits)
    none = torch.zeros_like(temperature, dtype=torch.int64)
    divisor = SamplingColumns(temperature, none, temperature, temperature, none).divisor(scores.dtype)
    scores = scores / divisor.view(-1, 1, 1)
    values, tokens = best_tokens(scores, top, exclude)
    return tokens, (values - scores.logsumexp(-1, keepdim=True)).clamp(max=0.0)
