"""Row plans: what one forward computes for one request, as data for executor, simulator and checker.

A plan has R rows, the largest count under the parameters. Counts may read columns; a row past its count is dead:
it has no slot, no logits and no cost. Positions and slots are expressions over columns; the block mask is static.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fsm_spec.language.expression import Const, to_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from fsm_spec.language.expression import Expr
    from fsm_spec.language.operators import Kind
    from fsm_spec.language.piece import Piece

Fate = Literal["keep", "provisional", "open", "scratch"]
KINDS = ("committed", "provisional", "scratch")
KIND_OF_FATE: dict[str, str] = {
    "keep": "committed",
    "provisional": "provisional",
    "open": "scratch",
    "scratch": "scratch",
}


@dataclass(frozen=True)
class SegmentPlan:
    """Hold one segment: row i stands at position `at + i` and slot `slot + i`, for i in 0 .. count - 1."""

    name: str
    source: Piece
    first: int
    count: Expr
    max_count: int
    at: Expr
    slot: Expr
    adapter: bool
    logits: Literal["none", "shifted", "own"]
    kv: Fate
    # The group that the rows belong to; -1 outside of groups.
    group: int = -1
    # Hidden states beside the source, in rows of some draft models.
    features: Piece | None = None
    # Whether the rows have queries; without, only their K and V are written.
    query: bool = True

    def content(self) -> dict[str, Any]:
        """Give the plan as JSON values, the form that the digest reads."""
        return {
            "name": self.name,
            "source": str(self.source),
            "count": to_text(self.count),
            "at": to_text(self.at),
            "slot": to_text(self.slot),
            "adapter": self.adapter,
            "logits": self.logits,
            "kv": self.kv,
            "group": self.group,
            **({} if self.features is None else {"features": str(self.features)}),
            **({} if self.query else {"query": False}),
        }


@dataclass(frozen=True)
class OutputPlan:
    """Name one output: its kind in the registry of operators, and its length (a count's bounds) over columns."""

    name: str
    kind: Kind
    least: Expr
    most: Expr


@dataclass(frozen=True)
class OperatorPlan:
    """Hold one operator with its inputs by name; `draft` tells draft randomness from the target's.

    `read` names carries and results by what the operator reads them as (q, block, tree, root), `numbers` are its
    integers over columns (size, left, threshold, ...).
    """

    key: str
    rule: str
    outputs: tuple[OutputPlan, ...]
    rows: tuple[str, ...] = ()
    drafts: Piece | None = None
    read: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, Expr] = field(default_factory=dict)
    freeze: bool = False
    draft: bool = False

    @property
    def op(self) -> str:
        """Name the operator without its rule: `accept`."""
        return self.key.partition(":")[0]

    @property
    def out(self) -> tuple[str, ...]:
        """List the names of the outputs."""
        return tuple(output.name for output in self.outputs)

    @property
    def judges(self) -> bool:
        """Tell whether it judges drafts: its first count says how many of them stand."""
        return self.op in ("accept", "walk")

    @property
    def root(self) -> int:
        """Count the tokens that stand before the first draft among those accepted: the root of a tree."""
        return int(self.op == "walk")

    @property
    def accepted(self) -> str:
        """Name what a row emits to emit accepted drafts: the carry judged, or the run along a tree's path."""
        return self.drafts.name if self.drafts is not None else self.out[2]

    @property
    def counts(self) -> tuple[OutputPlan, ...]:
        """List the outputs that guards and effects may read."""
        return tuple(output for output in self.outputs if output.kind == "count")

    def number(self, name: str) -> int:
        """Give a number that is the same for all requests."""
        value = self.numbers[name]
        assert isinstance(value, Const), f"{name} reads columns"
        return value.value

    @property
    def rule_options(self) -> dict[str, float]:
        """Give the numbers of the rule that are the same for all requests, as kernels and readings take them."""
        options: dict[str, float] = {}
        for name in ("threshold", "bound"):
            if name in self.numbers:
                options[name] = self.number(name) / 1000  # a spec writes thousandths
        if "top" in self.numbers:
            options["top"] = self.number("top")
        return options

    def content(self) -> dict[str, Any]:
        """Give the operator as JSON values, the form that the digest reads."""
        return {
            "key": self.key,
            "rule": self.rule,
            "rows": list(self.rows),
            "drafts": str(self.drafts) if self.drafts else None,
            "read": dict(self.read),
            "numbers": {name: to_text(value) for name, value in self.numbers.items()},
            "freeze": self.freeze,
            "out": list(self.out),
        }


@dataclass(frozen=True)
class ForwardPlan:
    """Hold the rows of one forward and the operators on its logits."""

    name: str
    attention: Literal["causal", "bidirectional", "block-causal", "groups", "tree"]
    segments: tuple[SegmentPlan, ...]
    operators: tuple[OperatorPlan, ...]
    # Whether rows of a group that are no heads see the rows of their group behind them.
    both_ways: bool = False
    # The draft model that runs; None for the target.
    model: str | None = None

    @property
    def rows(self) -> int:
        """Count the rows of the plan, dead ones included."""
        return sum(segment.max_count for segment in self.segments)

    @property
    def target_rows(self) -> int:
        """Count the rows that the target runs, dead ones included: none where a draft model does."""
        return self.rows if self.model is None else 0

    @property
    def tree(self) -> str | None:
        """Name the tree carry whose nodes are the rows."""
        return self.segments[0].source.name if self.attention == "tree" else None

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """Give the block mask, bool [rows, rows]: whether row i sees row j; a tree's rows see at most this."""
        full = np.ones((self.rows, self.rows), dtype=np.bool_)
        if self.attention in ("bidirectional", "block-causal"):
            return full
        return self._groups() if self.attention == "groups" else np.tril(full)

    def _groups(self) -> NDArray[np.bool_]:
        """Let heads see the heads up to themselves, and the others these and the rows of their own group."""
        most = [segment.max_count for segment in self.segments]
        group = np.repeat([segment.group for segment in self.segments], most)
        head = np.repeat([segment.kv != "scratch" for segment in self.segments], most)
        heads = head[None, :] & (group[None, :] <= group[:, None])
        inside = ~head[:, None] & (group[None, :] == group[:, None])
        if not self.both_ways:
            inside = np.tril(inside)
        mask: NDArray[np.bool_] = heads | inside
        return mask

    def segment(self, name: str) -> SegmentPlan:
        """Find a segment by name; raises KeyError."""
        for segment in self.segments:
            if segment.name == name:
                return segment
        raise KeyError(name)

    def content(self) -> dict[str, Any]:
        """Give the plan as JSON values, the form that the digest reads."""
        return {
            **({} if self.model is None else {"model": self.model}),
            "attention": self.attention,
            "both_ways": self.both_ways,
            "segments": [segment.content() for segment in self.segments],
            "operators": [operator.content() for operator in self.operators],
        }
