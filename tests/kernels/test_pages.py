"""The kernel that moves pages between requests against its torch form."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_spec.kernels.fixed.pages import resize_pages as op
from fsm_spec.kernels.fixed.pages import resize_torch
from fsm_spec.kernels.triton.pages import resize_pages

LINES, TABLE = 6, 4


def drawn(held: list[int]) -> tuple[torch.Tensor, ...]:
    """Return the state in which lines hold so many pages and all others are free."""
    pages = LINES * TABLE
    table = torch.zeros(LINES, TABLE, dtype=torch.int32)
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(sum(held)))
    used = 0
    for line, count in enumerate(held):
        table[line, :count] = order[used : used + count]
        used += count
    free = torch.full((pages + 1,), -1, dtype=torch.int32)
    free[: pages - used] = order[used:]
    return torch.tensor(held, dtype=torch.int32), table, free, torch.tensor([pages - used])


@settings(derandomize=True, max_examples=12, deadline=None)
@given(
    st.lists(st.integers(0, TABLE), min_size=LINES, max_size=LINES),
    st.lists(st.integers(0, TABLE), min_size=1, max_size=LINES),
    st.permutations(range(LINES)),
    st.integers(0, 2),
)
def test_equals_the_torch_form(held: list[int], want: list[int], order: list[int], anew: int) -> None:
    """A page that two requests hold, or that nobody holds, is lost KV."""
    lines = torch.tensor(order[: len(want)])
    wish = torch.tensor(want, dtype=torch.int32)
    have = torch.tensor([held[line] for line in order[: len(want)]], dtype=torch.int32)
    # Lines of newcomers give all back and take all anew; the others keep what both tables hold.
    stays = torch.where(torch.arange(len(want)) < anew, 0, torch.minimum(have, wish)).int()
    parts = (lines, stays, stays, wish)
    expected, found, called = drawn(held), drawn(held), drawn(held)
    resize_torch(*parts, *expected)
    resize_pages(*parts, *found)
    op._backend_fns["cuda"](*parts, *called)
    for state in (found, called):
        counts, table, free, count = state
        assert expected[0].tolist() == counts.tolist()
        assert expected[3].tolist() == count.tolist()
        holding = [table[line, :number].tolist() for line, number in enumerate(counts.tolist())]
        assert holding == [expected[1][line, :number].tolist() for line, number in enumerate(counts.tolist())]
        everything = sorted([*itertools.chain(*holding), *free[: int(count)].tolist()])
        assert list(range(LINES * TABLE)) == everything
        assert expected[2][: int(count)].tolist() == free[: int(count)].tolist()
