"""Packed compositions: the arrays that the compiled search reads, and words of states.

A local state is a code, a global state the codes of its requests in one word. What fills the arrays is in
`packed_rounds.py` (requests that move by the scheduler's rounds) and `packed_actions.py` (one event at a time).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fsm_spec.checker import properties
from fsm_spec.checker.places import MOST_REQUESTS, REQUESTS, SCRATCH_ROWS, TIERS, Local, Settings
from fsm_spec.errors import UserError
from fsm_spec.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from fsm_spec.table import Table

WORD_BITS = 63


class Model(NamedTuple):
    """Hold the arrays that `compiled.py` reads, in the order of its arguments; all int64."""

    settings: NDArray[np.int64]
    local: NDArray[np.int64]
    lists: NDArray[np.int64]
    options: NDArray[np.int64]
    prefills: NDArray[np.int64]
    admits: NDArray[np.int64]
    arrivals: NDArray[np.int64]
    scratch: NDArray[np.int64]
    queue: NDArray[np.int64]


def fit_word(requests: int, codes: int, page_bits: int) -> int:
    """Give the bits of a request's field; raises UserError naming the most requests that fit a word."""
    bits = max(1, (codes - 1).bit_length()) + page_bits
    most = min(WORD_BITS // bits, MOST_REQUESTS)
    if requests > most:
        raise UserError(
            f"{counted(requests, 'request')} of {codes} local states do not pack into one word; "
            f"{most} at most, or smaller parameters"
        )
    return bits


def model(
    settings: Settings,
    local: Sequence[Local],
    lists: Sequence[int],
    options: Sequence[tuple[int, ...]],
    prefills: Sequence[Sequence[int]] = (),
    admits: Sequence[Sequence[int]] = (),
    arrivals: Sequence[int] = (),
    tiers: Sequence[int] = (0,),
) -> Model:
    """Write the arrays of a composition.

    `tiers` give by running requests the first row of the tables of `local`, `prefills` and `admits` that then count.
    """
    places = [*tiers, *[tiers[-1]] * (MOST_REQUESTS + 1 - len(tiers))]
    return Model(
        np.array([*settings, *places], np.int64),
        np.array(local, np.int64),
        np.array(lists, np.int64),
        np.array(options, np.int64),
        _square(prefills),
        _square(admits),
        np.array(arrivals, np.int64),
        np.zeros((SCRATCH_ROWS, settings.requests), np.int64),
        np.zeros((settings.requests, 3), np.int64),
    )


def tier_offsets(model: Model) -> list[int]:
    """List where the facts and lists of each size begin in the arrays."""
    places = model.settings[TIERS:][: int(model.settings[REQUESTS]) + 1]
    return sorted({int(place) for place in places})


def codes_of(model: Model) -> int:
    """Count the local states: the arrays hold their facts once for each size."""
    return len(model.local) // len(tier_offsets(model))


def _square(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    width = max((len(row) for row in rows), default=0)
    return np.array([[*row, *[-1] * (width - len(row))] for row in rows], np.int64).reshape(len(rows), width)


def sentences_of(table: Table) -> list[str]:
    """List the properties that a move can break; their places are their bits. The last is the liveness property."""
    return [*properties.built_in(table), *table.always, properties.eventually(table)]


def bits_of(sentences: Iterable[str], known: Sequence[str]) -> int:
    """Give the bits of sentences among the known ones."""
    return sum(1 << known.index(sentence) for sentence in set(sentences))


def word_of(fields: Sequence[int], packed: Model) -> int:
    """Put the fields of requests into one word, the first one lowest."""
    bits = int(packed.settings[Settings._fields.index("bits")])
    return sum(value << (index * bits) for index, value in enumerate(fields))
