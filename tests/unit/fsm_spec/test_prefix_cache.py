"""The rules of a prefix cache: what enters, how far a newcomer starts, and with whom a page is counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fsm_spec.compile import compile_table
from fsm_spec.life_cycle import CHUNK, FIRST
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool, Waiting, plan
from fsm_spec.prefix_cache import commits, committed, counted_before, lookahead, refusal, usable
from fsm_spec.table import Table


def table_of(name: str) -> Table:
    """Compile a shipped spec."""
    return compile_table(load(name).spec)


@pytest.mark.parametrize(
    ("spec", "refused", "ahead"),
    [
        ("ar", False, 0),
        ("isd", False, 0),
        ("fast_diffuser", False, 0),
        ("sdar", True, 0),
        ("fast_dllm", True, 0),
        ("draft_lm", False, 0),
        ("dflash", False, 0),
        ("eagle3", False, 1),
        ("mtp", False, 1),
    ],
)
def test_kept_rows_say_what_may_enter(spec: str, refused: bool, ahead: int) -> None:  # noqa: FBT001 -- a case's
    """KV of rows that see their whole block depends on later text; a draft model may read one token further."""
    table = table_of(spec)
    assert refused == bool(refusal(table))
    assert ahead == lookahead(table)


def test_adapter_rows_never_enter() -> None:
    """No shipped spec keeps such rows, as the rules refuse it; a table that did would be found out."""
    table = table_of("uno_linear")
    assert not refusal(table)
    assert any(segment.adapter for each in table.forwards.values() for segment in each.segments)
    forwards = {
        name: replace(each, segments=tuple(replace(segment, kv="keep") for segment in each.segments))
        for name, each in table.forwards.items()
    }
    assert "adapter" in refusal(replace(table, forwards=forwards))


@pytest.mark.parametrize(
    ("spec", "found", "fill", "pages"),
    [
        ("ar", 3, 48, 2),  # a row is left to run
        ("ar", 3, 49, 3),
        ("ar", 2, 100, 2),
        ("ar", 2, 0, 0),
        ("fast_diffuser", 3, 1000, 2),  # whole blocks of 32
    ],
)
def test_usable_pages(spec: str, found: int, fill: int, pages: int) -> None:
    """A hit is a number of pages and of blocks, and never the whole text."""
    assert pages == usable(table_of(spec), 16, found, fill)


def test_committed_is_the_least_of_all_caches() -> None:
    """A draft model that is behind has slots that it will write again."""
    table = table_of("eagle3")
    columns = {name: np.zeros(2, np.int32) for name in table.column_names}
    columns["state"][:] = table.codes["extend"]
    columns["kv"][:] = 20, 1
    columns["fresh"][:], columns["due"][:] = (3, 0), (1, 1)
    assert [16, 0] == committed(table, "verify", columns).tolist()
    assert [19, 0] == committed(table, CHUNK, columns).tolist()
    columns["state"][0] = table.codes["end"]
    assert 0 == committed(table, "verify", columns)[0]
    assert 19 == committed(table, FIRST, columns)[0]
    assert (True, True, False, False) == tuple(
        commits(table, event) for event in ("verify", "first", "preempt", "admit")
    )


def test_a_page_is_counted_with_its_oldest_holder() -> None:
    """What the younger ones are counted with returns when they are preempted, and no more."""
    assert [0, 2, 3, 0] == counted_before([[7, 8, 9], [7, 8, 4], [7, 8, 4], [5]])


def test_preemption_returns_what_nobody_older_holds() -> None:
    """Two young requests share 4 pages that the oldest needs: preempting both must be known to free them."""
    table = table_of("ar")
    columns = {name: np.zeros(3, np.int32) for name in table.column_names}
    columns["state"][:] = table.codes[table.start.name]
    columns["prompt"][:], columns["limit"][:], columns["kv"][:] = (16, 16, 16), (9, 9, 9), (16, 16, 16)
    columns["emitted"][:] = 1
    # The oldest holds 4 pages and needs a fifth; 4 + 4 + 1 are all of the pool.
    pages = np.array([4, 4, 1], np.int32)
    decided = plan(table, Policy(), Pool(9, 4), columns, pages, [], np.array([0, 0, 4], np.int32))
    assert (1, 2) == decided.preempt
    assert [0] == decided.run.tolist()


def test_found_pages_that_nobody_holds_are_counted() -> None:
    """Pages of a hit that rest in the cache leave it, so that they are no longer there for others."""
    table = table_of("ar")
    none = {name: np.zeros(0, np.int32) for name in table.column_names}
    nobody = np.zeros(0, np.int32)
    resting = plan(table, Policy(), Pool(5, 4), none, nobody, [Waiting(17, 3, 0, hit=4, held=0)])
    held = plan(table, Policy(), Pool(5, 4), none, nobody, [Waiting(17, 3, 0, hit=4, held=4)])
    assert ((5,), (1,)) == (resting.admit, resting.admit_chunks)
    assert ((1,), (1,)) == (held.admit, held.admit_chunks)
