"""Pieces: where tokens come from in `emit`, `set` and `source`, e.g. `next`, `drafts[:a]`, `drafts[1:]`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from fsm_spec.language import expression
from fsm_spec.language.expression import Expr, ExpressionError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PIECE: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*(?:\[(.*)\]\s*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Piece:
    """Name a carry, an operator's result or `mask`, whole or cut to `start .. stop` (None: open end)."""

    name: str
    start: Expr | None = None
    stop: Expr | None = None

    def __str__(self) -> str:
        """Print the piece as a spec spells it."""
        if self.start is None and self.stop is None:
            return self.name
        start = expression.to_text(self.start) if self.start is not None else ""
        stop = expression.to_text(self.stop) if self.stop is not None else ""
        return f"{self.name}[{start}:{stop}]"

    def length(self, whole: Expr) -> Expr:
        """Give the number of tokens, where the whole has `whole` of them."""
        stop = whole if self.stop is None else self.stop
        return stop if self.start is None else expression.subtract(stop, self.start)

    def substitute(self, values: Mapping[str, Expr | int]) -> Piece:
        """Replace names in the bounds."""
        start = None if self.start is None else expression.substitute(self.start, values)
        stop = None if self.stop is None else expression.substitute(self.stop, values)
        return replace(self, start=start, stop=stop)


def parse_piece(text: str) -> Piece:
    """Parse `name`, `name[a:b]`, or `name[i]` (one token); raises ExpressionError."""
    match = _PIECE.fullmatch(text)
    if match is None:
        raise ExpressionError(f"{text[:40]!r} is no piece such as next or drafts[:a]", 0)
    name, bounds = match.groups()
    if bounds is None:
        return Piece(name)
    parts = bounds.split(":")
    if len(parts) > 2:
        raise ExpressionError("a slice has one colon", match.start(2))
    edges: list[Expr | None] = []
    offset = match.start(2)
    for part in parts:
        try:
            edges.append(expression.parse(part) if part.strip() else None)
        except ExpressionError as error:
            raise ExpressionError(str(error), offset + error.offset) from None
        offset += len(part) + 1
    if len(parts) == 2:
        return Piece(name, edges[0], edges[1])
    if edges[0] is None:
        raise ExpressionError("an index stands between the brackets", match.start(2))
    return Piece(name, edges[0], expression.add(edges[0], expression.Const(1)))


def pieces(value: object) -> list[Piece]:
    """Parse what a carry is set to, one piece or a list of them; the value has been checked."""
    return [parse_piece(str(text)) for text in (value if isinstance(value, list) else [value])]
