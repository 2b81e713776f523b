"""Positions for tokens: a request followed with the place in the text that each token stands for, instead of tokens.

Where a spec claims that its text is the target's own, this runs it as the executor would, over all counts that its
operators can give, for the checker's small parameters. The target's row behind a clean text gives the next place; a
draft is nobody's token until a judge accepts it, which makes it the token of that place. So a token that is emitted
twice, out of order or before anybody vouched for it, and KV of another token than the text has there, come out
whatever way they went: through carries, slices, groups or trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Final

from fsm_spec import life_cycle
from fsm_spec.errors import UnhandledEvent
from fsm_spec.language.expression import Const, evaluate, names
from fsm_spec.language.scope import PENDING, sources_of
from fsm_spec.oracle import oracle
from fsm_spec.rules.draft_cache import committed
from fsm_spec.rules.draft_slots import DraftForward, after_round
from fsm_spec.rules.position_forward import Forward
from fsm_spec.rules.position_place import FIRST_DRAFT, MASK, BlockRow, Place, Tokens, Tree
from fsm_spec.rules.soundness import shown_params
from fsm_spec.table import NO_STOP, PREFILL, STOP

if TYPE_CHECKING:
    from fsm_spec.language.findings import Path
    from fsm_spec.language.piece import Piece
    from fsm_spec.plan import ForwardPlan, SegmentPlan
    from fsm_spec.table import Table

# No small number of a spec, so that nothing comes out right because the prompt is as long.
_PROMPT: Final = 11
_ENDLESS: Final = 1_000_000
# Steps that one table may take, a second or two; the shipped specs need 20 under the checker's parameters.
_MOST_STEPS: Final = 20_000


def faults_of(table: Table, within: int | None = None) -> Iterator[tuple[Path, str]]:
    """Report what is emitted, kept or read at another place than its own, and trees beyond their sizes.

    `within` ends the walk after so many steps without a word; else too many are a fault.
    """
    if table.contract not in ("pending", "full"):
        return
    own = [row.index for row in table.rows if not row.built_in]
    origin = [number for number, each in enumerate(table.spec.transitions) for _ in sources_of(each)]
    paths: dict[int, Path] = {
        index: ("transitions", number) for index, number in zip(own, origin, strict=True)
    }
    # Whatever follows from the first one would only repeat it.
    yield from Follower(table, paths, within).walked()[:1]


@dataclass
class Follower:
    """Follow the ways of a request through its rounds; `paths` leads from rows to the file."""

    table: Table
    paths: Mapping[int, Path]
    within: int | None = None
    drafts: int = FIRST_DRAFT
    steps: int = 0
    found: list[tuple[Path, str]] = field(default_factory=list)
    # The places that draft models have drafted for.
    places: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Note whether the spec says anything of its tokens; trees are held to their sizes in any case."""
        claim = self.table.spec.lossless
        self.claims = claim is not None and claim.claim != "no"

    def walked(self) -> list[tuple[Path, str]]:
        """Follow all ways, breadth first, and give what was found."""
        # A carry that nobody could walk through counts as too many steps.
        self.steps = sum(carry.shape[0] or 0 for carry in self.table.carry)
        most = self._most
        todo = [self._start()] if self.steps <= most else []
        met = {place.key(self) for place in todo}
        for place in todo:  # it grows while it is walked
            if self.found:
                break
            for after in self._steps(place):
                key = after.key(self)
                if key not in met:
                    met.add(key)
                    todo.append(after)
        if self.steps > most and self.within is None:
            under = shown_params(self.table.params)
            message = f"rounds cannot be followed within {most:,} steps for {under}"
            self.found.append((("params",), f"{message}; give smaller check values"))
        return self.found

    @property
    def _most(self) -> int:
        return _MOST_STEPS if self.within is None else self.within

    @cached_property
    def read(self) -> frozenset[str]:
        """Name what guards and effects read."""
        exprs = [row.guard for row in self.table.rows if not row.built_in]
        exprs += [value for row in self.table.rows if not row.built_in for _, value in row.sets]
        return frozenset(name for expr in exprs for name in names(expr))

    def draft(self, place: int | None = None) -> int:
        """Give a draft that is nobody's token yet, for a place where one is known."""
        self.drafts -= 1
        if place is not None:
            self.places[self.drafts] = place
        return self.drafts

    def place_of(self, token: int) -> int | None:
        """Give the place that a token stands for; None where nobody knows."""
        return token if token >= 0 else self.places.get(token)

    def looked_up(self, place: Place, size: int) -> Tokens:
        """Give what a lookup found: it goes on behind the text, whose newest token `full` leaves pending."""
        if not self.table.models or self.table.contract == "full":
            return tuple(self.draft() for _ in range(size))
        return tuple(self.draft(place.text + index) for index in range(size))

    def ends(self, columns: Mapping[str, int]) -> dict[str, int]:
        """Count the committed slots of each draft model's cache."""
        return {name: evaluate(committed(each.behind), columns) for name, each in self.table.models.items()}

    def _start(self) -> Place:
        columns = oracle(
            self.table, self.table.new_request(_PROMPT, _ENDLESS), life_cycle.ADMIT, {"hit": 0}
        ).columns
        if self.table.states[columns["state"]].name == PREFILL:
            columns = oracle(self.table, columns, life_cycle.FIRST, {STOP: NO_STOP}).columns
        text = columns["prompt"] + columns["emitted"]
        carries: dict[str, Tokens | Tree] = {}
        for carry in self.table.carry:
            begun = self.table.spec.carry[carry.name].init if carry.name in self.table.spec.carry else None
            size = carry.shape[0] or 0
            if carry.type == "token":
                tokens = tuple(range(columns["kv"], text)) if begun and begun[0].name == "text" else ()
                filling = MASK if begun and begun[-1].name == "mask" else None
                carries[carry.name] = self.filled(tokens, size, filling)
            elif carry.type == "feature":
                known = (columns["kv"] - 1,) if begun and begun[0].name == "features" else ()
                carries[carry.name] = self.filled(known, size, None)
        carries[PENDING] = (text - 1 if self.table.contract == "pending" else text,)
        return Place(columns, carries)

    def filled(self, tokens: Sequence[int], size: int, filling: int | None) -> Tokens:
        """Fill tokens up to a size, with drafts where nothing is given."""
        return (*tokens, *(self.draft() if filling is None else filling for _ in range(size - len(tokens))))[
            :size
        ]

    # One forward -----------------------------------------------------------------------------------------------

    def _steps(self, place: Place) -> Iterator[Place]:
        """Yield where a request may be behind the forward of its state, for all counts of its operators."""
        state = self.table.states[place.columns["state"]]
        if state.forward is None:
            return
        plan = self.table.forwards[state.forward]
        drafting = DraftForward(self, plan, place) if plan.model is not None else None
        if drafting is not None:
            self.found += drafting.faults()
            if self.found:
                return
        rows = self._rows(plan, place)
        args = self.table.events[state.name].args
        ranges = [range(evaluate(a.low, place.columns), evaluate(a.high, place.columns) + 1) for a in args]
        for chosen in product(*ranges):
            self.steps += 1
            if self.steps > self._most:
                return
            counts = {arg.name: value for arg, value in zip(args, chosen, strict=True)}
            run = Forward(self, plan, place, rows, counts, drafting=drafting)
            if not run.operate():
                self.found += run.wrong
                continue  # no outcome of these drafts, or a tree that cannot be
            stop = {STOP: NO_STOP} if self.table.events[state.name].emits else {}
            try:
                done = oracle(self.table, place.columns, state.name, {**counts, **stop})
            except UnhandledEvent:
                continue  # the guards have a finding of their own
            row = self.table.rows[done.transition // 2]
            after = run.moved(row, done.columns)
            found = run.faults(row, after) if self.claims else []
            self.found += found
            if not found:
                at_round = self.table.states[done.columns["state"]].round
                yield replace(after, caches=after_round(self, after, drafting, round_point=at_round))

    def _rows(self, plan: ForwardPlan, place: Place) -> list[BlockRow]:
        """Lay out the live rows of a target's forward; what a draft model runs vouches for nothing."""
        if plan.model is not None:
            return []
        if plan.tree is not None:
            return self._nodes(plan, place)
        mask = plan.mask
        live = [
            (segment, index)
            for segment in plan.segments
            for index in range(evaluate(segment.count, place.columns))
        ]
        numbers = [segment.first + index for segment, index in live]
        texts = {segment.first: self.texts(segment, place) for segment in plan.segments}
        return [
            BlockRow(
                segment.first + index,
                texts[segment.first][index],
                evaluate(segment.at, place.columns) + index,
                not segment.adapter,
                segment.logits == "shifted",
                tuple(n for n in numbers if mask[segment.first + index, n]),
            )
            for segment, index in live
        ]

    def texts(self, segment: SegmentPlan, place: Place) -> list[int]:
        """Give the tokens of the live rows of a segment."""
        count = evaluate(segment.count, place.columns)
        if segment.source.name in ("mask", "noise"):
            return [MASK if segment.source.name == "mask" else self.draft() for _ in range(count)]
        tokens = list(self.piece(segment.source, place, {}, place.columns))
        return [*tokens, *(self.draft() for _ in range(count - len(tokens)))]

    def _nodes(self, plan: ForwardPlan, place: Place) -> list[BlockRow]:
        tree = place.carries.get(plan.tree or "")
        if not isinstance(tree, Tree):
            return []
        segment = plan.segments[0]
        count = min(evaluate(segment.count, place.columns), len(tree.tokens))
        sees: list[tuple[int, ...]] = []
        for node in range(count):
            parent = tree.parents[node]
            sees.append((node,) if parent < 0 else (*sees[parent], node))
        kv = place.columns["kv"]
        return [
            BlockRow(
                node,
                tree.tokens[node],
                kv + len(sees[node]) - 1,
                not segment.adapter,
                segment.logits == "shifted",
                sees[node],
            )
            for node in range(count)
        ]

    def piece(
        self, piece: Piece, place: Place, results: Mapping[str, Tokens | Tree], values: Mapping[str, int]
    ) -> Tokens:
        """Give the tokens of a piece of a carry or result."""
        whole = results.get(piece.name, place.carries.get(piece.name, ()))
        tokens = whole.tokens if isinstance(whole, Tree) else whole
        start = evaluate(piece.start or Const(0), values)
        stop = len(tokens) if piece.stop is None else evaluate(piece.stop, values)
        return tuple(tokens[max(0, start) : max(0, stop)])
