"""Operators over logits on a GPU: each op against its torch form on the same device, at a model's vocabulary.

Rounding of exp and of sums differs, so of flat laws over many tokens one draw in a hundred may fall on the other side
of a boundary; a wrong bound, a wrong number or a race changes far more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fsm_spec.kernels.acceptance import ACCEPT_RULES, LOSSY_ACCEPT_RULES
from fsm_spec.kernels.fixed import acceptance, sampling, tree, unmask, walk
from fsm_spec.kernels.fixed.law import SamplingColumns
from fsm_spec.kernels.fixed.pages import resize_pages, resize_torch
from fsm_spec.kernels.law import SamplingParams
from fsm_spec.kernels.randomness import Purpose, salted
from fsm_spec.kernels.tree import Tree
from fsm_spec.kernels.unmask import MASKED, UNMASK_RULES
from fsm_spec.kernels.walk import WALK_RULES

N, ROWS, VOCABULARY = 16, 8, 151_936
CHOICES = [
    SamplingParams(),
    SamplingParams(1.0),
    SamplingParams(0.7, 50),
    SamplingParams(1.0, 0, 0.9),
    SamplingParams(0.8, 40, 0.95, 0.02),
]


@pytest.fixture
def draw(device: torch.device) -> torch.Generator:
    """Give a generator of random numbers on the GPU."""
    return torch.Generator(device).manual_seed(1)


@pytest.fixture
def columns(device: torch.device) -> SamplingColumns:
    """Give parameters of every kind."""
    params = [CHOICES[request % len(CHOICES)] for request in range(N)]
    return SamplingColumns.of(params, list(range(N)), device)


def logits_of(draw: torch.Generator, rows: int = ROWS, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Draw logits of a few likely tokens and many others."""
    values = torch.randn((N, rows, VOCABULARY), generator=draw, device=draw.device)
    values[..., :8] += 12
    return values.to(dtype)


def positions_of(draw: torch.Generator, rows: int = ROWS) -> Tensor:
    """Draw the positions of rows."""
    start = torch.randint(0, 9999, (N, 1), generator=draw, device=draw.device)
    return start + torch.arange(rows, device=draw.device)


def without_waiting(call: Callable[..., Any], *inputs: Any, **options: Any) -> Any:  # noqa: ANN401 -- passed on
    """Call an op twice, the second time with every wait for the device an error: the first compiles."""
    call(*inputs, **options)
    torch.cuda.set_sync_debug_mode("error")
    found = call(*inputs, **options)
    torch.cuda.set_sync_debug_mode("default")
    return found


def assert_mostly_equal(expected: Tensor, found: Tensor) -> None:
    """Let one in twenty differ."""
    assert int((expected != found).sum()) <= expected.numel() // 20, f"{expected} {found}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sample(dtype: torch.dtype, draw: torch.Generator, columns: SamplingColumns) -> None:
    """Laws are the torch form's, and tokens but for rounding."""
    inputs = (logits_of(draw, dtype=dtype), columns, positions_of(draw), Purpose.DRAFT, "law")
    expected, laws = sampling.sample_torch(*inputs, exclude=3, want_law=True)
    tokens, found = without_waiting(sampling.sample, *inputs, exclude=3, want_law=True)
    assert_mostly_equal(expected, tokens)
    torch.testing.assert_close(found, laws, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", [*ACCEPT_RULES, *LOSSY_ACCEPT_RULES])
def test_accept(rule: str, draw: torch.Generator, columns: SamplingColumns) -> None:
    """Counts and tokens are the torch form's, but for rounding."""
    logits, positions = logits_of(draw), positions_of(draw)
    drafts = torch.randint(0, 8, (N, ROWS - 1), generator=draw, device=draw.device)
    q = logits_of(draw, ROWS - 1).float().softmax(-1)
    count = torch.arange(N, device=draw.device) % ROWS
    expected = acceptance.accept_torch(rule, logits, drafts, count, columns, positions, q, 4, 0.05, None)
    found = without_waiting(
        acceptance.accept, rule, logits, drafts, count, columns, positions, q=q, top=4, threshold=0.05
    )
    for one, other in zip(expected, found, strict=True):
        assert_mostly_equal(one, other)


@pytest.mark.parametrize("rule", UNMASK_RULES)
def test_unmask(rule: str, draw: torch.Generator, columns: SamplingColumns) -> None:
    """Blocks are the torch form's, but for rounding."""
    logits, positions = logits_of(draw), positions_of(draw)
    tokens = torch.full((N, ROWS), MASKED, device=draw.device)
    tokens[:, 2] = 5
    count = 1 + torch.arange(N, device=draw.device) % ROWS
    quota, turns = torch.full_like(count, 2), torch.arange(N, device=draw.device)
    names = salted(positions, turns.unsqueeze(1))
    proposed = unmask.propose_torch(logits, columns, names, None)
    expected = unmask.fill(rule, tokens, count, *proposed, 0.2, quota, 4.0, None, None, None)
    found = without_waiting(
        unmask.unmask, rule, logits, tokens, count, columns, positions, turns, threshold=0.2, quota=quota, bound=4.0
    )  # fmt: skip
    assert_mostly_equal(expected[1], found[1])


@pytest.mark.parametrize("rule", WALK_RULES)
def test_walk(rule: str, draw: torch.Generator, columns: SamplingColumns) -> None:
    """Paths are the torch form's, but for rounding."""
    logits, positions = logits_of(draw), positions_of(draw)
    parents = torch.tensor([-1, 0, 0, 0, 1, 1, 2, 4], device=draw.device).expand(N, -1)
    depths = torch.tensor([0, 1, 1, 1, 2, 2, 2, 3], device=draw.device).expand(N, -1)
    tokens = torch.randint(0, 8, (N, ROWS), generator=draw, device=draw.device)
    nodes = Tree(tokens, parents, depths, depths.float(), 1 + torch.arange(N, device=draw.device) % ROWS)
    by_rule = walk.match_torch if rule == "match" else walk.residual_torch
    path, _ = by_rule(logits, nodes, columns, positions, 3, None)
    found = without_waiting(walk.walk, rule, logits, nodes, columns, positions, 3)
    assert_mostly_equal(path, found.path)


def test_grow(draw: torch.Generator, columns: SamplingColumns) -> None:
    """Candidates are exact: bfloat16 has many ties, and the lower id is first."""
    logits = logits_of(draw, 3)
    expected, chances = tree.candidates_torch(logits, columns.temperature, 10, 2)
    tokens, found = without_waiting(tree._candidates, logits, columns.temperature, 10, 2)
    assert expected.equal(tokens)
    torch.testing.assert_close(found, chances, rtol=1e-5, atol=1e-4)
    grown = without_waiting(tree.grow_best, logits, tokens[:, 0, 0], columns, 10, 24, exclude=2)
    assert [24] * N == grown.count.tolist()


def test_pages(device: torch.device) -> None:
    """Lanes that give and lanes that take do so in turn."""
    states = []
    want = torch.tensor([0, 5, 3, 8], dtype=torch.int32, device=device)
    for resize in (resize_torch, resize_pages):
        held = torch.tensor([4, 0, 6, 2], dtype=torch.int32, device=device)
        table = torch.arange(32, dtype=torch.int32, device=device).view(4, 8)
        free = torch.arange(32, 97, dtype=torch.int32, device=device)
        count = torch.tensor([32], device=device)
        stays = torch.minimum(held, want)
        resize(torch.arange(4, device=device), stays, stays, want, held, table, free, count)
        given = [table[line, :number].tolist() for line, number in enumerate(want.tolist())]
        states.append((held.tolist(), given, count.tolist()))
    assert states[0] == states[1]
