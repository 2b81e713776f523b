"""What is read of carries and results, up to which entry: the forwards' rows and operators, the transitions' pieces.

`filled.py` holds all of it to what is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from fsm_spec.language import expression
from fsm_spec.language.expression import Const, Expr, to_text
from fsm_spec.language.findings import Path
from fsm_spec.language.linear import simplify
from fsm_spec.language.operations import Accept, Operation
from fsm_spec.language.operators import carries_of
from fsm_spec.language.piece import Piece, pieces
from fsm_spec.language.scope import Scope, Value, forward_of, segment_path, sources
from fsm_spec.language.spec import Segment, Transition

# What has entries that are counted one by one.
COUNTED: Final = ("token", "law", "real", "feature", "tree", "index")


@dataclass(frozen=True)
class Read:
    """Name what is read: entries `start` to `stop` of a carry or result, of which a slice gives those to `most`.

    Where it is `exact`, the slice must end there: hidden states of several segments stand one after the other.
    """

    name: str
    start: Expr
    stop: Expr
    path: Path
    text: str
    most: Expr | None = None
    reader: str = ""
    exact: bool = False


def of_forward(scope: Scope, state: str) -> list[Read]:
    """List what the forward of a state reads of carries."""
    name = forward_of(scope.spec, state)
    if name is None:
        return []
    forward = scope.spec.forwards[name]
    found: list[Read] = []
    for index, segment in enumerate(forward.segments):
        found += _segment(scope, segment, segment_path(name, forward, index))
    for index, op in enumerate(forward.ops):
        found += _operator(scope, op, scope.results_most(name, op), ("forwards", name, "ops", index))
    return found


def of_transition(scope: Scope, transition: Transition, state: str) -> list[Read]:
    """List what a transition reads of carries and of the results of a state's forward."""
    values = dict(scope.carries) | scope.results.get(forward_of(scope.spec, state) or "", {})
    index = scope.spec.transitions.index(transition)
    found: list[tuple[Piece, Path]] = []
    for number, piece in enumerate(transition.emit):
        found.append((piece, ("transitions", index, "emit", number)))
    for target, value in transition.set.items():
        if target in scope.carries:
            found += [(piece, ("transitions", index, "set", target)) for piece in pieces(value)]
    return [
        _read(piece, length, path)
        for piece, path in found
        if (length := _length(values.get(piece.name))) is not None
    ]


def _length(value: Value | None) -> Expr | None:
    return None if value is None or value.kind not in COUNTED else value.length


def _read(piece: Piece, length: Expr, path: Path) -> Read:
    return Read(piece.name, piece.start or Const(0), piece.stop or length, path, str(piece))


def _segment(scope: Scope, segment: Segment, path: Path) -> Iterator[Read]:
    """Yield what a segment reads: of one source as many entries as it has rows."""
    several = len(sources(segment)) > 1
    rows = f"{to_text(segment.count)} rows of {segment.name}"
    for piece in sources(segment):
        length = _length(scope.carries.get(piece.name))
        if length is not None:
            whole = _read(piece, length, (*path, "source"))
            first = _first(whole, piece, segment.count, rows)
            yield whole if several else first if segment.query else _exactly(first, length)
    if segment.features is not None:
        length = _length(scope.carries.get(segment.features.name))
        if length is not None:
            whole = _read(segment.features, length, (*path, "features"))
            yield _exactly(_first(whole, segment.features, segment.count, rows), length)


def _operator(scope: Scope, op: Operation, most: Expr | None, path: Path) -> Iterator[Read]:
    """Yield what an operator reads; `most` bounds the drafts that an accept judges."""
    if isinstance(op, Accept):
        length = _length(scope.carries.get(op.drafts.name))
        if length is None:
            return
        whole = _read(op.drafts, length, (*path, "drafts"))
        drafts = whole if most is None else _first(whole, op.drafts, most, op.op)
        yield drafts
        if op.q is not None:  # every judged draft has a law of its own
            yield replace(drafts, name=op.q, path=(*path, "q"), text=op.q)
        return
    for key, _, piece in carries_of(op):
        length = _length(scope.carries.get(piece.name))
        if length is not None:
            yield _read(piece, length, (*path, key))


def _first(whole: Read, piece: Piece, count: Expr, reader: str) -> Read:
    """Cut a read to its first entries; a slice must give as many."""
    stop = simplify(expression.add(whole.start, count))
    return replace(whole, stop=stop, most=piece.stop, reader=reader)


def _exactly(first: Read, length: Expr) -> Read:
    return replace(first, most=first.most or length, exact=True)
