"""Walking draft trees: the plain reading, dead nodes, and the exact law of the emitted run by enumeration."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.choose import CounterChooser, Key
from fsm_spec.kernels.enumeration import Enumerator, enumerate_outcomes, outcome_law
from fsm_spec.kernels.law import (
    SamplingParams,
    SamplingRows,
    argmax_tokens,
    best_tokens,
    in_nucleus,
    law_plain,
)
from fsm_spec.kernels.randomness import Purpose
from fsm_spec.kernels.tree import NO_NODE, Tree, grow_best
from fsm_spec.kernels.walk import WALK_RULES, Walk, walk
from fsm_spec.kernels.walk_plain import WalkPlain, walk_plain

CHOOSER = CounterChooser()
EXACT = 1e-12
VOCABULARY, DEEPEST = 3, 2
SAMPLED = [
    SamplingParams(1.0),
    SamplingParams(0.6, 2),
    SamplingParams(1.4, 0, 0.7),
    SamplingParams(1.0, 0, 1.0, 0.4),
]
Tokens = tuple[int, ...]
Shape = list[tuple[int, int]]
"""Token and parent of every node."""
Reading = Callable[..., WalkPlain]


def tree_of(shapes: Sequence[Shape], size: int) -> Tree:
    """Return the batch of some trees, filled up to `size` nodes with such as would be walked if they were alive."""
    depths = []
    for shape in shapes:
        depth = [0]
        for _, parent in shape[1:]:
            depth.append(depth[parent] + 1)
        depths.append(depth + [1] * (size - len(shape)))
    return Tree(
        tokens=torch.tensor([[token for token, _ in shape] + [1] * (size - len(shape)) for shape in shapes]),
        parents=torch.tensor(
            [[parent for _, parent in shape] + [0] * (size - len(shape)) for shape in shapes]
        ),
        depths=torch.tensor(depths),
        scores=torch.zeros(len(shapes), size),
        count=torch.tensor([len(shape) for shape in shapes]),
    )


def grown(source: random.Random, vocabulary: int, most: int, deepest: int) -> Shape:
    """Return a random tree; siblings may carry the same token."""
    shape, depth = [(source.randrange(vocabulary), NO_NODE)], [0]
    for _ in range(source.randrange(most)):
        parent = source.choice([node for node in range(len(shape)) if depth[node] < deepest])
        shape.append((source.randrange(vocabulary), parent))
        depth.append(depth[parent] + 1)
    return shape


def as_plain(found: Walk, request: int) -> WalkPlain:
    """Return one request's walk without padding, which must lie behind the path."""
    length = int(found.accepted[request]) + 1
    path, run = found.path[request].tolist(), found.run[request].tolist()
    assert [NO_NODE] * (len(path) - length) == path[length:] == run[length:]
    return WalkPlain(length - 1, path[:length], run[:length], int(found.next[request, 0]))


def columns(shape: Shape) -> tuple[list[int], list[int]]:
    """Return tokens and parents."""
    return [token for token, _ in shape], [parent for _, parent in shape]


@pytest.mark.parametrize("rule", WALK_RULES)
def test_batch_equals_plain(rule: str) -> None:
    """Mixed requests, greedy ones among them, are walked as each alone; rows of dead nodes are poison."""
    seen = set()
    for trial in range(60):
        source = random.Random(trial)
        generator = torch.Generator().manual_seed(trial)
        shapes = [grown(source, 4, 9, 3) for _ in range(4)]
        params = [source.choice([SamplingParams(), *SAMPLED]) for _ in shapes]
        logits = torch.randn(4, 9, 4, dtype=torch.float64, generator=generator) * 2
        for request, shape in enumerate(shapes):
            logits[request, len(shape) :] = torch.nan
        before, tree = logits.clone(), tree_of(shapes, 9)
        seeds = torch.tensor([source.randrange(2**40) for _ in shapes])
        positions = torch.randint(0, 999, (4, 1), generator=generator) + tree.depths
        exclude = source.choice([None, 1])
        found = walk(
            rule, logits, tree, SamplingRows.of(params), seeds, positions, CHOOSER, 3, exclude=exclude
        )
        torch.testing.assert_close(before, logits, rtol=0, atol=0, equal_nan=True)
        assert (4, 4) == found.path.shape
        for request, shape in enumerate(shapes):
            expected = walk_plain(
                rule,
                logits[request].tolist(),
                *columns(shape),
                params[request],
                int(seeds[request]),
                positions[request].tolist(),
                CHOOSER,
                exclude=exclude,
            )
            assert expected == as_plain(found, request)
            seen.add(expected.accepted)
    assert {0, 1, 2, 3} == seen


def test_unknown_rule_is_named() -> None:
    """Both readings refuse a rule that does not exist."""
    tree, rows, zero = tree_of([[(0, NO_NODE)]], 1), SamplingRows.of([SamplingParams()]), torch.tensor([0])
    with pytest.raises(ValueError, match="unknown walk rule 'greedy'; give one of match, residual"):
        walk("greedy", torch.zeros(1, 1, 2), tree, rows, zero, zero.unsqueeze(1), CHOOSER, 0)
    with pytest.raises(ValueError, match="unknown walk rule 'greedy'"):
        walk_plain("greedy", [[0.0]], [0], [NO_NODE], SamplingParams(), 0, [0], CHOOSER)


def test_greedy_residual_is_match_of_argmaxes() -> None:
    """At temperature 0 both rules walk the same path, alone and beside sampled requests (D15)."""
    for trial in range(20):
        source = random.Random(trial)
        shape = grown(source, 3, 9, 3)
        logits = torch.randn(1, 9, 3, generator=torch.Generator().manual_seed(trial)).repeat(2, 1, 1)
        tree, seeds = tree_of([shape, shape], 9), torch.tensor([1, 2])
        still = SamplingRows.of([SamplingParams()] * 2)
        expected = as_plain(walk("match", logits, tree, still, seeds, tree.depths, CHOOSER, 3), 0)
        for other in (SamplingParams(), SAMPLED[0]):
            rows = SamplingRows.of([SamplingParams(), other])
            found = walk("residual", logits, tree, rows, seeds, tree.depths, CHOOSER, 3)
            assert expected == as_plain(found, 0)


@pytest.mark.parametrize("rule", WALK_RULES)
def test_request_does_not_depend_on_batch(rule: str) -> None:
    """A request's float32 walk is the same alone and in a batch."""
    torch.manual_seed(1)
    source = random.Random(1)
    shapes = [grown(source, 4, 12, 4) for _ in range(5)]
    logits, tree = torch.randn(5, 12, 700), tree_of(shapes, 12)
    logits[:, :, :4] += 8
    seeds, positions = torch.arange(5), tree.depths + 10
    params = [SAMPLED[request % len(SAMPLED)] for request in range(5)]
    whole = walk(rule, logits, tree, SamplingRows.of(params), seeds, positions, CHOOSER, 4)
    assert int(whole.accepted.max()) > 0
    for request in range(5):
        one = slice(request, request + 1)
        rows, alone = SamplingRows.of(params[one]), tree_of([shapes[request]], 12)
        found = walk(rule, logits[one], alone, rows, seeds[one], positions[one], CHOOSER, 4)
        assert as_plain(whole, request) == as_plain(found, 0)


class Target:
    """A target model over a few tokens: a table of logits for every text, some tokens impossible."""

    def __init__(self, seed: int, vocabulary: int = VOCABULARY) -> None:
        self.seed = seed
        self.vocabulary = vocabulary

    def after(self, text: Tokens) -> list[float]:
        """Return the logits after a text."""
        source = random.Random(f"{self.seed} {text}")
        impossible = source.randrange(3 * self.vocabulary)
        return [
            -math.inf if token == impossible else source.gauss(0, 1.5) for token in range(self.vocabulary)
        ]

    def law(self, params: SamplingParams, length: int) -> dict[Tokens, float]:
        """Return the joint law of the first tokens under plain decoding, from the definition."""
        joint = {}
        for tokens in itertools.product(range(self.vocabulary), repeat=length):
            mass = 1.0
            for at, token in enumerate(tokens):
                mass *= law_plain(self.after(tokens[:at]), params)[token] if mass else 0.0
            joint[tokens] = mass
        return joint


def texts_of(shape: Shape) -> list[Tokens]:
    """Return the text from behind the root to each node."""
    texts: list[Tokens] = [()]
    for token, parent in shape[1:]:
        texts.append((*texts[parent], token))
    return texts


def by_lists(
    rule: str,
    logits: list[list[float]],
    shape: Shape,
    params: SamplingParams,
    positions: list[int],
    chooser: Enumerator | CounterChooser,
) -> WalkPlain:
    """Walk by the plain reading."""
    return walk_plain(rule, logits, *columns(shape), params, 0, positions, chooser)


def by_tensors(
    rule: str,
    logits: list[list[float]],
    shape: Shape,
    params: SamplingParams,
    positions: list[int],
    chooser: Enumerator | CounterChooser,
) -> WalkPlain:
    """Walk by the batch reading."""
    found = walk(
        rule,
        torch.tensor([logits], dtype=torch.float64),
        tree_of([shape], len(shape)),
        SamplingRows.of([params]),
        torch.zeros(1, dtype=torch.int64),
        torch.tensor([positions]),
        chooser,
        DEEPEST,
    )
    return as_plain(found, 0)


READINGS = [by_lists, by_tensors]


def distance(rule: str, reading: Reading, target: Target, shape: Shape, params: SamplingParams) -> float:
    """Return the largest difference between the law of a walk, continued plainly, and the target's law."""
    texts, length = texts_of(shape), DEEPEST + 1

    def run(chooser: Enumerator) -> Tokens:
        logits = [target.after(text) for text in texts]
        found = reading(rule, logits, shape, params, [len(text) for text in texts], chooser)
        text: Tokens = (*found.run[1:], found.next)
        while len(text) < length:
            p = law_plain(target.after(text), params)
            text = (*text, chooser.choose_one(p, Key(0, len(text), Purpose.TARGET)))
        return text

    found = outcome_law(enumerate_outcomes(run, once=frozenset(Purpose)))
    return max(abs(found.get(tokens, 0.0) - mass) for tokens, mass in target.law(params, length).items())


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("rule", WALK_RULES)
@settings(max_examples=40)
@given(data=st.data())
def test_emitted_run_has_the_targets_law(rule: str, reading: Reading, data: st.DataObject) -> None:
    """Any tree over any target gives exactly the target's law, whatever truncates it; no number decides twice."""
    seed = data.draw(st.integers(0, 10**6))
    vocabulary = data.draw(st.integers(3, 4))
    params = data.draw(st.sampled_from([SamplingParams(), *SAMPLED]))
    shape = grown(random.Random(seed), vocabulary, 8, DEEPEST)
    assert distance(rule, reading, Target(seed, vocabulary), shape, params) < EXACT


def test_match_emits_plain_decoding() -> None:
    """Every token of a match walk is plain decoding's own sample at its position, whatever the tree (D14)."""
    lengths = set()
    for seed in range(60):
        target, params = Target(seed), SAMPLED[seed % len(SAMPLED)]
        plain: Tokens = ()
        while len(plain) <= DEEPEST:
            p = law_plain(target.after(plain), params)
            plain = (*plain, CHOOSER.choose_one(p, Key(0, len(plain), Purpose.TARGET)))
        shape = grown(random.Random(seed), VOCABULARY, 9, DEEPEST)
        texts = texts_of(shape)
        logits, positions = [target.after(text) for text in texts], [len(text) for text in texts]
        found = by_tensors("match", logits, shape, params, positions, CHOOSER)
        emitted = [*found.run[1:], found.next]
        assert list(plain[: len(emitted)]) == emitted
        lengths.add(len(emitted))
    assert {1, 2, 3} == lengths


@pytest.mark.parametrize(("top_p", "stands"), [(0.75, False), (0.7500001, True)])
def test_nucleus_boundary_is_that_of_all_laws(top_p: float, stands: bool) -> None:  # noqa: FBT001 -- a case
    """A child that top-p leaves out is never accepted; one more bit of mass lets it in (sums without rounding)."""
    assert stands == in_nucleus(torch.tensor(0.75), torch.tensor(top_p, dtype=torch.float64))
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]] * 2, dtype=torch.float64).log().tolist()
    params = SamplingParams(1.0, 0, top_p)
    for reading in READINGS:

        def run(chooser: Enumerator, reading: Reading = reading) -> int:
            return reading("residual", logits, [(0, NO_NODE), (2, 0)], params, [0, 1], chooser).accepted

        law = outcome_law(enumerate_outcomes(run))
        assert (1 / 7 if stands else 0.0) == pytest.approx(law.get(1, 0.0), abs=EXACT)


def test_ties_go_to_the_lowest_token() -> None:
    """Argmax, best tokens, the first candidate of a tree and the greedy walk break ties alike."""
    logits = torch.tensor([[[0.0, 2.0, 2.0, 2.0], [2.0, 2.0, 0.0, 2.0]]])
    rows, root = SamplingRows.of([SamplingParams()]), torch.tensor([3])
    tree = grow_best(logits, root, rows, 1, 3)
    assert [3, 1, 0] == tree.tokens[0].tolist()
    assert [1, 0] == argmax_tokens(logits[0]).tolist() == best_tokens(logits[0], 1)[1][:, 0].tolist()
    verdicts = torch.cat([logits, logits[:, :1]], dim=1)
    found = walk("residual", verdicts, tree, rows, root, tree.depths, CHOOSER, 2)
    assert ([2], [[3, 1, 0]], [[1]]) == (found.accepted.tolist(), found.run.tolist(), found.next.tolist())
