"""Carries filled in part: what is read of a carry never goes beyond what was set.

A carry may be set to fewer tokens than it holds; how many are there is then followed over the whole spec, beside the
columns that the reads hang on. A tiered parameter may have another value behind every round point, so it is followed
with several. The rules ask this only where every name on the way is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Final, NamedTuple

from fsm_spec.language import expression
from fsm_spec.language.expression import Const, Expr, evaluate
from fsm_spec.language.findings import Path, quoted
from fsm_spec.language.linear import difference, simplify
from fsm_spec.language.operators import outputs_of
from fsm_spec.language.piece import Piece, pieces
from fsm_spec.language.scope import Scope, Violation, forward_of, mentions, segment_path, sources, sources_of
from fsm_spec.language.spec import Accept, Budget, Operation, Segment, Transition, Unmask

# What may be set in part; a tree comes whole from its operator.
COUNTED: Final = ("token", "law", "real", "feature")
# Places looked at under one setting of the parameters, and values of one count: of more, the first and the last.
_MOST_PLACES: Final = 4_000
_MOST_COUNTS: Final = 64
_MASK: Final = "mask"


# A piece that is read, where the file says so, and how it is written there.
_Found = tuple[Piece, Path, str]


class _At(NamedTuple):
    """Say where a request is: its columns (None: not known here), and how many entries of each carry are set."""

    state: str
    columns: tuple[int | None, ...]
    filled: tuple[int, ...]


class _Read(NamedTuple):
    """Name a read of a carry, up to which entry it goes, and where the file says so."""

    piece: Piece
    stop: Expr
    path: Path
    text: str


def rules(scope: Scope) -> Iterator[Violation]:
    """Report the first read of each place that goes beyond what is set."""
    carries = tuple(name for name in scope.spec.carry if _partly(scope, name))
    told: set[Path] = set()
    for values in scope.settings() if carries or _cuts(scope) else ():
        for path, message in _Walk.of(scope, values, carries).violations():
            if path not in told:
                told.add(path)
                yield path, message


@dataclass(frozen=True)
class _Walk:
    """Follow a request under one setting of the parameters, and every size of the tiered ones up to that."""

    scope: Scope
    values: Mapping[str, int]
    sizes: tuple[Mapping[str, int], ...]
    columns: tuple[str, ...]
    carries: tuple[str, ...]

    @classmethod
    def of(cls, scope: Scope, values: Mapping[str, int], carries: tuple[str, ...]) -> _Walk:
        """Name what is followed."""
        sizes: list[dict[str, int]] = [dict(values)]
        for name, param in scope.spec.params.items():
            if param.tiered:
                smaller = {size for size in (param.range[0], param.check) if size < values[name]}
                sizes = [{**each, name: size} for each in sizes for size in (values[name], *sorted(smaller))]
        return cls(scope, values, tuple(sizes), tuple(scope.spec.columns), carries)

    def violations(self) -> Iterator[Violation]:
        """Walk all ways, breadth first."""
        todo = [
            (self._start(name), values)
            for name, state in self.scope.spec.states.items()
            if state.start
            for values in self.sizes
        ]
        met = {(at, tuple(values.items())) for at, values in todo}
        for at, values in todo:  # it grows while it is walked
            known = {
                **values,
                **{n: v for n, v in zip(self.columns, at.columns, strict=True) if v is not None},
            }
            found_here = list(self._beyond(at, self._forward_reads(at.state), known))
            yield from found_here[:1]
            for transition in self.scope.spec.transitions:
                # What a forward reads wrongly, its transitions would only repeat.
                if found_here or at.state not in sources_of(transition):
                    continue
                for found in self._counts(at.state, transition, known):
                    yield from self._beyond(at, self._transition_reads(transition), found)
                    yield from self._cut(at.state, transition, found)
                    for step in self._after(at, transition, found, values):
                        key = (step[0], tuple(step[1].items()))
                        if key not in met and len(met) < _MOST_PLACES:
                            met.add(key)
                            todo.append(step)

    def _start(self, state: str) -> _At:
        """Give the place behind the prefill; what a carry begins with fills it."""
        spec = self.scope.spec
        columns = [_value(spec.columns[name].init, self.values) for name in self.columns]
        begun = [
            self._whole(name, self.values)
            if spec.carry[name].init and not _only_text(self.scope, name)
            else 0
            for name in self.carries
        ]
        return _At(state, tuple(columns), tuple(begun))

    def _whole(self, carry: str, values: Mapping[str, int]) -> int:
        length = self.scope.carries[carry].length
        return 1 if length is None else _value(length, values) or 0

    def _counts(
        self, state: str, transition: Transition, known: Mapping[str, int]
    ) -> Iterator[dict[str, int]]:
        """Give what is known where a transition is taken, for all counts that its guard and values read."""
        name = forward_of(self.scope.spec, state)
        read = mentions(transition)
        counts: dict[str, list[int]] = {}
        for op in self.scope.spec.forwards[name].ops if name is not None else ():
            for result, output in outputs_of(op):
                if output.kind != "count" or result not in read:
                    continue
                low, high = (
                    end(op, lambda rows: self.scope.row_count(name or "", rows))
                    for end in (output.least, output.most)
                )
                first, last = _value(low, known), _value(high, known)
                if first is not None and last is not None:
                    counts[result] = _edges(first, last)
        for chosen in product(*counts.values()):
            found = {**known, **dict(zip(counts, chosen, strict=True))}
            if _value(transition.when, found) != 0:
                yield found

    def _after(
        self, at: _At, transition: Transition, known: Mapping[str, int], values: Mapping[str, int]
    ) -> Iterator[tuple[_At, Mapping[str, int]]]:
        """Give the places that a transition leads to: of every size, where that is a round point."""
        target = self.scope.spec.states.get(transition.to)
        if target is None:
            return
        columns = [
            _value(expression.parse(transition.set[name]), known) if name in transition.set else old  # type: ignore[arg-type]
            for name, old in zip(self.columns, at.columns, strict=True)
        ]
        filled = [
            self._set(at.state, name, transition, known) if name in transition.set else old
            for name, old in zip(self.carries, at.filled, strict=True)
        ]
        place = _At(transition.to, tuple(columns), tuple(filled))
        yield from ((place, size) for size in (self.sizes if target.round else (values,)))

    def _set(self, state: str, carry: str, transition: Transition, known: Mapping[str, int]) -> int:
        """Count what a transition sets of a carry; nothing is trusted where that is not known here."""
        whole = self._whole(carry, known)
        results = self.scope.results.get(forward_of(self.scope.spec, state) or "", {})
        total = 0
        for piece in pieces(transition.set[carry]):
            value = self.scope.carries.get(piece.name) or results.get(piece.name)
            if piece.name == _MASK or value is None:
                return whole
            length = _value(piece.length(value.length or Const(1)), known)
            if length is None:
                return 0
            total += length
        return total

    def _cut(self, state: str, transition: Transition, known: Mapping[str, int]) -> Iterator[Violation]:
        """Report pieces of results that end beyond what the operator gives."""
        results = self.scope.results.get(forward_of(self.scope.spec, state) or "", {})
        for piece, path, text in _transition_pieces(self.scope, transition):
            value = results.get(piece.name)
            if value is None or value.length is None or piece.stop is None or value.kind not in COUNTED:
                continue
            whole, stop = _value(value.length, known), _value(piece.stop, known)
            if whole is not None and (stop is None or stop > whole):
                asked = "more than" if stop is None else f"{stop} of"
                read = {*expression.names(piece.stop), *self.scope.spec.params} & set(known)
                where = ", ".join(f"{name} = {known[name]}" for name in known if name in read)
                message = f"{text} may read {asked} the {whole} that {piece.name} has in the state {state} ({where})"
                yield path, f"{message}; cut it by counts and columns of the spec, within its length"

    def _forward_reads(self, state: str) -> list[_Read]:
        """List what the forward of a state reads of carries."""
        name = forward_of(self.scope.spec, state)
        if name is None:
            return []
        forward = self.scope.spec.forwards[name]
        found: list[_Found] = []
        for index, segment in enumerate(forward.segments):
            found += _segment_reads(segment, segment_path(name, forward, index))
        for index, op in enumerate(forward.ops):
            found += _operator_reads(op, self.scope.results_most(name, op), ("forwards", name, "ops", index))
        return self._counted(found)

    def _transition_reads(self, transition: Transition) -> list[_Read]:
        """List what a transition reads of carries."""
        return self._counted(_transition_pieces(self.scope, transition))

    def _counted(self, found: list[_Found]) -> list[_Read]:
        reads = []
        for piece, path, text in found:
            stop = self._stop(piece)
            if piece.name in self.carries and stop is not None:
                reads.append(_Read(piece, stop, path, text))
        return reads

    def _stop(self, piece: Piece) -> Expr | None:
        value = self.scope.carries.get(piece.name)
        return piece.stop or (None if value is None else value.length)

    def _beyond(self, at: _At, reads: list[_Read], known: Mapping[str, int]) -> Iterator[Violation]:
        """Report the reads that go beyond what is set where the request is."""
        for read in reads:
            stop = _value(read.stop, known)
            first = _value(read.piece.start or Const(0), known)
            filled = at.filled[self.carries.index(read.piece.name)]
            whole = self._whole(read.piece.name, known)
            if stop is None or first is None:
                # What hangs on kv or the text is not followed; all of a carry may be read wherever all is set.
                if filled < whole:
                    message = f"{read.text} hangs on more than counts and columns of the spec"
                    yield (
                        read.path,
                        f"{message}, and {filled} of {whole} {_are(filled)} set in the state {at.state}",
                    )
                continue
            if stop <= filled or first >= stop:
                continue
            names = {*expression.names(read.stop), *self.scope.spec.params} & set(known)
            where = ", ".join(f"{name} = {known[name]}" for name in known if name in names)
            message = (
                f"{read.text} reads {stop} of {quoted(read.piece.name)}, of which {filled} {_are(filled)} set"
            )
            remedy = f"cut it at what is set, or set all of {read.piece.name}"
            yield read.path, f"{message} in the state {at.state} ({where}); {remedy}"


def _transition_pieces(scope: Scope, transition: Transition) -> list[_Found]:
    """List the pieces that a transition emits and sets carries to."""
    index = scope.spec.transitions.index(transition)
    found: list[_Found] = [
        (piece, ("transitions", index, "emit", number), str(piece))
        for number, piece in enumerate(transition.emit)
    ]
    for target, value in transition.set.items():
        if target in scope.carries:
            found += [(piece, ("transitions", index, "set", target), str(piece)) for piece in pieces(value)]
    return found


def _only_text(scope: Scope, carry: str) -> bool:
    """Tell whether a carry begins with text alone, of which nothing is there yet when a request starts to decode."""
    init = scope.spec.carry[carry].init or []
    return isinstance(scope.spec.contract, str) and bool(init) and all(piece.name == "text" for piece in init)


def _cuts(scope: Scope) -> bool:
    """Tell whether some transition cuts an operator's result."""
    return any(
        piece.stop is not None and piece.name not in scope.carries
        for transition in scope.spec.transitions
        for piece, _, _ in _transition_pieces(scope, transition)
    )


def _segment_reads(segment: Segment, path: Path) -> Iterator[_Found]:
    """Yield what a segment reads: of one source as many entries as it has rows."""
    several = len(sources(segment)) > 1
    for piece in sources(segment):
        yield piece if several else _first(piece, segment.count), (*path, "source"), str(piece)
    if segment.features is not None:
        yield _first(segment.features, segment.count), (*path, "features"), str(segment.features)


def _operator_reads(op: Operation, most: Expr | None, path: Path) -> Iterator[_Found]:
    """Yield what an operator reads; `most` bounds the drafts that an accept judges."""
    if isinstance(op, Accept):
        drafts = op.drafts if most is None else _first(op.drafts, most)
        yield drafts, (*path, "drafts"), str(op.drafts)
        if op.q is not None:  # every judged draft has a law of its own
            yield replace(drafts, name=op.q), (*path, "q"), op.q
    elif isinstance(op, Unmask):
        yield Piece(op.block), (*path, "block"), op.block
    elif isinstance(op, Budget) and op.earlier is not None:
        yield Piece(op.earlier), (*path, "earlier"), op.earlier


def _partly(scope: Scope, carry: str) -> bool:
    """Tell whether some transition may set a carry to fewer entries than it holds."""
    whole = scope.carries[carry].length
    if scope.carries[carry].kind not in COUNTED or whole is None:
        return False
    if _only_text(scope, carry):
        return True
    for transition in scope.spec.transitions:
        for state in sources_of(transition) if carry in transition.set else ():
            values = dict(scope.carries) | scope.results.get(forward_of(scope.spec, state) or "", {})
            set_ = pieces(transition.set[carry])
            lengths = [
                piece.length(values[piece.name].length or Const(1)) for piece in set_ if piece.name != _MASK
            ]
            if len(lengths) == len(set_) and difference(expression.total(lengths), whole) != Const(0):
                return True
    return False


def _first(piece: Piece, count: Expr) -> Piece:
    """Cut a piece to its first entries."""
    start = piece.start or Const(0)
    return Piece(piece.name, piece.start, simplify(expression.add(start, count)))


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _value(expr: Expr | None, known: Mapping[str, int]) -> int | None:
    """Evaluate an expression; None where something in it is not known here."""
    if expr is None or not set(expression.names(expr)) <= set(known):
        return None
    try:
        return evaluate(expr, known)
    except ZeroDivisionError:
        return None


def _edges(first: int, last: int) -> list[int]:
    """List the values of a count, or the first and last of very many."""
    if last - first < _MOST_COUNTS:
        return list(range(first, last + 1))
    half = _MOST_COUNTS // 2
    return [*range(first, first + half), *range(last - half + 1, last + 1)]
