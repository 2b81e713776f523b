"""Growing and pruning the tree of one request in plain Python: the reading that `tree.py` is compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fsm_spec.kernels.law import GREEDY_BELOW, SamplingParams
from fsm_spec.kernels.tree import NO_NODE


class Node(NamedTuple):
    """Describe a node; a tree is a list of them, the root first, parents before their children."""

    token: int
    parent: int
    depth: int
    score: float


class _Edge(NamedTuple):
    """Describe a node that may be added, in the order in which ties are broken."""

    cost: float  # the negative score
    depth: int
    rank: int
    token: int
    parent: int

    def node(self) -> Node:
        """Return the node at the end of the edge."""
        return Node(self.token, self.parent, self.depth, -self.cost)


def grow_best_plain(
    logits: Sequence[Sequence[float]],
    root: int,
    params: SamplingParams,
    top: int,
    size: int,
    *,
    exclude: int | None = None,
) -> list[Node]:
    """Grow the tree that `grow_best` grows, by adding the best unused edge until there are `size` nodes."""
    levels = [_candidates_plain(row, params, top, exclude) for row in logits]
    nodes = [Node(root, NO_NODE, 0, 0.0)]
    while len(nodes) < size:
        used = {(node.parent, node.token) for node in nodes}
        edges = [
            edge
            for parent, node in enumerate(nodes)
            if node.depth < len(levels)
            for edge in _edges(parent, node, levels[node.depth])
            if (parent, edge.token) not in used
        ]
        nodes.append(min(edges).node())
    return nodes


def grow_level_plain(
    logits: Sequence[Sequence[float]],
    pool: Sequence[Node],
    beam: Sequence[int],
    params: SamplingParams,
    top: int,
    *,
    added: int | None = None,
    exclude: int | None = None,
) -> tuple[list[Node], list[int]]:
    """Add the best children of the beam's nodes to the pool, as `grow_level` does -> (pool, next beam)."""
    edges = [
        edge
        for parent, row in zip(beam, logits, strict=True)
        for edge in _edges(parent, pool[parent], _candidates_plain(row, params, top, exclude))
    ]
    edges.sort(key=lambda edge: (edge.cost, edge.rank, edge.parent))
    children = [edge.node() for edge in edges[: top if added is None else added]]
    return [*pool, *children], list(range(len(pool), len(pool) + min(top, len(children))))


def grow_newest_plain(
    logits: Sequence[Sequence[float]],
    pool: Sequence[Node],
    params: SamplingParams,
    top: int,
    *,
    exclude: int | None = None,
) -> tuple[list[Node], list[int]]:
    """Add the best children of the newest level, as `grow_newest` does -> (pool, the rows they hang on)."""
    beam = range(len(pool) - len(logits), len(pool))
    grown, children = grow_level_plain(logits, pool, beam, params, top, exclude=exclude)
    return grown, [grown[child].parent - beam[0] for child in children]


def prune_plain(pool: Sequence[Node], size: int) -> list[Node]:
    """Keep the `size` best nodes, in the order of the pool."""
    best = sorted(range(len(pool)), key=lambda index: (-pool[index].score, index))[:size]
    kept = sorted(best)
    return [
        node._replace(parent=kept.index(node.parent) if node.parent != NO_NODE else NO_NODE)
        for node in (pool[index] for index in kept)
    ]


def _edges(parent: int, node: Node, candidates: Sequence[tuple[int, float]]) -> list[_Edge]:
    """Return the edges from a node to its candidates."""
    return [
        _Edge(-(node.score + chance), node.depth + 1, rank, token, parent)
        for rank, (token, chance) in enumerate(candidates)
    ]


def _candidates_plain(
    logits: Sequence[float], params: SamplingParams, top: int, exclude: int | None
) -> list[tuple[int, float]]:
    """Return the best tokens of a row with their log-probabilities over all tokens."""
    temperature = 1.0 if params.temperature < GREEDY_BELOW else params.temperature
    scores = [score / temperature for score in logits]
    best = max(scores)
    whole = best + math.log(sum(math.exp(score - best) for score in scores))
    tokens = sorted(
        (token for token in range(len(scores)) if token != exclude), key=lambda token: (-scores[token], token)
    )
    return [(token, min(0.0, scores[token] - whole)) for token in tokens[:top]]
