"""The transition table: a spec compiled for given parameters, frozen and digested.

Checker, simulator and executor read this and nothing else of a spec. A row says what one event does to one request;
`step.py` runs rows over arrays, `oracle.py` over plain integers. How a table comes to be is in `compile.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from fsm_spec.errors import UnhandledEvent, UserError
from fsm_spec.language import expression
from fsm_spec.language.expression import to_text

if TYPE_CHECKING:
    from fsm_spec.language.expression import Expr
    from fsm_spec.language.piece import Piece
    from fsm_spec.language.spec import Spec
    from fsm_spec.plan import ForwardPlan, OperatorPlan

BUILT_IN_COLUMNS: Final = ("state", "prompt", "limit", "emitted", "kv")
Contract = Literal["pending", "full", "block"]
WAIT, PREFILL, END = "wait", "prefill", "end"
# The argument of an emitting event: tokens before the first stop token of the run; NO_STOP when there is none.
STOP: Final = "stop"
NO_STOP: Final = 2**30


@dataclass(frozen=True)
class ArgPlan:
    """Bound one argument of an event; the bounds may read columns."""

    name: str
    low: Expr
    high: Expr


@dataclass(frozen=True)
class EventPlan:
    """Name an event, the states that handle it, the states that ignore it, and its arguments."""

    name: str
    states: tuple[str, ...]
    args: tuple[ArgPlan, ...] = ()
    ignored: tuple[str, ...] = ()
    emits: bool = False


@dataclass(frozen=True)
class StatePlan:
    """Describe a state: its forward, the slots it holds by kind, and the peak need of a round that starts here."""

    name: str
    phase: str
    holding: Mapping[str, Expr]
    forward: str | None = None
    round: bool = False
    start: bool = False
    built_in: bool = False
    # Slots above `kv` that the scheduler must own before a round starts here.
    peak: int = 0
    # Most tokens whose KV becomes committed in a round that starts here.
    advance: int = 0


@dataclass(frozen=True)
class ColumnPlan:
    """Describe a column that the spec declares: value on entering the start state, largest value."""

    name: str
    init: Expr
    max: int


@dataclass(frozen=True)
class CarryPlan:
    """Describe a carry: sizes (None stands for the vocabulary) and type."""

    name: str
    shape: tuple[int | None, ...]
    type: Literal["token", "law", "tree", "feature", "real"]


@dataclass(frozen=True)
class ModelPlan:
    """Describe a draft model: its kind, and the rows that its cache has less than the target's."""

    name: str
    kind: Literal["language_model", "context_head", "feature_head", "token_heads"]
    behind: Expr


@dataclass(frozen=True)
class Row:
    """Say what one event does where the guard holds.

    All expressions read the columns before the event, and its arguments.
    The run of emitted tokens is cut at the first stop token and at the limit: where the cut ends the request the
    target is `end` and `keep` shrinks by the tokens cut off.
    """

    index: int
    sources: tuple[str, ...]
    event: str
    target: str
    guard: Expr = expression.TRUE
    keep: Expr = expression.ZERO
    emit: tuple[Piece, ...] = ()
    sets: tuple[tuple[str, Expr], ...] = ()
    carries: tuple[tuple[str, tuple[Piece, ...]], ...] = ()
    # Which rows are kept, if not the first: those of a walk's path, by the output's name, or every such row.
    keep_rows: str | None = None
    keep_stride: int | None = None
    # Rows that become committed in the draft model's cache, where the forward is a draft model's.
    draft_keep: Expr = expression.ZERO
    built_in: bool = False
    line: int = 0

    @cached_property
    def emit_count(self) -> Expr:
        """Count the tokens of the run before any cut."""
        # Compiled pieces have explicit ends, so the length of the whole is not needed.
        return expression.total(piece.length(expression.Const(1)) for piece in self.emit)

    @cached_property
    def read(self) -> frozenset[str]:
        """Name what the row's emitted run and carries are taken from."""
        pieces = (*self.emit, *(piece for _, given in self.carries for piece in given))
        return frozenset(piece.name for piece in pieces)

    def content(self) -> dict[str, Any]:
        """Give the row as JSON values, the form that the digest reads."""
        return {
            "from": list(self.sources),
            "on": self.event,
            "when": to_text(self.guard),
            "to": self.target,
            "keep": [to_text(self.keep), self.keep_rows, self.keep_stride],
            **({} if self.draft_keep == expression.ZERO else {"draft_keep": to_text(self.draft_keep)}),
            "emit": [str(piece) for piece in self.emit],
            "set": {name: to_text(value) for name, value in self.sets},
            "carry": {name: [str(piece) for piece in pieces] for name, pieces in self.carries},
        }


@dataclass(frozen=True, eq=False)
class Table:
    """Hold the compiled machine; equality of tables is equality of `digest`."""

    name: str
    params: Mapping[str, int]
    contract: Contract | None
    states: tuple[StatePlan, ...]
    columns: tuple[ColumnPlan, ...]
    carry: tuple[CarryPlan, ...]
    events: Mapping[str, EventPlan]
    rows: tuple[Row, ...]
    forwards: Mapping[str, ForwardPlan]
    # Committed slots that prefill must reach before the request enters the start state; None in abstract models.
    fill: Expr | None
    always: Mapping[str, Expr]
    sometimes: Mapping[str, Expr]
    eventually: str
    spec: Spec
    # Tokens of a block under the contract block.
    block: int | None = None
    models: Mapping[str, ModelPlan] = field(default_factory=dict)
    # What an abstract model reads as `page_size`; tables with a contract leave pages to the scheduler.
    page_size: int = 1
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def codes(self) -> Mapping[str, int]:
        """Map state names to their codes in the column `state`."""
        return {state.name: code for code, state in enumerate(self.states)}

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """List the columns of a request, built-in ones first."""
        built_in = BUILT_IN_COLUMNS if self.contract else ("state",)
        return built_in + tuple(column.name for column in self.columns)

    @cached_property
    def start(self) -> StatePlan:
        """Give the state that a request enters after prefill (its first state in an abstract model)."""
        return next(state for state in self.states if state.start)

    def judge(self, state: str) -> OperatorPlan | None:
        """Give the operator that judges drafts in a state's forward, if one does."""
        forward = self.state(state).forward
        operators = self.forwards[forward].operators if forward is not None else ()
        return next((operator for operator in operators if operator.judges), None)

    @cached_property
    def leads(self) -> Mapping[int, int]:
        """Give, by row, the tokens emitted before its accepted drafts: a cut before them loses these drafts.

        Rows that emit none are left out.
        """
        found = {}
        for row in self.rows:
            judge = None if row.built_in else self.judge(row.sources[0])
            before = 0
            for piece in row.emit if judge is not None else ():
                if judge is not None and piece.name == judge.accepted:
                    found[row.index] = before + judge.root
                    break
                length = piece.length(expression.Const(1))
                before += length.value if isinstance(length, expression.Const) else 0
        return found

    @cached_property
    def gated(self) -> bool:
        """Tell whether any row runs under the draft adapter."""
        return any(segment.adapter for plan in self.forwards.values() for segment in plan.segments)

    @cached_property
    def prefill_block(self) -> int:
        """Give the tokens that prefill must run together: a block where kept rows see their whole block, else 1."""
        whole = any(
            plan.attention == "block-causal" and any(segment.kv != "scratch" for segment in plan.segments)
            for plan in self.forwards.values()
        )
        return self.block if whole and self.block is not None else 1

    @cached_property
    def digest(self) -> str:
        """Digest everything that gives the table its meaning: 64 hexadecimal digits."""
        text = json.dumps(self.content(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def peak(self) -> int:
        """Give the largest peak of any round, in slots above `kv`."""
        return max((state.peak for state in self.states), default=0)

    @cached_property
    def advance(self) -> int:
        """Give the most tokens whose KV any round commits."""
        return max((state.advance for state in self.states), default=0)

    def state(self, name: str) -> StatePlan:
        """Find a state by name; raises KeyError."""
        return self.states[self.codes[name]]

    def rows_of(self, event: str) -> tuple[Row, ...]:
        """List the rows of an event, in order; raises UnhandledEvent for an unknown one."""
        if event not in self.events:
            known = ", ".join(sorted(self.events))
            raise UnhandledEvent(f"{self.name}: no event is called {event!r}; known: {known}")
        return tuple(row for row in self.rows if row.event == event)

    def label(self, transition: int) -> str:
        """Describe a transition code: `2 * row`, plus 1 where the cut ended the request."""
        row = self.rows[transition // 2]
        target = END if transition % 2 else row.target
        return f"{'|'.join(row.sources)} -{row.event}-> {target}"

    def new_request(self, prompt: int, limit: int) -> dict[str, int]:
        """Give the columns of a request that has just arrived: waiting, nothing emitted, no KV."""
        values = dict.fromkeys(self.column_names, 0)
        return values | {"state": self.codes[WAIT], "prompt": prompt, "limit": limit}

    def new_abstract_request(self) -> dict[str, int]:
        """Give the columns of a waiting request of an abstract model: its own columns at their first values."""
        values: dict[str, int] = {**self.codes, "state": self.codes[WAIT]}
        for column in self.columns:
            values[column.name] = expression.evaluate(column.init, values)
        return {name: values[name] for name in self.column_names}

    def with_row(self, index: int, **changes: Any) -> Table:
        """Give a table in which one row differs: how faults are planted and repairs are tried."""
        rows = list(self.rows)
        # A fresh instance, so that cached properties of the old row do not come along.
        rows[index] = replace(rows[index], **changes)
        return replace(self, rows=tuple(rows), cache={})

    def cached(self, key: Any, make: Callable[[], Any]) -> Any:
        """Give what `make` computed for this table before, or compute it now."""
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    def content(self) -> dict[str, Any]:
        """Give the whole table as JSON values, without lines and descriptions."""
        return {
            "spec": self.name,
            "params": dict(self.params),
            "contract": self.contract if self.block is None else [self.contract, self.block],
            "fill": to_text(self.fill) if self.fill is not None else None,
            "states": [
                {
                    "name": state.name,
                    "forward": state.forward,
                    "round": state.round,
                    "start": state.start,
                    "peak": state.peak,
                    "advance": state.advance,
                    "holding": {kind: to_text(slots) for kind, slots in state.holding.items()},
                }
                for state in self.states
            ],
            **(
                {"models": {m.name: [m.kind, to_text(m.behind)] for m in self.models.values()}}
                if self.models
                else {}
            ),
            "columns": [{"name": c.name, "init": to_text(c.init), "max": c.max} for c in self.columns],
            "carry": [{"name": c.name, "shape": list(c.shape), "type": c.type} for c in self.carry],
            "events": [
                {
                    "name": event.name,
                    "states": list(event.states),
                    "ignored": list(event.ignored),
                    "args": [[arg.name, to_text(arg.low), to_text(arg.high)] for arg in event.args],
                }
                for event in self.events.values()
            ],
            "rows": [row.content() for row in self.rows],
            "forwards": {name: plan.content() for name, plan in self.forwards.items()},
            "check": {
                "always": {text: to_text(value) for text, value in self.always.items()},
                "sometimes": {text: to_text(value) for text, value in self.sometimes.items()},
                "eventually": self.eventually,
            },
        }


def refuse_abstract(table: Table) -> None:
    """Raise UserError for an abstract model: it has no forwards that anybody could price or run."""
    if table.contract is None:
        raise UserError(f"{table.name} is an abstract model without forwards; only `fsm-spec check` takes it")
