"""The `walk` operator in fixed shapes; the rules and their sources are in `kernels/walk.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fsm_spec.kernels.choose import invert
from fsm_spec.kernels.fixed.law import SamplingColumns, law
from fsm_spec.kernels.fixed.sampling import sample_torch
from fsm_spec.kernels.fixed.tree import nodes_of
from fsm_spec.kernels.randomness import Purpose, salted, uniform
from fsm_spec.kernels.tree import Tree
from fsm_spec.kernels.walk import WALK_RULES, Walk, alive_nodes, at_root, first_of, verdict_laws, walked


def walk(
    rule: str,
    logits: Tensor,
    tree: Tree,
    sampling: SamplingColumns,
    positions: Tensor,
    deepest: int,
    *,
    exclude: int | None = None,
) -> Walk:
    """Walk each tree by the rule of that name, `deepest` edges at most. Raises ValueError for an unknown rule.

    Shapes: logits [n, v, V]; positions int64 [n, v].
    """
    if rule not in WALK_RULES:
        raise ValueError(f"unknown walk rule {rule!r}; give one of {', '.join(WALK_RULES)}")
    path, token = _walk(rule, logits, *nodes_of(tree), *sampling, positions, deepest, exclude)
    return walked(tree, path, token.unsqueeze(1))


@torch.library.custom_op("fsm_spec::walk", mutates_args=())
def _walk(  # noqa: PLR0913, PLR0917 -- an operator of torch takes tensors and numbers, one each
    rule: str,
    logits: Tensor,
    tokens: Tensor,
    parents: Tensor,
    depths: Tensor,
    scores: Tensor,
    count: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    deepest: int,
    exclude: int | None,
) -> tuple[Tensor, Tensor]:
    """Walk by the fixed form -> (path int64 [n, deepest + 1], next int64 [n])."""
    tree = Tree(tokens, parents, depths, scores, count)
    sampling = SamplingColumns(temperature, top_k, top_p, min_p, seeds)
    walk_torch = match_torch if rule == "match" else residual_torch
    return walk_torch(logits, tree, sampling, positions, deepest, exclude)


@_walk.register_kernel("cuda")
def _(rule: str, logits: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401 -- as above
    """Walk by the Triton kernels."""
    from fsm_spec.kernels.triton import walk as kernels  # noqa: PLC0415 -- a CPU needs no Triton

    tree, sampling, others = Tree(*rest[:5]), SamplingColumns(*rest[5:10]), rest[10:]
    return kernels.walk(rule, logits, tree, sampling, *others)


@_walk.register_fake
def _(
    _rule: str,
    logits: Tensor,
    tokens: Tensor,
    *rest: object,
) -> tuple[Tensor, Tensor]:
    """Give shapes and types."""
    deepest = rest[-2]
    assert isinstance(deepest, int)
    return tokens.new_empty((len(logits), deepest + 1)), tokens.new_empty(len(logits))


def match_torch(
    logits: Tensor,
    tree: Tree,
    sampling: SamplingColumns,
    positions: Tensor,
    deepest: int,
    exclude: int | None,
) -> tuple[Tensor, Tensor]:
    """Go where the target's own draws lead, in plain torch -> (path [n, deepest + 1], next [n])."""
    picks, _ = sample_torch(
        logits, sampling, positions, Purpose.TARGET, "law", exclude=exclude, want_law=False
    )
    alive = alive_nodes(tree)
    node, path = at_root(tree, deepest)
    walking = torch.ones_like(node, dtype=torch.bool)
    for depth in range(1, deepest + 1):
        drawn = picks.gather(1, node.unsqueeze(1))
        children = (tree.parents == node.unsqueeze(1)) & alive
        child, found = first_of(children & (tree.tokens == drawn))
        walking = walking & found
        node = torch.where(walking, child, node)
        path[:, depth] = torch.where(walking, child, path[:, depth])
    return path, picks.gather(1, node.unsqueeze(1)).squeeze(1)


def residual_torch(
    logits: Tensor,
    tree: Tree,
    sampling: SamplingColumns,
    positions: Tensor,
    deepest: int,
    exclude: int | None,
) -> tuple[Tensor, Tensor]:
    """Try children against what is left of their parent's law, in plain torch -> (path, next).

    Nodes stand behind their parents and are tried in order, so one pass over them is the whole walk.
    """
    n, v, width = logits.shape
    laws = law(logits.reshape(n * v, width), sampling.spread(v), exclude).view(n, v, width)
    alive = alive_nodes(tree)
    node, path = at_root(tree, deepest)
    p, cut = laws[:, 0], torch.zeros_like(node, dtype=torch.bool)
    for child in range(1, v):
        token = tree.tokens[:, child].clamp(0, width - 1)
        tried = (tree.parents[:, child] == node) & alive[:, child]
        where = salted(positions.gather(1, node.unsqueeze(1)).squeeze(1), torch.full_like(node, child))
        stands = invert(verdict_laws(p, token), uniform(sampling.seeds, where, Purpose.ACCEPT)) == 0
        moved, fell = tried & stands, tried & ~stands
        depth = tree.depths[:, child : child + 1].clamp(0, deepest)
        reached = torch.where(moved, child, path.gather(1, depth).squeeze(1))
        path = path.scatter(1, depth, reached.unsqueeze(1))
        node = torch.where(moved, child, node)
        left = p.scatter(1, token.unsqueeze(1), 0.0)
        p = torch.where(moved.unsqueeze(1), laws[:, child], torch.where(fell.unsqueeze(1), left, p))
        cut = (cut | fell) & ~moved
    where = positions.gather(1, node.unsqueeze(1)).squeeze(1)
    bonus, correction = (uniform(sampling.seeds, where, one) for one in (Purpose.TARGET, Purpose.RESIDUAL))
    return path, invert(p, torch.where(cut, correction, bonus)).clamp(max=width - 1)
