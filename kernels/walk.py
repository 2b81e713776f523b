"""The `walk` operator: which path of a draft tree stands, and the token after it.

Row i of a request reads node i: its logits judge the node's children and give the token after a path that ends
there. Both rules are lossless: whatever the tree, the emitted tokens have the target's law.
The same rules in plain Python are `walk_plain.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fsm_spec.kernels.choose import Chooser
from fsm_spec.kernels.law import SamplingRows, law
from fsm_spec.kernels.randomness import Purpose, salted
from fsm_spec.kernels.sampling import sample
from fsm_spec.kernels.tree import NO_NODE, Tree


class Walk(NamedTuple):
    """Hold where the walks of n requests ended; `deepest` is the most edges of a path."""

    accepted: Tensor  # int64 [n], edges walked
    path: Tensor  # int64 [n, deepest + 1], nodes from the root, NO_NODE behind the last
    run: Tensor  # int64 [n, deepest + 1], their tokens, NO_NODE behind the last
    next: Tensor  # int64 [n, 1], the token after the path


def walk_match(
    logits: Tensor,
    tree: Tree,
    rows: SamplingRows,
    seeds: Tensor,
    positions: Tensor,
    chooser: Chooser,
    deepest: int,
    *,
    exclude: int | None = None,
) -> Walk:
    """Draw the target's own token at the node, go to the child that carries it, until there is none; emit the token.

    Shapes: logits [n, v, V]; positions [n, v] of the tokens that the rows predict; seeds int64 [n]. A path has at
    most `deepest` edges. Of several children with the same token the first is taken. Only rows on the path are read.
    Every emitted token behind the root is drawn as plain decoding draws it, so the output is that of plain decoding.

    Source: target-only sampling of EAGLE trees in SGLang; Uno's tree sampler.
    """
    alive = alive_nodes(tree)
    node, path = at_root(tree, deepest)
    token = torch.zeros_like(node)
    walking = torch.arange(len(node), device=node.device)
    for depth in range(1, deepest + 2):
        at = node[walking]
        drawn, _ = sample(
            logits[walking, at],
            rows.take(walking),
            seeds[walking],
            positions[walking, at],
            Purpose.TARGET,
            chooser,
            exclude=exclude,
        )
        token[walking] = drawn
        children = (tree.parents[walking] == at.unsqueeze(1)) & alive[walking]
        child, found = first_of(children & (tree.tokens[walking] == drawn.unsqueeze(1)))
        walking, child = walking[found], child[found]
        if depth > deepest or not len(walking):
            break
        node[walking] = child
        path[walking, depth] = child
    return walked(tree, path, token.unsqueeze(1))


def walk_residual(
    logits: Tensor,
    tree: Tree,
    rows: SamplingRows,
    seeds: Tensor,
    positions: Tensor,
    chooser: Chooser,
    deepest: int,
    *,
    exclude: int | None = None,
) -> Walk:
    """Try a node's children in order, each against what is left of the node's law, until none is left.

    Shapes: logits [n, v, V]; positions [n, v] of the tokens that the rows predict; seeds int64 [n].
    A child x is accepted with probability p(x); a rejected one's mass is taken out of p and the rest made a law
    again, so a second child of the same token never stands. The next token is drawn from the law left at the last
    node. At temperature 0 this is `walk_match`. Only rows on the path are read.

    Source: EAGLE-3 (SafeAILab/EAGLE), which takes proposals that are a function of the tokens before them: q is 1.
    """
    if rows.all_greedy:
        return walk_match(logits, tree, rows, seeds, positions, chooser, deepest, exclude=exclude)
    alive, index = alive_nodes(tree), torch.arange(tree.tokens.shape[1], device=logits.device)
    node, path = at_root(tree, deepest)
    tried, cut = torch.zeros_like(node), torch.zeros_like(node, dtype=torch.bool)
    p = law(logits[:, 0], rows, exclude)
    while True:
        untried = (tree.parents == node.unsqueeze(1)) & (index > tried.unsqueeze(1)) & alive
        child, found = first_of(untried)
        at = found.nonzero().squeeze(1)
        if not len(at):
            break
        tried[at] = child[at]
        token = tree.tokens[at, child[at]]
        where = salted(positions[at, node[at]], child[at])
        verdict = chooser.choose(verdict_laws(p[at], token), seeds[at], where, Purpose.ACCEPT)
        moved, stays = at[verdict == 0], verdict == 1
        node[moved] = child[moved]
        path[moved, tree.depths[moved, child[moved]]] = child[moved]
        p[moved] = law(logits[moved, node[moved]], rows.take(moved), exclude)
        cut[moved] = False
        p[at[stays], token[stays]] = 0.0
        cut[at[stays]] = True
    where = positions.gather(1, node.unsqueeze(1)).squeeze(1)
    return walked(tree, path, _last_tokens(p, cut, seeds, where, chooser).unsqueeze(1))


def verdict_laws(p: Tensor, token: Tensor) -> Tensor:
    """Return the laws (accept, reject) of one token each against p [m, V], not normalised -> float64 [m, 2]."""
    # A token that holds all the mass left has chance 1 exactly: it is rejected by no rounding.
    chance = p.gather(1, token.unsqueeze(1)).to(torch.float64) / p.sum(1, keepdim=True, dtype=torch.float64)
    chance = chance.clamp(max=1.0)
    return torch.cat([chance, 1 - chance], dim=1)


def _last_tokens(p: Tensor, cut: Tensor, seeds: Tensor, where: Tensor, chooser: Chooser) -> Tensor:
    """Draw from p [n, V]: the correction where a child was rejected (`cut`), else the bonus token -> int64 [n]."""
    token = torch.empty_like(where)
    for ends, purpose in ((~cut, Purpose.TARGET), (cut, Purpose.RESIDUAL)):
        at = ends.nonzero().squeeze(1)
        if len(at):
            token[at] = chooser.choose(p[at], seeds[at], where[at], purpose)
    return token


def at_root(tree: Tree, deepest: int) -> tuple[Tensor, Tensor]:
    """Return where all walks start -> (node int64 [n], path int64 [n, deepest + 1])."""
    node = torch.zeros_like(tree.count)
    path = torch.full((len(node), deepest + 1), NO_NODE, dtype=torch.int64, device=node.device)
    path[:, 0] = 0
    return node, path


def path_of(tree: Tree, edges: Tensor, deepest: int) -> Tensor:
    """Return the path of so many edges to the first node of that depth, or of the deepest -> int64 [n, deepest + 1].

    Of fixed shape, without a copy to the host.
    """
    alive = alive_nodes(tree)
    depths = tree.depths.masked_fill(~alive, 0)
    depth = torch.minimum(edges, depths.amax(1)).clamp(0, deepest)
    node, _ = first_of((tree.depths == depth.unsqueeze(1)) & alive)
    path = at_root(tree, deepest)[1]
    for place in range(deepest, 0, -1):
        on = depth >= place
        path[:, place] = torch.where(on, node, NO_NODE)
        parent = tree.parents.gather(1, node.unsqueeze(1)).squeeze(1)
        node = torch.where(on, parent.clamp(min=0), node)
    return path


def alive_nodes(tree: Tree) -> Tensor:
    """Tell which nodes are there, bool [n, v]."""
    return torch.arange(tree.tokens.shape[1], device=tree.tokens.device) < tree.count.unsqueeze(1)


def first_of(flags: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first true column of each row, and whether there is one: bool [n, v] -> int64 [n], bool [n]."""
    return flags.long().argmax(1), flags.any(1)


def walked(tree: Tree, path: Tensor, token: Tensor) -> Walk:
    """Read a path off the tree."""
    run = torch.where(path == NO_NODE, NO_NODE, tree.tokens.gather(1, path.clamp(min=0)))
    return Walk((path != NO_NODE).sum(1) - 1, path, run, token)


WALK_RULES = ("match", "residual")


def walk(  # noqa: PLR0913 -- the operator's inputs, one each
    rule: str,
    logits: Tensor,
    tree: Tree,
    rows: SamplingRows,
    seeds: Tensor,
    positions: Tensor,
    chooser: Chooser,
    deepest: int,
    *,
    exclude: int | None = None,
) -> Walk:
    """Walk by the rule of that name. Raises ValueError for an unknown rule."""
    if rule not in WALK_RULES:
        raise ValueError(f"unknown walk rule {rule!r}; give one of {', '.join(WALK_RULES)}")
    by_rule = walk_match if rule == "match" else walk_residual
    return by_rule(logits, tree, rows, seeds, positions, chooser, deepest, exclude=exclude)
