"""Row plans: what one forward computes for one request, as data for executor, simulator and checker.

A plan has R rows, the largest count under the parameters. Counts may read columns; a row past its count is dead:
it has no slot, no logits and no cost. Positions and slots are expressions over columns; the block mask is static.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fsm_spec.expression import to_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fsm_spec.expression import Expr
    from fsm_spec.piece import Piece

Fate = Literal["keep", "provisional", "scratch"]
KINDS = ("committed", "provisional", "scratch")
KIND_OF_FATE: dict[str, str] = {"keep": "committed", "provisional": "provisional", "scratch": "scratch"}


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
        }


@dataclass(frozen=True)
class OperatorPlan:
    """Hold one operator with its inputs by name; `draft` tells draft randomness from the target's."""

    op: str
    rule: str
    out: tuple[str, ...]
    rows: tuple[str, ...] = ()
    drafts: Piece | None = None
    q: str | None = None
    size: int = 0
    shortest: int = 0
    longest: int = 0
    draft: bool = False

    @property
    def key(self) -> str:
        """Name the reading in the registry of operators, e.g. `accept:match`."""
        return f"{self.op}:{self.rule}" if self.op == "accept" else self.op

    def content(self) -> dict[str, Any]:
        """Give the operator as JSON values, the form that the digest reads."""
        return {
            "op": self.op,
            "rule": self.rule,
            "rows": list(self.rows),
            "drafts": str(self.drafts) if self.drafts else None,
            "q": self.q,
            "size": self.size,
            "shortest": self.shortest,
            "longest": self.longest,
            "out": list(self.out),
        }


@dataclass(frozen=True)
class ForwardPlan:
    """Hold the rows of one forward and the operators on its logits."""

    name: str
    attention: Literal["causal", "bidirectional"]
    segments: tuple[SegmentPlan, ...]
    operators: tuple[OperatorPlan, ...]

    @property
    def rows(self) -> int:
        """Count the rows of the plan, dead ones included."""
        return sum(segment.max_count for segment in self.segments)

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """Give the block mask, bool [rows, rows]: whether row i sees row j."""
        full = np.ones((self.rows, self.rows), dtype=np.bool_)
        return np.tril(full) if self.attention == "causal" else full

    def segment(self, name: str) -> SegmentPlan:
        """Find a segment by name; raises KeyError."""
        for segment in self.segments:
            if segment.name == name:
                return segment
        raise KeyError(name)

    def content(self) -> dict[str, Any]:
        """Give the plan as JSON values, the form that the digest reads."""
        return {
            "attention": self.attention,
            "segments": [segment.content() for segment in self.segments],
            "operators": [operator.content() for operator in self.operators],
        }
