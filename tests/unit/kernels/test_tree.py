"""Growing and pruning draft trees: the plain reading, ties, prefixes, and what is refused."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from fsm_spec.kernels.law import SamplingParams, SamplingRows
from fsm_spec.kernels.tree import NO_NODE, Tree, grow_best, grow_level, grow_newest, prune
from fsm_spec.kernels.tree_plain import (
    Node,
    grow_best_plain,
    grow_level_plain,
    grow_newest_plain,
    prune_plain,
)

CHOICES = [SamplingParams(), SamplingParams(1e-7), SamplingParams(1.0), SamplingParams(0.5, 2, 0.3)]
VOCABULARY = 6


def nodes_of(tree: Tree, request: int) -> list[Node]:
    """Return the live nodes of one tree."""
    columns = (tree.tokens, tree.parents, tree.depths, tree.scores)
    live = int(tree.count[request])
    return [
        Node(*values) for values in zip(*(column[request, :live].tolist() for column in columns), strict=True)
    ]


def assert_same(expected: list[Node], found: list[Node]) -> None:
    """Compare two trees: equal nodes in equal order, scores up to rounding."""
    assert [node[:3] for node in expected] == [node[:3] for node in found]
    assert [node.score for node in expected] == pytest.approx([node.score for node in found], abs=1e-12)


def random_logits(source: random.Random, *shape: int) -> torch.Tensor:
    """Return random logits, or such with many exact ties: uniform over some tokens, impossible elsewhere."""
    generator = torch.Generator().manual_seed(source.randrange(2**30))
    if source.random() < 0.5:
        return torch.randn(*shape, dtype=torch.float64, generator=generator) * 2
    possible = torch.rand(*shape, generator=generator) < source.choice([0.3, 0.6, 1.0])
    possible[..., source.randrange(VOCABULARY)] = True
    return torch.where(possible, 0.0, -math.inf).to(torch.float64)


def test_best_first_equals_plain() -> None:
    """The sorted levels give the tree that adding the best unused edge, one at a time, gives, ties included."""
    for trial in range(60):
        source = random.Random(trial)
        batch, levels, top = 3, source.randint(1, 4), source.randint(1, 4)
        room = sum(top**depth for depth in range(levels + 1))
        size = source.randint(1, min(room, 24))
        exclude = source.choice([None, 2])
        logits = random_logits(source, batch, levels, VOCABULARY)
        before = logits.clone()
        params = [source.choice(CHOICES) for _ in range(batch)]
        root = torch.tensor([source.randrange(VOCABULARY) for _ in range(batch)])
        tree = grow_best(logits, root, SamplingRows.of(params), top, size, exclude=exclude)
        assert before.equal(logits)
        for request in range(batch):
            expected = grow_best_plain(
                logits[request].tolist(), int(root[request]), params[request], top, size, exclude=exclude
            )
            assert_same(expected, nodes_of(tree, request))


def test_best_first_is_the_most_probable_tree() -> None:
    """No subtree of that many nodes has more expected accepted drafts, by trying all sets of nodes."""
    logits = torch.randn(1, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    p = logits[0].softmax(-1)
    paths = [(one,) for one in range(3)] + [(one, other) for one in range(3) for other in range(3)]
    mass = {path: math.prod(float(p[depth, token]) for depth, token in enumerate(path)) for path in paths}
    subtrees = (
        chosen for chosen in itertools.combinations(paths, 4) if all(path[:1] in chosen for path in chosen)
    )
    most = max(sum(mass[path] for path in chosen) for chosen in subtrees)
    tree = grow_best(logits, torch.tensor([0]), SamplingRows.of([SamplingParams(1.0)]), 3, 5)
    assert most == pytest.approx(float(tree.scores[0, 1:].exp().sum()), abs=1e-12)


def test_smaller_tree_is_a_prefix() -> None:
    """Best first means that the first nodes are the tree of fewer nodes: a budget may cut it anywhere."""
    logits = torch.randn(2, 4, 50)
    rows, root = SamplingRows.of([SamplingParams(1.0), SamplingParams()]), torch.tensor([4, 7])
    whole = grow_best(logits, root, rows, 5, 40)
    for size in (1, 2, 17):
        part = grow_best(logits, root, rows, 5, size)
        for request in range(2):
            assert nodes_of(part, request) == nodes_of(whole, request)[:size]


def test_request_does_not_depend_on_batch() -> None:
    """A request's float32 tree is the same alone and in a batch."""
    torch.manual_seed(1)
    logits, root = torch.randn(4, 5, 3000), torch.arange(4)
    whole = grow_best(logits, root, SamplingRows.of(CHOICES), 8, 32)
    for request in range(4):
        one = slice(request, request + 1)
        alone = grow_best(logits[one], root[one], SamplingRows.of(CHOICES[one]), 8, 32)
        assert nodes_of(whole, request) == nodes_of(alone, 0)


def test_levels_equal_plain() -> None:
    """Level by level, pool, beams and the pruned tree are those of the plain reading."""
    for trial in range(40):
        source = random.Random(trial)
        batch, levels, top = 3, source.randint(1, 4), source.randint(1, 4)
        added = source.choice([None, top, top + 1, top * top])
        exclude = source.choice([None, 2])
        params = [source.choice(CHOICES) for _ in range(batch)]
        rows = SamplingRows.of(params)
        root = torch.tensor([source.randrange(VOCABULARY) for _ in range(batch)])
        pool = Tree.rooted(root, 1 + levels * top * top, torch.float64)
        beam = torch.zeros(batch, 1, dtype=torch.int64)
        pools = [[Node(token, NO_NODE, 0, 0.0)] for token in root.tolist()]
        beams = [[0]] * batch
        for _ in range(levels):
            logits = random_logits(source, batch, beam.shape[1], VOCABULARY)
            pool, beam = grow_level(logits, pool, beam, rows, top, added=added, exclude=exclude)
            for request in range(batch):
                pools[request], beams[request] = grow_level_plain(
                    logits[request].tolist(),
                    pools[request],
                    beams[request],
                    params[request],
                    top,
                    added=added,
                    exclude=exclude,
                )
                assert_same(pools[request], nodes_of(pool, request))
                assert beams[request] == beam[request].tolist()
                for size in {1, min(5, pool.tokens.shape[1]), pool.tokens.shape[1]}:
                    kept = nodes_of(prune(pool, size), request)
                    assert_same(prune_plain(pools[request], size), kept)
                    assert all(node.parent < index for index, node in enumerate(kept))


def test_best_nodes_of_all_levels_are_kept() -> None:
    """A sure path is kept to its end before a doubtful child of the root."""
    tree = Tree.rooted(torch.tensor([9]), 9, torch.float64)
    beam = torch.zeros(1, 1, dtype=torch.int64)
    for p in ([[0.9, 0.06, 0.04]], [[0.9, 0.05, 0.05], [0.4, 0.3, 0.3]]):
        logits = torch.tensor([p], dtype=torch.float64).log()
        tree, beam = grow_level(logits, tree, beam, SamplingRows.of([SamplingParams(1.0)]), 2)
    assert [[3, 4]] == beam.tolist()
    kept = prune(tree, 3)
    assert [[9, 0, 0]] == kept.tokens.tolist()
    assert [[NO_NODE, 0, 1]] == kept.parents.tolist()
    assert [[0, 1, 2]] == kept.depths.tolist()


def test_what_does_not_fit_is_refused() -> None:
    """More nodes than the depth allows, than the pool holds, or than there are tokens, is an error by name."""
    logits, root, rows = torch.zeros(1, 2, 3), torch.tensor([0]), SamplingRows.of([SamplingParams()])
    with pytest.raises(ValueError, match="depth 2 with 2 candidates a node has no 8 nodes"):
        grow_best(logits, root, rows, 2, 8)
    with pytest.raises(ValueError, match="the best 3 of 2 tokens"):
        grow_best(logits, root, rows, 3, 4, exclude=0)
    beam = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="no room for 2 more nodes; it holds 2"):
        grow_level(logits[:, :1], Tree.rooted(root, 2), beam, rows, 2)
    with pytest.raises(ValueError, match="1 nodes a level leave no beam of 2"):
        grow_level(logits[:, :1], Tree.rooted(root, 3), beam, rows, 2, added=1)
    with pytest.raises(ValueError, match="4 nodes are to be kept of 3"):
        prune(Tree.rooted(root, 3), 4)


def test_newest_level_grows_like_its_beam() -> None:
    """Growing by the newest level is growing by the beam that was added last, in both readings."""
    generator = torch.Generator().manual_seed(3)
    params = [SamplingParams(0.7), SamplingParams()]
    rows, roots = SamplingRows.of(params), torch.tensor([4, 1])
    pool = Tree.rooted(roots, 10, torch.float64)
    plain: list[list[Node]] = [[Node(root, NO_NODE, 0, 0.0)] for root in roots.tolist()]
    for width in (1, 3, 3):
        logits = torch.randn(2, width, 8, generator=generator, dtype=torch.float64)
        pool, hung = grow_newest(logits, pool, rows, 3, exclude=7)
        for line in range(2):
            plain[line], own = grow_newest_plain(
                logits[line].tolist(), plain[line], params[line], 3, exclude=7
            )
            assert own == hung[line].tolist()
            assert [node.token for node in plain[line]] == pool.tokens[line, : len(plain[line])].tolist()
            assert [node.parent for node in plain[line]] == pool.parents[line, : len(plain[line])].tolist()
