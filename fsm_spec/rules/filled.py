"""Carries filled in part: what is read of a carry or a result lies within what is there.

A carry may be set to fewer tokens than it holds; how many are there is then followed over the whole spec, beside the
columns that the reads hang on. A tiered parameter may have another value behind every round point, so it is followed
with several. The rules ask this only where every name on the way is known; what is read is in `carry_reads.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Final, NamedTuple

from fsm_spec.language import expression
from fsm_spec.language.expression import Const, Expr, evaluate
from fsm_spec.language.findings import quoted
from fsm_spec.language.linear import bounds, difference
from fsm_spec.language.piece import Piece, pieces
from fsm_spec.language.scope import Scope, Violation, forward_of, mentions, shown_values, sources_of
from fsm_spec.language.spec import Transition
from fsm_spec.rules import carry_reads
from fsm_spec.rules.carry_reads import Read

# What may be set in part; a tree comes whole from its operator.
PARTLY: Final = ("token", "law", "real", "feature")
# Steps tried under one setting of the parameters: a second or two; a spec that needs more is refused.
_MOST_STEPS: Final = 100_000
_MASK: Final = "mask"


class _At(NamedTuple):
    """Say where a request is: its columns (None: not known here), and how many entries of each carry are set."""

    state: str
    columns: tuple[int | None, ...]
    filled: tuple[int, ...]


@dataclass(frozen=True)
class _Move:
    """Hold what a transition reads and sets from one of its states, parsed once."""

    transition: Transition
    counts: tuple[tuple[str, Expr, Expr], ...]
    columns: tuple[tuple[int, Expr], ...]
    # By place among the carries followed: the lengths of the pieces set (None: not known, or masks to the end).
    carries: tuple[tuple[int, tuple[Expr | None, ...]], ...]
    reads: tuple[Read, ...]


class _Endless(Exception):
    """End a walk that takes more steps than one load may."""


def rules(scope: Scope) -> Iterator[Violation]:
    """Report the first read of each place that goes beyond what is there."""
    told = set()
    for values in scope.settings():
        walk = _Walk(scope, values)
        for path, message in walk.violations() if walk.asked else ():
            if path not in told:
                told.add(path)
                yield path, message


@dataclass
class _Walk:
    """Follow a request under one setting of the parameters, and every size of the tiered ones up to that."""

    scope: Scope
    values: Mapping[str, int]
    steps: int = 0
    names: dict[int, tuple[Expr, frozenset[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Name what is followed: carries that may be set in part, beside all columns."""
        self.columns = tuple(self.scope.spec.columns)
        self.carries = tuple(name for name in self.scope.spec.carry if _partly(self.scope, name))
        self.sizes: list[Mapping[str, int]] = [dict(self.values)]
        for name, param in self.scope.spec.params.items():
            if param.tiered:
                smaller = sorted(size for size in {param.range[0], param.check} if size < self.values[name])
                self.sizes = [
                    {**each, name: size} for each in self.sizes for size in (self.values[name], *smaller)
                ]
        self.known = [(size, self.scope.bounds(size)) for size in self.sizes]

    @cached_property
    def asked(self) -> bool:
        """Tell whether anything is left to follow: what bounds alone show to be there, is there."""
        return any(self.reads.values()) or any(
            move.reads or move.carries for each in self.moves.values() for move in each
        )

    @cached_property
    def reads(self) -> dict[str, tuple[Read, ...]]:
        """List by state what its forward reads."""
        return {
            state: tuple(
                read for read in carry_reads.of_forward(self.scope, state) if self._open(read, state)
            )
            for state in self.scope.spec.states
        }

    @cached_property
    def moves(self) -> dict[str, tuple[_Move, ...]]:
        """List by state the transitions that leave it."""
        return {
            state: tuple(
                self._move(transition, state)
                for transition in self.scope.spec.transitions
                if state in sources_of(transition)
            )
            for state in self.scope.spec.states
        }

    def _move(self, transition: Transition, state: str) -> _Move:
        name = forward_of(self.scope.spec, state)
        read = mentions(transition)
        counts = () if name is None else self.scope.counts(name)
        return _Move(
            transition,
            tuple((arg.name, arg.low, arg.high) for arg in counts if arg.name in read),
            tuple(
                (index, expression.parse(transition.set[column]))  # type: ignore[arg-type]
                for index, column in enumerate(self.columns)
                if column in transition.set
            ),
            tuple(
                (index, self._lengths(transition.set[carry], state))
                for index, carry in enumerate(self.carries)
                if carry in transition.set
            ),
            tuple(
                read
                for read in carry_reads.of_transition(self.scope, transition, state)
                if self._open(read, state)
            ),
        )

    def _lengths(self, value: object, state: str) -> tuple[Expr | None, ...]:
        return tuple(None if piece.name == _MASK else self._length(piece, state) for piece in pieces(value))

    def _length(self, piece: Piece, state: str) -> Expr | None:
        results = self.scope.results.get(forward_of(self.scope.spec, state) or "", {})
        value = self.scope.carries.get(piece.name) or results.get(piece.name)
        return None if value is None else piece.length(value.length or Const(1))

    def _whole(self, name: str, state: str) -> Expr:
        """Give the entries that a carry or result has."""
        results = self.scope.results.get(forward_of(self.scope.spec, state) or "", {})
        value = self.scope.carries.get(name) or results[name]
        return value.length or Const(1)

    def _open(self, read: Read, state: str) -> bool:
        """Tell whether bounds of the columns and counts leave open that a read lies within what is there."""
        if read.name in self.carries:
            return True
        name = forward_of(self.scope.spec, state)
        ends = [
            read.start,
            difference(self._whole(read.name, state), read.stop),
            difference(read.stop, read.start),
        ]
        ends += [difference(read.most, read.stop)] if read.most is not None else []
        for size, columns in self.known:
            known = dict(columns)
            for arg in self.scope.counts(name) if name is not None else ():
                edges = [expression.substitute(edge, size) for edge in (arg.low, arg.high)]
                if not {n for edge in edges for n in expression.names(edge)} <= set(known):
                    return True
                known[arg.name] = bounds(edges[0], known)[0], bounds(edges[1], known)[1]
            for end in ends:
                under = expression.substitute(end, size)
                if not set(expression.names(under)) <= set(known) or bounds(under, known)[0] < 0:
                    return True
        return False

    def violations(self) -> Iterator[Violation]:
        """Walk all ways, breadth first."""
        try:
            yield from self._walked()
        except _Endless:
            name = next(iter(self.carries or self.scope.spec.carry))
            message = f"how much of {quoted(name)} is set cannot be followed within {_MOST_STEPS:,} steps"
            yield (
                ("carry", name),
                f"{message}{shown_values(self.values)}; set all of it, or give smaller parameters",
            )

    def _walked(self) -> Iterator[Violation]:
        starts = [name for name, state in self.scope.spec.states.items() if state.start]
        todo = [(self._start(name), size) for name in starts for size in range(len(self.sizes))]
        met = set(todo)
        for at, size in todo:  # it grows while it is walked
            known = {
                **self.sizes[size],
                **{n: v for n, v in zip(self.columns, at.columns, strict=True) if v is not None},
            }
            found_here = list(self._beyond(at, self.reads[at.state], known))
            yield from found_here[:1]
            # What a forward reads wrongly, its transitions would only repeat.
            for move in () if found_here else self.moves[at.state]:
                for found in self._counts(move, known):
                    yield from self._beyond(at, move.reads, found)
                    yield from self._overfull(at.state, move, found)
                    for step in self._after(at, move, found, size):
                        if step not in met:
                            met.add(step)
                            todo.append(step)

    def _start(self, state: str) -> _At:
        """Give the place behind the prefill; what a carry begins with fills it."""
        spec = self.scope.spec
        columns = [self._value(spec.columns[name].init, self.values) for name in self.columns]
        begun = [
            self._value(self._whole(name, state), self.values) or 0
            if spec.carry[name].init and not _only_text(self.scope, name)
            else 0
            for name in self.carries
        ]
        return _At(state, tuple(columns), tuple(begun))

    def _counts(self, move: _Move, known: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
        """Give what is known where a transition is taken, for all counts that its guard and values read."""
        counts: dict[str, range] = {}
        for name, low, high in move.counts:
            first, last = self._value(low, known), self._value(high, known)
            if first is not None and last is not None:
                counts[name] = range(first, last + 1)
        for chosen in product(*counts.values()):
            self.steps += 1
            if self.steps > _MOST_STEPS:
                raise _Endless
            found = {**known, **dict(zip(counts, chosen, strict=True))}
            if self._value(move.transition.when, found) != 0:
                yield found

    def _after(self, at: _At, move: _Move, known: Mapping[str, int], size: int) -> Iterator[tuple[_At, int]]:
        """Give the places that a transition leads to: of every size, where that is a round point."""
        target = self.scope.spec.states.get(move.transition.to)
        if target is None:
            return
        columns = list(at.columns)
        for index, value in move.columns:
            columns[index] = self._value(value, known)
        filled = list(at.filled)
        for index, lengths in move.carries:
            filled[index] = self._set(self._whole(self.carries[index], at.state), lengths, known)
        place = _At(move.transition.to, tuple(columns), tuple(filled))
        yield from ((place, each) for each in (range(len(self.sizes)) if target.round else (size,)))

    def _set(self, whole: Expr, lengths: Sequence[Expr | None], known: Mapping[str, int]) -> int:
        """Count what a transition sets of a carry; nothing is trusted where that is not known here."""
        total = 0
        for length in lengths:
            if length is None:
                return self._value(whole, known) or 0
            value = self._value(length, known)
            if value is None:
                return 0
            total += value
        return total

    def _overfull(self, state: str, move: _Move, known: Mapping[str, int]) -> Iterator[Violation]:
        """Report a carry that is set to more entries than it holds."""
        index = self.scope.spec.transitions.index(move.transition)
        for number, lengths in move.carries:
            name = self.carries[number]
            whole = self._value(self._whole(name, state), known)
            total = sum(self._value(length, known) or 0 for length in lengths)
            if whole is not None and total > whole:
                where = self._shown(known, [length for length in lengths if length is not None])
                message = f"{quoted(name)} holds {whole}, and {total} are set in the state {state}{where}"
                yield ("transitions", index, "set", name), f"{message}; cut what is set"

    def _beyond(self, at: _At, reads: Sequence[Read], known: Mapping[str, int]) -> Iterator[Violation]:
        """Report the reads that go beyond what is there where the request is."""
        for read in reads:
            whole = self._value(self._whole(read.name, at.state), known)
            carried = read.name in self.carries
            filled = at.filled[self.carries.index(read.name)] if carried else whole
            first, stop = self._value(read.start, known), self._value(read.stop, known)
            where = f"in the state {at.state}{self._shown(known, [read.start, read.stop])}"
            if stop is None or first is None or filled is None or whole is None:
                # What hangs on kv or the text is not followed; all of a carry may be read wherever all is set.
                if not carried or filled is None or whole is None:
                    message = f"how much {read.text} reads of {quoted(read.name)} hangs on more than counts and columns"
                    yield (
                        read.path,
                        f"{message} in the state {at.state}; cut it by counts and columns of the spec",
                    )
                elif filled < whole:
                    message = f"{read.text} hangs on more than counts and columns of the spec"
                    yield (
                        read.path,
                        f"{message}, and {filled} of {whole} {_are(filled)} set in the state {at.state}",
                    )
                continue
            if first > stop:
                yield (
                    read.path,
                    f"{read.text} would run from {first} to {stop} {where}; a cut does not run backwards",
                )
            elif first < 0 and stop > first:
                yield read.path, f"{read.text} would begin at {first} {where}; the first is 0"
            elif (most := self._value(read.most, known)) is not None and self._short(read, first, stop, most):
                gives = f"{stop - first} of {read.text}, which gives {max(0, most - first)}"
                remedy = "cut it at just as many" if read.exact else "cut it no shorter than that"
                yield read.path, f"{read.reader} read {gives} {where}; {remedy}"
            elif stop > filled and stop > first:
                yield read.path, self._said(read, stop, filled, where)

    @staticmethod
    def _short(read: Read, first: int, stop: int, most: int) -> bool:
        """Tell whether a slice gives fewer entries than are read of it, or more where it must give as many."""
        return most != stop if read.exact else stop > max(most, first)

    def _said(self, read: Read, stop: int, filled: int, where: str) -> str:
        if read.name not in self.scope.carries:
            message = f"{read.text} reads {stop} of the {filled} that {read.name} has {where}"
            return f"{message}; cut it by counts and columns of the spec, within its length"
        message = (
            f"{read.text} reads {stop} of {quoted(read.name)}, of which {filled} {_are(filled)} set {where}"
        )
        return f"{message}; cut it at what is set, or set all of {read.name}"

    def _shown(self, known: Mapping[str, int], read: Sequence[Expr]) -> str:
        names = {name for expr in read for name in expression.names(expr)} | set(self.scope.spec.params)
        return shown_values({name: known[name] for name in known if name in names})

    def _value(self, expr: Expr | None, known: Mapping[str, int]) -> int | None:
        """Evaluate an expression; None where something in it is not known here."""
        if expr is None:
            return None
        # By identity, as the expressions live as long as the walk: hashing them would take longer than reading them.
        kept = self.names.get(id(expr))
        if kept is None:
            kept = self.names[id(expr)] = (expr, frozenset(expression.names(expr)))
        if not kept[1] <= known.keys():
            return None
        try:
            return evaluate(expr, known)
        except ZeroDivisionError:
            return None


def _only_text(scope: Scope, carry: str) -> bool:
    """Tell whether a carry begins with text alone, of which nothing is there yet when a request starts to decode."""
    init = scope.spec.carry[carry].init or []
    return isinstance(scope.spec.contract, str) and bool(init) and all(piece.name == "text" for piece in init)


def _partly(scope: Scope, carry: str) -> bool:
    """Tell whether some transition may set a carry to another number of entries than it holds."""
    whole = scope.carries[carry].length
    if scope.carries[carry].kind not in PARTLY or whole is None:
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
            # Masks fill what the others leave.
            masked = 0 < len(lengths) < len(set_)
            if masked or (lengths and difference(expression.total(lengths), whole) != Const(0)):
                return True
    return False


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
