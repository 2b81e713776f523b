"""One forward of a request whose tokens are places in the text: its operators, and what its transition does with them.

Which ways are followed, and what is behind them, is in `positions.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from fsm_spec.language.expression import evaluate
from fsm_spec.language.scope import PENDING, shown_values
from fsm_spec.rules.position_place import FIRST_DRAFT, MASK, BlockRow, Place, Tokens, Tree

if TYPE_CHECKING:
    from fsm_spec.language.findings import Path
    from fsm_spec.language.piece import Piece
    from fsm_spec.plan import ForwardPlan, OperatorPlan
    from fsm_spec.rules.draft_slots import DraftForward
    from fsm_spec.rules.positions import Follower
    from fsm_spec.table import Row


@dataclass
class Forward:
    """Run the operators of one forward for given counts, and what the transition does with their results."""

    follower: Follower
    plan: ForwardPlan
    before: Place
    rows: list[BlockRow]
    counts: Mapping[str, int]
    results: dict[str, Tokens | Tree] = field(default_factory=dict)
    # What accepted drafts have become: places of the text.
    became: dict[int, int] = field(default_factory=dict)
    path: Tokens = ()
    wrong: list[tuple[Path, str]] = field(default_factory=list)
    # The rows of a draft model, where one runs.
    drafting: DraftForward | None = None

    @cached_property
    def by_number(self) -> dict[int, BlockRow]:
        """Give the live rows by their numbers in the plan."""
        return {each.number: each for each in self.rows}

    @property
    def _values(self) -> dict[str, int]:
        return {**self.before.columns, **self.counts}

    def operate(self) -> bool:
        """Run all operators in order; False where drafts cannot have this outcome."""
        if not all(self._operator(op, index) for index, op in enumerate(self.plan.operators)):
            return False
        # What stands is known behind all judges.
        for op in self.plan.operators:
            if op.op == "capture" and self.drafting is None:
                self.results[op.out[0]] = self._captured(op)
        return True

    def _captured(self, op: OperatorPlan) -> Tokens:
        """Give the places of rows whose hidden states are handed on; those of rows that saw another text have none."""
        rows = [row for name in op.rows for row in self._of(name)]
        if "path" in op.read:
            rows = [self.by_number[number] for number in self.path]
        return tuple(row.position if self._clean(row) else self.follower.draft() for row in rows)

    def _operator(self, op: OperatorPlan, index: int) -> bool:
        path: Path = ("forwards", self.plan.name, "ops", index)
        read = [row for name in op.rows for row in self._of(name)]
        out = op.out
        if op.op == "sample":
            self.results[out[0]] = tuple(self._predicted(row) for row in read)
        elif op.op == "accept":
            return self._accepted(op, read, path)
        elif op.op == "walk":
            return self._walked(op, path)
        elif op.op == "unmask":
            self.results[out[1]] = self._unmasked(op)
        elif op.op == "grow":
            self.results[out[0]] = self._grown(op, len(read), path)
        elif op.op == "prune":
            self.results[out[0]] = self._pruned(op)
        elif op.op == "lookup":
            self.results[out[0]] = self.follower.looked_up(self.before, op.number("size"))
        return not self.wrong

    def _of(self, name: str) -> list[BlockRow]:
        if self.drafting is not None:
            return self.drafting.block(name)
        segment = self.plan.segment(name)
        return [row for row in self.rows if segment.first <= row.number < segment.first + segment.max_count]

    def _token(self, token: int) -> int:
        return self.became.get(token, token)

    def _clean(self, row: BlockRow) -> bool:
        """Tell whether a row stands for the text up to its position: base weights, and each token at its place."""
        kv = self.before.columns["kv"]
        by_number = {each.number: each for each in self.rows}
        seen = sorted(
            (by_number[n].position, self._token(by_number[n].token), by_number[n].base) for n in row.sees
        )
        if len(seen) != row.position + 1 - kv:
            return False  # before a list is made: a position may be any number
        return seen == [(place, place, True) for place in range(kv, row.position + 1)]

    def _predicted(self, row: BlockRow) -> int:
        if self.drafting is not None:
            return self.follower.draft(row.position + row.shifted)
        if row.shifted and self._clean(row):
            return row.position + 1
        return self.follower.draft()

    def _accept(self, draft: int, judge: BlockRow, path: Path) -> bool:
        """Make an accepted draft the token of its place; False where it is another token for sure."""
        draft = self._token(draft)
        given = self._predicted(judge)
        if given < 0:
            return True  # nobody vouches for it: it stays a draft
        if draft <= FIRST_DRAFT:
            meant = self.follower.place_of(draft)
            if meant not in (None, given):
                message = (
                    f"the draft of place {meant - self.before.text + 1} behind the text is judged as that of"
                )
                message = f"{message} place {given - self.before.text + 1}{self._where()}"
                self.wrong.append((path, f"{message}; let each draft stand where it was drafted for"))
                return False
            self.became[draft] = given
            return True
        return draft == given

    def _accepted(self, op: OperatorPlan, judges: Sequence[BlockRow], path: Path) -> bool:
        assert op.drafts is not None
        drafts = self.follower.piece(op.drafts, self.before, {}, self._values)
        count = self.counts[op.out[0]]
        if count >= len(judges) or count > len(drafts):
            return False
        if not all(self._accept(drafts[index], judges[index], (*path, "drafts")) for index in range(count)):
            return False
        self.results[op.out[1]] = (self._predicted(judges[count]),)
        return True

    def _walked(self, op: OperatorPlan, path: Path) -> bool:
        tree = self.before.carries.get(op.read["tree"])
        count = self.counts[op.out[0]]
        whole = _longest(tree.parents) if isinstance(tree, Tree) else ()
        if len(whole) > op.number("depth") + 1:
            message = f"the tree is {len(whole) - 1} deep, and the walk goes down {op.number('depth')}{self._where()}"
            self.wrong.append(((*path, "depth"), f"{message}; give the edges of its longest path"))
            return False
        way = whole[: count + 1]
        if not isinstance(tree, Tree) or len(way) <= count or len(self.rows) <= max(way):
            return False
        for before, node in pairwise(way):
            if not self._accept(tree.tokens[node], self.rows[before], (*path, "tree")):
                return False
        self.path = way
        depth = op.number("depth")
        self.results[op.out[2]] = self.follower.filled(
            [self._token(tree.tokens[n]) for n in way], depth + 1, None
        )
        self.results[op.out[3]] = (self._predicted(self.rows[way[-1]]),)
        return True

    def _unmasked(self, op: OperatorPlan) -> Tokens:
        block = self.before.carries[op.read["block"]]
        assert not isinstance(block, Tree)
        masked = [index for index, token in enumerate(block) if token == MASK]
        filled = set(masked[: len(masked) - self.counts[op.out[0]]])
        return tuple(self.follower.draft() if index in filled else token for index, token in enumerate(block))

    def _grown(self, op: OperatorPlan, rows: int, path: Path) -> Tree:
        """Grow a tree in which the way that a walk takes is never the first: rows kept densely would show."""
        top, size = op.number("top"), op.number("size")
        if "tree" in op.read:
            tree = self.before.carries[op.read["tree"]]
            assert isinstance(tree, Tree)
            tokens, parents = [*tree.tokens], [*tree.parents]
        else:
            root = self.results.get(op.read["root"], self.before.carries.get(op.read["root"], (MASK,)))
            assert not isinstance(root, Tree)
            tokens, parents = [root[0]], [-1]
        if op.rule == "level":
            added = [len(tokens) - 1] * top
            if rows < 1:
                message = f"a level of {top} is grown from no row{self._where()}"
                self.wrong.append(((*path, "rows"), f"{message}; a row gives the children of each node"))
            if len(tokens) + top > size:
                message = f"a level of {top} is added to {len(tokens)} nodes, and the tree holds {size}{self._where()}"
                self.wrong.append(((*path, "size"), f"{message}; end the loop before, or let it hold more"))
        else:
            added = _below(size - 1, min(top, 2), rows)
            if size > 1 and rows < 1:
                message = f"a tree of {size} nodes is grown from no row{self._where()}"
                self.wrong.append(((*path, "rows"), f"{message}; a row gives the law of each depth"))
        for parent in added:
            place = self.follower.place_of(tokens[parent]) if self.drafting is not None else None
            tokens.append(self.follower.draft(None if place is None else place + 1))
        return Tree(tuple(tokens), (*parents, *added))

    def _pruned(self, op: OperatorPlan) -> Tree:
        tree = self.results[op.read["tree"]]
        assert isinstance(tree, Tree)
        size = op.number("size")
        chosen = list(_longest(tree.parents)[:size])
        for node in range(len(tree.tokens)):
            if node not in chosen and len(chosen) < size and (tree.parents[node] in chosen or node == 0):
                chosen.append(node)
        order = {node: index for index, node in enumerate(sorted(chosen))}
        return Tree(
            tuple(tree.tokens[node] for node in order),
            tuple(order.get(tree.parents[node], -1) for node in order),
        )

    # The transition --------------------------------------------------------------------------------------------

    def moved(self, row: Row, columns: Mapping[str, int]) -> Place:
        """Give the place behind a transition: carries are set from old values, accepted drafts are places now."""
        carries = dict(self.before.carries)
        for name, pieces in row.carries:
            carry = next(each for each in self.follower.table.carry if each.name == name)
            size = carry.shape[0] or 0
            if carry.type == "tree":
                known = self.results.get(pieces[0].name, self.before.carries.get(pieces[0].name))
                if known is not None:
                    carries[name] = known
            elif carry.type in ("token", "feature"):
                mask = any(piece.name == "mask" for piece in pieces)
                tokens = [t for piece in pieces if piece.name != "mask" for t in self._piece(piece)]
                carries[name] = self.follower.filled(tokens, size, MASK if mask else None)
        caches = {
            name: {slot: each._replace(token=self._token(each.token)) for slot, each in slots.items()}
            for name, slots in self.before.caches.items()
        }
        return Place(columns, {name: self._renamed(value) for name, value in carries.items()}, caches)

    def _renamed(self, value: Tokens | Tree) -> Tokens | Tree:
        if isinstance(value, Tree):
            return value._replace(tokens=tuple(map(self._token, value.tokens)))
        return tuple(map(self._token, value))

    def _piece(self, piece: Piece) -> Tokens:
        found = self.follower.piece(piece, self.before, self.results, self._values)
        return tuple(map(self._token, found))

    def faults(self, row: Row, after: Place) -> list[tuple[Path, str]]:
        """Compare what a transition emits, keeps and leaves pending with the text."""
        path = self.follower.paths[row.index]
        wrong = self._kept(row) if self.plan.model is None else None
        if wrong is not None:
            message = f"{wrong} where the text has another token{self._where()}"
            return [((*path, "keep"), f"{message}; keep rows of the text, in its order")]
        place = self.before.text
        for number, piece in enumerate(row.emit):
            for token in self._piece(piece):
                if token != place:
                    message = f"{piece} emits {self._said(token)} where the text goes on{self._where()}"
                    return [
                        (
                            (*path, "emit", number),
                            f"{message}; emit each token of the text once, in its order",
                        )
                    ]
                place += 1
        target = self.follower.table.state(row.target) if row.target in self.follower.table.codes else None
        newest = after.text - (self.follower.table.contract == "pending")
        pending = after.carries[PENDING]
        if target is not None and target.round and pending != (newest,) and not isinstance(pending, Tree):
            message = f"pending is {self._said(pending[0])} where a round starts{self._where()}"
            return [((*path, "set", PENDING), f"{message}; let it be the token behind the KV that is kept")]
        return []

    def _kept(self, row: Row) -> str | None:
        """Say what a kept row holds where it is not the text's token of its slot, or saw another text."""
        count = evaluate(row.keep, self._values)
        by_number = self.by_number
        order = [each.number for each in self.rows]
        if row.keep_rows is not None:
            order = list(self.path)
        elif row.keep_stride is not None:
            order = [index * row.keep_stride for index in range(count)]
        for index, number in enumerate(order[:count]):
            kept, slot = by_number.get(number), self.before.columns["kv"] + index
            if kept is None:
                return "keep counts a row that is not there"
            if kept.position != slot or self._token(kept.token) != slot or not self._clean(kept):
                return f"{self._name(number)} keeps KV of {self._said(self._token(kept.token))}"
        return None

    def _name(self, number: int) -> str:
        """Name the segment of a row, without its group."""
        inside = (each for each in self.plan.segments if each.first <= number < each.first + each.max_count)
        return next(inside).name.partition("[")[0]

    def _said(self, token: int) -> str:
        if token == MASK:
            return "a mask"
        if token < 0:
            return "a token that the target has not vouched for"
        behind = token - self.before.text
        if behind < 0:
            return "a token that stands in the text already"
        return f"the token of place {behind + 1} behind the text"

    def _where(self) -> str:
        state = self.follower.table.states[self.before.columns["state"]].name
        return f" in the state {state}{shown_values({**self.follower.table.params, **self.counts})}"


def _below(count: int, top: int, depth: int) -> list[int]:
    """Give the parents of nodes below a root: `top` below the newest of each level; what is left hangs on the root."""
    parents: list[int] = []
    newest = level = 0
    while len(parents) < count:
        parents += [newest if level < depth else 0] * min(top, count - len(parents))
        newest, level = len(parents), level + 1
    return parents


def _longest(parents: Sequence[int]) -> Tokens:
    """Give the way from the root to the deepest node, the last of those."""
    ways: list[Tokens] = []
    for node, parent in enumerate(parents):
        ways.append((node,) if parent < 0 else (*ways[parent], node))
    return max(reversed(ways), key=len)
