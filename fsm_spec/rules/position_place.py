"""Where a request is whose tokens are places in the text: its columns, its carries, its draft caches, its rows.

It is followed in `positions.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from fsm_spec.rules.positions import Follower

# A place in the text is its number from 0; drafts and noise count down from here, each another.
MASK: Final = -1
FIRST_DRAFT: Final = -2
Tokens = tuple[int, ...]


class Tree(NamedTuple):
    """Hold the nodes of a tree: their tokens and parents, -1 for the root."""

    tokens: Tokens
    parents: Tokens


class Slot(NamedTuple):
    """Hold what a row of a draft model has left in a slot: its position and token, and whether later rows read it."""

    row: str
    position: int
    token: int
    open: bool


@dataclass(frozen=True)
class Place:
    """Say where a request is: its columns, what its carries hold, and the slots of draft caches that may be dropped.

    A hidden state of the target is the place of the row that gave it.
    """

    columns: Mapping[str, int]
    carries: Mapping[str, Tokens | Tree]
    caches: Mapping[str, Mapping[int, Slot]] = field(default_factory=dict)

    @property
    def text(self) -> int:
        """Count the tokens of the text so far."""
        return self.columns["prompt"] + self.columns["emitted"]

    def key(self, follower: Follower) -> tuple[object, ...]:
        """Give what the further way depends on: places from the end of the text, drafts by their order."""
        drafts: dict[int, int] = {}
        # Committed KV stays, so a token before it fits nowhere again, however far back it stands.
        end = min([self.columns["kv"], *follower.ends(self.columns).values()])

        def moved(token: int) -> object:
            place = follower.place_of(token)
            known = None if place is None else place - self.text if place >= end else "past"
            if token >= 0:
                return known
            return "mask" if token == MASK else (drafts.setdefault(token, len(drafts)), known)

        columns = {**self.columns, "kv": self.columns["kv"] - self.text}
        gone = {"prompt", "limit", "emitted"} - follower.read
        held = [
            (name, tuple(map(moved, value.tokens)), value.parents)
            if isinstance(value, Tree)
            else (name, tuple(map(moved, value)))
            for name, value in sorted(self.carries.items())
        ]
        caches = [
            (name, slot - self.text, each.row, each.position - self.text, moved(each.token))
            for name, slots in sorted(self.caches.items())
            for slot, each in sorted(slots.items())
        ]
        return tuple(value for name, value in columns.items() if name not in gone), tuple(held), tuple(caches)


class BlockRow(NamedTuple):
    """Hold a live row: its number in the plan, its token and position, and the rows of the block that it sees."""

    number: int
    token: int
    position: int
    base: bool
    shifted: bool
    sees: tuple[int, ...]


def depths_of(parents: Sequence[int]) -> Tokens:
    """Give the depth of each node below its root."""
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return tuple(depths)
