"""Scope: what each name of a spec stands for, which names were read, and which words are in doubt.

The rules ask here whether a name is known where it stands; a name that is not known is reported once, and what it
may have meant counts as mentioned, so that nothing is reported that only follows from a slip of the pen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from fsm_spec import life_cycle, table
from fsm_spec.language import expression, operators
from fsm_spec.language.domain import column_bounds
from fsm_spec.language.expression import Bounds, Const, Expr, Name, Op, evaluate, to_text
from fsm_spec.language.fields import MAX_VALUE
from fsm_spec.language.findings import Path, closest, nearest, quoted, words
from fsm_spec.language.linear import difference
from fsm_spec.language.operations import Operation
from fsm_spec.language.operators import Kind
from fsm_spec.language.piece import Piece
from fsm_spec.language.spec import BlockContract, Forward, Segment, Spec, Transition
from fsm_spec.table import ArgPlan

Violation = tuple[Path, str]

# Columns that the life cycle, emit and keep move; a spec reads them.
BUILT_IN_COLUMNS: Final = tuple(name for name in table.BUILT_IN_COLUMNS if name != "state")
PENDING: Final = "pending"
# Names with a meaning of their own wherever a name may stand.
RESERVED: Final = frozenset(
    {"state", *BUILT_IN_COLUMNS, "stop", PENDING, "mask", "noise", "text", "vocab"}
    | {"page_size", "owned"}
    | {"and", "or", "not", "true", "false", "min", "max", "ceil"}
)
# Values that one load may try out, in all, to decide what intervals leave open; it keeps absurd guards quick.
MOST_WALKED: Final = 20_000
# Columns are walked by their edges; a larger bound only makes the walk coarser.
_WALKED_BOUND: Final = 2**20
_KINDS: Final = {
    "token": "tokens",
    "law": "laws",
    "count": "a count",
    "index": "rows of the block",
    "tree": "a tree",
    "feature": "hidden states",
    "real": "numbers",
}
# What an abstract model may read of the pool: slots a page, and slots in the pages that a request owns.
PAGE_SIZE: Final = "page_size"
OWNED: Final = "owned"
LIFE_CYCLE_STATES: Final = (table.WAIT, table.PREFILL, table.END)
# A state's completion is an event of its name, so no state may be called like an event of the life cycle.
LIFE_CYCLE_EVENTS: Final = (*life_cycle.EVENTS, "finish")


@dataclass(frozen=True, slots=True)
class Value:
    """Say what a carry or an operator's result is; `length` counts its tokens or rows (None: not known here)."""

    kind: Kind
    length: Expr | None = None


@dataclass
class Scope:
    """Hold a spec's names by meaning; `used` collects reads, `doubt` words that a faulty part may have meant.

    `hurt` tells whether a part of the file has lost something that could not be read.
    """

    spec: Spec
    doubt: set[str] = field(default_factory=set)
    hurt: Callable[[Path], bool] = lambda _: False
    used: set[tuple[str, ...]] = field(default_factory=set)
    # Values of the parameters to judge by; the default and the checker's where none are given.
    values: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        spec = self.spec
        self.columns = dict.fromkeys([*spec.columns, *BUILT_IN_COLUMNS])
        self.carries = {
            name: Value(carry.type, first_size(carry.shape)) for name, carry in spec.carry.items()
        }
        if isinstance(spec.contract, str):
            self.carries[PENDING] = Value("token", Const(1))
        elif spec.forwards and spec.contract is None:
            self.doubt.add(PENDING)  # the missing contract has a finding of its own
        self.walks = MOST_WALKED
        # A spec that claims nothing about its tokens may emit what no verifier saw.
        self.claims = spec.lossless is not None and spec.lossless.claim != "no"
        self.results = {name: self._results(name) for name in spec.forwards}

    def lost(self, path: Path) -> bool:
        """Tell whether a list or mapping, or the part that holds it, has lost something that could not be read."""
        return self.hurt(path) or self.hurt(path[:-1])

    def _results(self, forward: str) -> dict[str, Value]:
        results: dict[str, Value] = {}
        for op in self.spec.forwards[forward].ops:
            for name, value in self.outputs(op, forward, results).items():
                results.setdefault(name, value)
        return results

    def outputs(
        self, op: Operation, forward: str, known: Mapping[str, Value] | None = None
    ) -> dict[str, Value]:
        """Give the results of an operator by name, given those before it; a count has no length."""

        def rows(names: str | list[str]) -> Expr | None:
            if isinstance(names, str) and known is not None and names in known:
                return known[names].length
            return self.row_count(forward, names)

        return {
            name: Value(output.kind, None if output.kind == "count" else output.most(op, rows))
            for name, output in operators.outputs_of(op)
        }

    def maimed(self, forward: str) -> bool:
        """Tell whether a forward has lost a segment, or part of one, that could not be read."""
        plan = self.spec.forwards[forward]
        paths = [segment_path(forward, plan, index) for index in range(len(plan.segments))]
        return self.lost(("forwards", forward, *plan.segments_key)) or any(map(self.hurt, paths))

    def results_most(self, forward: str, op: Operation) -> Expr | None:
        """Give the upper bound of an operator's count; None where it is not known."""
        first = operators.outputs_of(op)[0][1]
        return first.most(op, lambda rows: self.row_count(forward, rows))

    def counts(self, forward: str) -> tuple[ArgPlan, ...]:
        """List the counts that a forward's operators give, with their ranges; those that are not known are left out."""
        found = []
        for op in self.spec.forwards[forward].ops:
            for name, output in operators.outputs_of(op):
                if output.kind == "count":
                    low, high = (
                        end(op, lambda rows: self.row_count(forward, rows))
                        for end in (output.least, output.most)
                    )
                    found += [] if low is None or high is None else [ArgPlan(name, low, high)]
        return tuple(found)

    def bounds(self, params: Mapping[str, int]) -> dict[str, Bounds]:
        """Bound every column under given parameters, for walks; a very large one is walked by its edges."""
        maxima = {}
        for name, column in self.spec.columns.items():
            if set(expression.names(column.max)) <= set(params):
                with suppress(ZeroDivisionError):  # the divisor has a finding of its own
                    maxima[name] = min(max(0, evaluate(column.max, params)), _WALKED_BOUND)
        return column_bounds(maxima, len(self.spec.states))

    @property
    def block(self) -> Expr | None:
        """Give the tokens of a block under a block contract."""
        contract = self.spec.contract
        return contract.block if isinstance(contract, BlockContract) else None

    def row_count(self, forward: str, rows: str | list[str]) -> Expr | None:
        """Count the rows of segments; None if one of them is not known in full."""
        plan = self.spec.forwards[forward]
        counts = []
        for name in listed(rows):
            segment = segment_of(plan, name)
            if segment is None or self.hurt(segment_path(forward, plan, segment)):
                return None
            counts.append(segment.count)
        total = expression.total(counts)
        return total if plan.groups is None else Op("*", (plan.groups.count, total))

    # Reading names --------------------------------------------------------------------------------------------

    def unknown(self, word: str, what: str, candidates: Iterable[str], path: Path) -> Iterator[Violation]:
        """Report a word that no candidate equals, unless a faulty part may have declared it."""
        if word in self.doubt:
            return
        known = list(candidates)
        meant = closest(word, known)
        self.doubt.update([word], known if meant is None else [meant])
        yield path, f"{what} {quoted(word)} is not declared{nearest(word, known)}"

    def numbers(self, expr: Expr, path: Path, place: Place) -> Iterator[Violation]:
        """Check the names an expression reads, and its divisors."""
        for name in dict.fromkeys(expression.names(expr)):
            yield from self._number(name, path, place)
        for divisor in dict.fromkeys(expression.divisors(expr)):
            yield from self._divisor(divisor, path)

    def _number(self, name: str, path: Path, place: Place) -> Iterator[Violation]:
        if name in self.spec.params:
            self.used.add(("params", name))
        elif name in place.numbers:
            self.used.add((*place.numbers[name], name))
        elif name in place.others:
            yield path, f"{quoted(name)} is {place.others[name]} and may not be read here; {place.rule}"
        else:
            yield from self.unknown(name, "the name", [*self.spec.params, *place.numbers], path)

    def _divisor(self, divisor: Expr, path: Path) -> Iterator[Violation]:
        names = set(expression.names(divisor))
        bounds = {name: param.range for name, param in self.spec.params.items()}
        if not any(expression.divisors(divisor)):
            bounds |= dict.fromkeys(self.columns, (0, MAX_VALUE))
            if names <= set(bounds) and expression.interval(divisor, bounds)[0] >= 1:
                return
        if not names & self.doubt:
            message = f"the divisor {to_text(divisor)} is not sure to be 1 or more"
            yield path, f"{message}; divide by such a constant or parameter, or write max(..., 1)"

    def place(
        self,
        *,
        columns: bool = True,
        results: Mapping[str, Value] | None = None,
        forward: str = "",
        more: Mapping[str, tuple[str, ...]] | None = None,
    ) -> Place:
        """Describe a place where numbers are read: parameters always, columns and counts as given."""
        counts = {
            name: ("results", forward) for name, value in (results or {}).items() if value.kind == "count"
        }
        pool = {} if self.spec.forwards else {PAGE_SIZE: ("pool",)}
        numbers = {
            **(more or {}),
            **pool,
            **counts,
            **dict.fromkeys(self.columns if columns else (), ("columns",)),
        }
        others = dict.fromkeys(self.carries, "a carry") | dict.fromkeys(
            ("mask", "noise", "text", "vocab"), "no number"
        )
        others |= dict.fromkeys(self.columns, "a column")
        others |= {name: "a result of another forward" for known in self.results.values() for name in known}
        others |= {name: _KINDS[value.kind] for name, value in (results or {}).items()}
        allowed = (
            ["parameters"]
            + ["columns"] * columns
            + ["counts of the state's own forward"] * (results is not None)
        )
        return Place(numbers, others, f"allowed are {' and '.join(allowed)}")

    def piece(
        self, piece: Piece, path: Path, values: Mapping[str, Value], forward: str, place: Place, wanted: Kind
    ) -> Iterator[Violation]:
        """Check a piece that is read as tokens or as a law: its name, its kind, the names in its bounds."""
        for edge in (piece.start, piece.stop):
            if edge is not None:
                yield from self.numbers(edge, path, place)
        value = values.get(piece.name)
        if value is not None:
            carried = piece.name in self.carries
            self.used.add(("carry", piece.name) if carried else ("results", forward, piece.name))
            if value.kind != wanted:
                needed = f"{_KINDS[wanted]} {'is' if _KINDS[wanted].startswith('a ') else 'are'} needed"
                yield path, f"{quoted(piece.name)} gives {_KINDS[value.kind]}, where {needed}"
        elif piece.name in self.spec.params or piece.name in self.columns:
            yield path, f"{quoted(piece.name)} is a number; a carry or an operator's tokens stand here"
        elif piece.name in ("mask", "noise", "text"):
            yield path, f"{quoted(piece.name)} may not stand here; a carry or an operator's result does"
        elif any(piece.name in known for known in self.results.values()):
            yield (
                path,
                f"{quoted(piece.name)} is a result of another forward and not known here; keep it in a carry",
            )
        else:
            yield from self.unknown(piece.name, "the carry or result", values, path)

    # Lengths --------------------------------------------------------------------------------------------------

    def off_by(self, left: Expr, right: Expr) -> tuple[int, str] | None:
        """Tell by how much two lengths differ for the default or the checker's parameters; None: equal or unknown."""
        gap = difference(left, right)
        if not set(expression.names(gap)) <= set(self.spec.params) or any(
            True for _ in expression.divisors(gap)
        ):
            return None
        for values in self.settings():
            value = evaluate(gap, values)
            if value:
                return value, shown(gap, values)
        return None

    def settings(self) -> list[dict[str, int]]:
        """Give the default and the checker's values of the parameters."""
        if self.values is not None:
            return [dict(self.values)]
        params = self.spec.params.items()
        return [
            {name: param.default for name, param in params},
            {name: param.check for name, param in params},
        ]


@dataclass(frozen=True)
class Place:
    """Say which numbers may be read at a place (with what they are), what else has a name, and the rule."""

    numbers: Mapping[str, tuple[str, ...]]
    others: Mapping[str, str]
    rule: str


def shown(expr: Expr, values: Mapping[str, int]) -> str:
    """Print the values that an expression reads: ` with n = 4`."""
    read = [f"{name} = {values[name]}" for name in dict.fromkeys(expression.names(expr))]
    return f" with {', '.join(read)}" if read else ""


def shown_values(values: Mapping[str, int]) -> str:
    """Print values: ` (n = 4, a = 1)`; nothing where there are none."""
    return f" ({', '.join(f'{name} = {value}' for name, value in values.items())})" if values else ""


def listed(value: str | list[str]) -> list[str]:
    """Give a name or a list of names as a list."""
    return [value] if isinstance(value, str) else value


def first_size(shape: list[Expr | Literal["vocab"]]) -> Expr | None:
    """Give the first size of a shape; None where it is the vocabulary or missing."""
    return None if not shape or shape[0] in ("vocab", Name("vocab")) else shape[0]  # type: ignore[return-value]


def segment_of(forward: Forward, name: str) -> Segment | None:
    """Find a segment by name."""
    return next((segment for segment in forward.segments if segment.name == name), None)


def segment_path(name: str, forward: Forward, segment: Segment | int) -> Path:
    """Lead to a segment of a forward, given itself or its index."""
    index = segment if isinstance(segment, int) else forward.segments.index(segment)
    return ("forwards", name, *forward.segments_key, index)


def sources(segment: Segment) -> list[Piece]:
    """List the pieces that a segment's rows read."""
    return segment.source if isinstance(segment.source, list) else [segment.source]


def forward_of(spec: Spec, state: str) -> str | None:
    """Give the name of the forward that a state runs, if both exist."""
    plan = spec.states.get(state)
    return plan.forward if plan is not None and plan.forward in spec.forwards else None


def sources_of(transition: Transition) -> list[str]:
    """List the states that a transition leaves."""
    return listed(transition.from_)


def mentions(transition: Transition) -> set[str]:
    """Give every name that a transition reads, writes or leads to."""
    read = {
        transition.to,
        *transition.set,
        *expression.names(transition.when),
        *expression.names(transition.keep),
        *([transition.keep_rows] if transition.keep_rows else []),
    }
    read.update(word for piece in transition.emit for word in words(str(piece)))
    return read | set(words(list(transition.set.values())))
