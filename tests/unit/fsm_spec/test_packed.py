"""Packing: what fits a word, and words of states."""

from __future__ import annotations

import pytest

from fsm_spec.checker.automaton import Automaton
from fsm_spec.checker.composition import ENDED, Held
from fsm_spec.checker.packed import fit_word
from fsm_spec.checker.packed_rounds import RoundsPacking
from fsm_spec.checker.places import ENDED_CODE, Settings
from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool


def packing(pool: Pool, *, symmetry: bool = True) -> RoundsPacking:
    """Pack three requests of a plain decoder."""
    automaton = Automaton(compile_table(load("ar").spec, check=True))
    arrivals = [automaton.values(automaton.table.new_request(1, 4))]
    return RoundsPacking(automaton, Policy(), pool, 3, arrivals, symmetry=symmetry)


def test_fields_fit_a_word() -> None:
    """A field has room for all codes and pages; more requests than fit are refused with the largest number."""
    assert 8 == fit_word(7, 48, 2)
    with pytest.raises(UserError, match="8 requests of 48 local states do not pack into one word; 7 at most"):
        fit_word(8, 48, 2)
    assert 1 == fit_word(16, 2, 0)
    with pytest.raises(UserError, match="16 at most"):
        fit_word(17, 2, 0)


def test_a_large_pool_needs_no_wider_field() -> None:
    """What a request can own is bounded by its longest case, not by the pool."""
    bits = [
        dict(zip(Settings._fields, packing(Pool(pages, 2)).model.settings.tolist(), strict=False))["bits"]
        for pages in (9, 10**12)
    ]
    assert bits[0] == bits[1]


def test_words_of_states() -> None:
    """The start is the word 0; with symmetry requests that have ended come last."""
    packed = packing(Pool(9, 2))
    assert 0 == packed.word((None, None, None))
    values = packed.automaton.values(packed.table.new_request(1, 4))
    assert packed.word((ENDED, Held(values), None)) == packed.word((Held(values), None, ENDED))
    apart = packing(Pool(9, 2), symmetry=False)
    assert apart.word((ENDED, Held(values), None)) != apart.word((Held(values), None, ENDED))
    settings = dict(zip(Settings._fields, packed.model.settings.tolist(), strict=False))
    assert ENDED_CODE == settings["ended_code"]
