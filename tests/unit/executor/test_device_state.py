"""Pages, pieces and levels of the resident runner, each against the plain form that it stands for."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from shipped_specs import SPECS, sizes

from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.executor.block import ancestors as ancestors_of_one
from fsm_spec.executor.device.levels import levels_of
from fsm_spec.executor.device.pieces import most_pieces, piece_sizes, pieces_of, row_bucket, rows_for
from fsm_spec.executor.device.rows import ancestors
from fsm_spec.executor.device.state import DeviceState, Sizes
from fsm_spec.language.expression import evaluate
from fsm_spec.launch import Chunk
from fsm_spec.load import load
from fsm_spec.oracle import oracle
from fsm_spec.table import NO_STOP, STOP, Table


def state_of(lines: int, pages: int) -> DeviceState:
    """Return the state of a few lines with some pages."""
    table = compile_table(load("ar").spec, {})
    sizes = Sizes(lines=lines, pages=pages, page_size=4, text=8, table=6, vocabulary=10)
    return DeviceState(table, table.carry, sizes, "cpu")


def resize(state: DeviceState, lines: list[int], wanted: list[int]) -> None:
    """Let lines hold so many pages, those in front as before."""
    want = torch.tensor(wanted, dtype=torch.int32)
    stays = torch.minimum(state.held[lines], want)
    state.resize(torch.tensor(lines), stays, stays, want)


def test_no_page_is_lost_or_held_twice() -> None:
    """Random growth and release of several lines at once, from an empty pool to a full one and back."""
    source = random.Random(0)
    state = state_of(lines=4, pages=12)
    held = [0] * 4
    for _ in range(200):
        chosen = source.sample(range(4), source.randint(1, 4))
        wanted = list(held)
        for line in chosen:
            rest = 12 - sum(wanted) + wanted[line]
            wanted[line] = source.randint(0, min(6, rest))
        resize(state, [*chosen, state.dump], [*(wanted[line] for line in chosen), 0])
        held = wanted
        assert [*held, 0, 0] == state.held.tolist()
        owned = [page for line in range(4) for page in state.block_table[line, : held[line]].tolist()]
        free = state.free[: int(state.free_count)].tolist()
        assert list(range(12)) == sorted(owned + free)


def test_pages_that_stay_keep_their_order() -> None:
    """Growth and release act on the end of a line's table, where its newest slots are."""
    state = state_of(lines=2, pages=8)
    resize(state, [0, 1], [3, 2])
    first = state.block_table[0, :3].tolist()
    resize(state, [0, 1], [2, 4])
    assert state.block_table[1, 2:4].tolist() == state.taken(2).tolist()
    assert first[:2] == state.block_table[0, :2].tolist()
    slots = torch.tensor([[0, 5, 7]])
    found = state.physical(torch.tensor([0]), slots, torch.tensor([[True, True, False]]))
    assert [[4 * first[0], 4 * first[1] + 1, -1]] == found.tolist()


def test_a_node_sees_its_ancestors() -> None:
    """By doubling, what the host finds by walking from parent to parent."""
    source = np.random.default_rng(0)
    trees = [np.array([-1, *(source.integers(0, node) for node in range(1, 13))]) for _ in range(5)]
    trees.append(np.arange(-1, 12))
    found = ancestors(torch.from_numpy(np.stack(trees)))
    for tree, mask in zip(trees, found, strict=True):
        assert torch.equal(ancestors_of_one(tree), mask)


def random_round(
    table: Table, columns: dict[str, int], source: random.Random
) -> tuple[list[str], dict[str, int]]:
    """Return the states met in one round whose results are drawn, and the columns behind it."""
    met = []
    while True:
        name = table.states[columns["state"]].name
        met.append(name)
        args = {
            arg.name: source.randint(evaluate(arg.low, columns), evaluate(arg.high, columns))
            for arg in table.events[name].args
        }
        stop = {STOP: NO_STOP} if table.events[name].emits else {}
        columns = oracle(table, columns, name, {**args, **stop}).columns
        after = table.states[columns["state"]]
        if after.round or after.built_in:
            return met, columns


@pytest.mark.parametrize("spec", sorted(SPECS))
def test_levels_hold_every_way_of_a_round(spec: str) -> None:
    """Whatever the results, launch k of a round meets a state that level k runs, and no round has more launches."""
    table = compile_table(load(spec).spec, sizes(spec, 4))
    levels = [{name for states in level for name in states} for level in levels_of(table)]
    source = random.Random(1)
    longest = 0
    for drawn in range(60):
        if drawn >= 10 and longest == len(levels):
            break
        columns = oracle(table, table.new_request(8, 10**6), "admit", {"hit": 0}).columns
        if table.states[columns["state"]].name == "prefill":
            stop = {STOP: NO_STOP} if table.events["first"].emits else {}
            columns = oracle(table, columns, "first", stop).columns
        for _ in range(5):
            names, columns = random_round(table, columns, source)
            assert all(name in level for name, level in zip(names, levels, strict=False))
            longest = max(longest, len(names))
    assert longest == len(levels)


def test_a_round_without_a_visible_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host cannot plan what it cannot count."""
    monkeypatch.setattr("fsm_spec.executor.device.levels.MOST_LAUNCHES", 1)
    with pytest.raises(UserError, match="use a policy without lag"):
        levels_of(compile_table(load("draft_lm").spec, {}))


def test_rows_of_chunks_are_of_few_sizes() -> None:
    """Every size fits, and at most a third is dead: 64 pieces, 2,048 tokens, are of 12 sizes."""
    sizes = {rows: row_bucket(rows) for rows in range(1, 2049)}
    assert all(rows <= size <= max(rows * 3 // 2, 1) for rows, size in sizes.items())
    assert 12 == len({size for rows, size in sizes.items() if rows <= 64})


def test_a_launch_has_few_numbers_of_pieces() -> None:
    """No more than requests and tokens can need, and never more than 64: each number is a graph of each phase."""
    assert [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64] == piece_sizes(most_pieces(2048, 256, 131_072, 32))
    assert 64 == most_pieces(100_000, 1, 131_072, 32)
    assert (1, 3, 12) == (
        most_pieces(2048, 1, 20, 32),
        most_pieces(40, 2, 900, 32),
        most_pieces(2048, 2, 161, 32),
    )


@pytest.mark.parametrize(
    ("lengths", "rows"), [([1], 32), ([33], 64), ([1500], 1536), ([5, 7, 2000], 128), ([40] * 30, 64)]
)
def test_where_shapes_are_free_pieces_are_long_and_full(lengths: list[int], rows: int) -> None:
    """A long prompt is one piece; short ones beside it do not take rows that its length asks for."""
    assert rows == rows_for(lengths, 1)
    assert 0 == rows_for(lengths, 24) % 24 <= rows_for(lengths, 24) - rows


@pytest.mark.parametrize(
    ("start", "tokens", "unit"), [(0, 1, 1), (7, 70, 1), (5, 27, 8), (5, 28, 8), (13, 99, 8)]
)
def test_pieces_hold_a_chunk_once(start: int, tokens: int, unit: int) -> None:
    """Each token is of one piece, all but the first begin where a block does, and the last one ends the chunk."""
    rows = 32
    pieces = pieces_of(Chunk(0, start, tokens, last=True), 4, rows, unit)
    assert list(range(start, start + tokens)) == [
        at for _, begin, count, *_ in pieces for at in range(begin, begin + count)
    ]
    assert all(begin % unit + count <= rows for _, begin, count, *_ in pieces)
    assert all(begin % unit == 0 for _, begin, *_ in pieces[1:])
    assert [(0, 0)] * (len(pieces) - 1) + [(1, tokens)] == [tuple(each[3:]) for each in pieces]
