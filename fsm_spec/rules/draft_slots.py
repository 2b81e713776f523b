"""Slots of a draft model's cache: each holds the token, or the hidden state, of the place that it stands for.

One forward of a draft model, over a request that `positions.py` follows. What it keeps must be the text's, in order;
of what it reads, committed slots are right since they were kept so, and every slot between them and its own rows must
hold an open row of this round at the position that nothing else takes. A draft has the place that it was drafted for.
Output is right whatever a draft cache holds; a slot of another token costs accepted drafts, and nothing shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from fsm_spec.language.expression import evaluate
from fsm_spec.language.scope import shown_values
from fsm_spec.rules.draft_cache import committed
from fsm_spec.rules.draft_rows import BESIDE
from fsm_spec.rules.position_place import MASK, BlockRow, Place, Slot, Tree, depths_of

if TYPE_CHECKING:
    from fsm_spec.language.findings import Path
    from fsm_spec.plan import ForwardPlan, SegmentPlan
    from fsm_spec.rules.positions import Follower

Fault = tuple["Path", str]
_IN_ORDER: Final = "let open rows stand one behind the other, from the end of the cache"


class DraftRow(NamedTuple):
    """Hold a live row of a draft model; `state` is the place of the hidden state that it reads, if it reads one."""

    segment: SegmentPlan
    number: int
    token: int
    position: int
    slot: int
    state: int | None


class DraftForward:
    """Lay out the rows of a draft model's forward, and judge what they keep and read."""

    def __init__(self, follower: Follower, plan: ForwardPlan, before: Place) -> None:
        assert plan.model is not None, "the target's rows are laid out in positions.py"
        self.follower = follower
        self.plan = plan
        self.model = plan.model
        self.before = before
        model = follower.table.models[self.model]
        # What stands at a position is that position's token, or the one behind it.
        self.beside = int(model.kind in BESIDE)
        self.end = evaluate(committed(model.behind), before.columns)
        self.slots = before.caches.get(self.model, {})
        tree = before.carries.get(plan.tree or "")
        self.tree = tree if isinstance(tree, Tree) else None
        self.rows = [row for segment in plan.segments for row in self._rows(segment)]

    def _rows(self, segment: SegmentPlan) -> Iterator[DraftRow]:
        columns = self.before.columns
        texts = self.follower.texts(segment, self.before)
        at, slot = evaluate(segment.at, columns), evaluate(segment.slot, columns)
        states: tuple[int, ...] = tuple(texts) if not segment.query else ()
        if segment.features is not None:
            states = self.follower.piece(segment.features, self.before, {}, columns)
        first = evaluate(segment.source.start, columns) if segment.source.start is not None else 0
        depths = depths_of(self.tree.parents) if self.tree is not None else ()
        for index in range(evaluate(segment.count, columns)):
            # The nodes of a tree stand by their depth, and lie one behind the other.
            node = first + index
            further = depths[node] if 0 <= node < len(depths) else index
            state = states[index] if index < len(states) else None
            yield DraftRow(segment, node, texts[index], at + further, slot + index, state)

    def block(self, name: str) -> list[BlockRow]:
        """Give the rows of a segment as operators read them: they propose, and have no number of the target's."""
        return [
            BlockRow(
                -1,
                row.token,
                row.position + self.beside,
                base=False,
                shifted=row.segment.logits == "shifted",
                sees=(),
            )
            for row in self.rows
            if row.segment.name == name
        ]

    def written(self) -> dict[int, Slot]:
        """Give what the rows that do not stay have left in their slots."""
        return {
            row.slot: Slot(row.segment.name, row.position, row.token, row.segment.kv == "open")
            for row in self.rows
            if row.segment.kv != "keep"
        }

    # Judging ---------------------------------------------------------------------------------------------------

    def faults(self) -> Iterator[Fault]:
        """Report rows that keep or read another token than that of their place, and slots that hold another."""
        yield from self._kept()
        for row in self.rows:
            if row.segment.kv != "keep" and row.segment.query:
                yield from self._placed(row)
        front = next((row for row in self.rows if row.segment.query), None)
        if front is not None:
            yield from self._context(front)

    def _kept(self) -> Iterator[Fault]:
        kept = (row for row in self.rows if row.segment.kv == "keep")
        for end, row in enumerate(kept, self.end):
            name, place = row.segment.name, row.position + self.beside
            if (row.position, row.slot) != (end, end):
                message = (
                    f"{name} keeps the row of position {self._at(row.position)} in slot {self._at(row.slot)}"
                )
                message += f", and the cache ends at {self._at(end)}{self._where()}"
                yield self._path(row, "at"), f"{message}; let kept rows start where the cache ends"
            known = self.follower.place_of(row.token)
            if row.segment.query and (
                row.token != place if self.follower.claims else known not in (None, place)
            ):
                message = f"{name} keeps KV of {self._said(row.token)} at position {self._at(row.position)}"
                message += f", where that of place {self._at(place)} belongs{self._where()}"
                way = "let its source hold the tokens that the cache lacks, in the order of the text"
                yield self._path(row, "source"), f"{message}; {way}"
            if row.state is not None and row.state >= 0 and row.state != row.position:
                message = f"{name} reads the hidden state of place {self._at(row.state)}"
                message += f" at position {self._at(row.position)}{self._where()}"
                key = "features" if row.segment.query else "source"
                yield (
                    self._path(row, key),
                    f"{message}; let the carry hold the states of the rows not yet read",
                )

    def _placed(self, row: DraftRow) -> Iterator[Fault]:
        place, due = self.follower.place_of(row.token), row.position + self.beside
        if place in (None, due):
            return
        over = self.slots.get(row.slot)
        lost = f", and overwrites the open row {over.row}" if over is not None and over.open else ""
        message = f"{row.segment.name} reads {self._said(row.token)} at position {self._at(row.position)}"
        message += f", where that of place {self._at(due)} belongs{lost}{self._where()}"
        yield self._path(row, "at"), f"{message}; let at be the position of its first token"

    def _context(self, front: DraftRow) -> Iterator[Fault]:
        """Judge the slots between the committed ones and the first row: all of them are read."""
        silent = {row.slot: row.position for row in self.rows if not row.segment.query}
        seen: dict[int, int] = {}
        for slot in range(self.end, front.slot):
            held = self.slots.get(slot)
            if slot not in silent and held is None:
                yield self._unread(
                    front, f"reads slot {self._at(slot)}, to which no row of this round was written"
                )
                return
            if slot not in silent and held is not None and not held.open:
                what = f"reads slot {self._at(slot)}, which held the scratch row {held.row}"
                yield self._unread(front, what, f"write kv: open on {held.row}")
                return
            position = silent[slot] if held is None or slot in silent else held.position
            if self.tree is None and position in seen:
                both = f"{self._at(seen[position])} and {self._at(slot)}"
                yield self._unread(front, f"reads position {self._at(position)} twice, in the slots {both}")
                return
            seen[position] = slot
        if self.tree is not None:
            yield from self._ancestors(front, self.tree)
            return
        for position in range(self.end, front.position):
            if position not in seen:
                yield self._unread(front, f"reads no row of position {self._at(position)}")
                return

    def _ancestors(self, front: DraftRow, tree: Tree) -> Iterator[Fault]:
        """Hold the slots in front of a tree's rows to the nodes before them, in order: so the mask reads them."""
        last = self.rows[-1].number
        if last >= len(tree.tokens):
            message = (
                f"{front.segment.name} reads node {last} of a tree of {len(tree.tokens)} nodes{self._where()}"
            )
            yield self._path(front, "source"), f"{message}; set its carry to the grown tree first"
            return
        first = front.number - (front.slot - self.end)
        for slot in range(self.end, front.slot):
            node = first + slot - self.end
            held = self.slots.get(slot)
            if held is not None and (node < 0 or held.token != tree.tokens[node]):
                what = (
                    f"takes slot {self._at(slot)} for node {node} of its tree, and {held.row} wrote another"
                )
                yield self._unread(front, what)
                return
        for row in self.rows:
            node = tree.parents[row.number] if row.number < len(tree.parents) else -1
            while node >= 0:
                place = self.follower.place_of(tree.tokens[node])
                if node < first and place is not None and place >= self.end + self.beside:
                    yield self._unread(row, f"reads no row of node {node}, from which it hangs")
                    return
                node = tree.parents[node]

    def _unread(self, row: DraftRow, what: str, way: str = _IN_ORDER) -> Fault:
        message = f"{row.segment.name} {what}{self._where()}"
        return self._path(row, "slot" if row.segment.slot != row.segment.at else "at"), f"{message}; {way}"

    # Words -----------------------------------------------------------------------------------------------------

    def _path(self, row: DraftRow, key: str) -> Path:
        return ("forwards", self.plan.name, "rows", self.plan.segments.index(row.segment), key)

    def _at(self, place: int) -> str:
        """Say a place as a spec writes it, from kv."""
        off = place - self.before.columns["kv"]
        return "kv" if not off else f"kv {'+' if off > 0 else '-'} {abs(off)}"

    def _said(self, token: int) -> str:
        place = self.follower.place_of(token)
        if place is None:
            return "a mask" if token == MASK else "a draft of no known place"
        return f"the {'token' if token >= 0 else 'draft'} of place {self._at(place)}"

    def _where(self) -> str:
        state = self.follower.table.states[self.before.columns["state"]].name
        return f" in the state {state}{shown_values(self.follower.table.params)}"


def after_round(
    follower: Follower, place: Place, drafted: DraftForward | None, *, round_point: bool
) -> Mapping[str, Mapping[int, Slot]]:
    """Give what the draft caches hold behind a transition, above their committed slots; nothing at a round point."""
    if round_point:
        return {}
    caches = dict(place.caches)
    if drafted is not None:
        caches[drafted.model] = {**caches.get(drafted.model, {}), **drafted.written()}
    ends = follower.ends(place.columns)
    return {name: {s: held for s, held in slots.items() if s >= ends[name]} for name, slots in caches.items()}
