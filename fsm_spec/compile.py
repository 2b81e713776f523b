"""Compile a spec for given parameters to its table.

Cross references are checked by `rules/whole_spec.py` before; what only concrete parameters show is in
`rules/soundness.py`, the slots that rounds need in `peaks.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsm_spec import life_cycle
from fsm_spec.errors import SpecError, UserError
from fsm_spec.language import expression
from fsm_spec.language.domain import column_bounds
from fsm_spec.language.expression import Const, Expr, Name, Op, evaluate, interval, to_text
from fsm_spec.language.findings import nearest, path_text
from fsm_spec.language.linear import bounds, difference, simplify
from fsm_spec.language.operations import Accept, Operation, Unmask
from fsm_spec.language.operators import key_of, outputs_of
from fsm_spec.language.piece import Piece, parse_piece
from fsm_spec.language.scope import Scope
from fsm_spec.language.spec import BlockContract
from fsm_spec.peaks import with_peaks
from fsm_spec.plan import KIND_OF_FATE, KINDS, ForwardPlan, OperatorPlan, OutputPlan, SegmentPlan
from fsm_spec.rules import draft_cache, positions
from fsm_spec.rules.soundness import Fault, faults_of, shown_params
from fsm_spec.rules.whole_spec import followed
from fsm_spec.table import ArgPlan, CarryPlan, ColumnPlan, EventPlan, ModelPlan, Row, StatePlan, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fsm_spec.language.findings import Path
    from fsm_spec.language.spec import Forward, Segment, Spec, Transition
    from fsm_spec.table import Contract

# Rows of one request's block: beyond it a plan is a slip of the pen (the largest published layout has 1,056).
MAX_ROWS: Final = 4_096
# What operators read by name, and the integers they read.
_READ: Final = ("q", "block", "tree", "root", "path", "from_", "earlier")
_NUMBERS: Final = (
    "size",
    "min",
    "max",
    "top",
    "threshold",
    "bound",
    "left",
    "steps",
    "quota",
    "start",
    "depth",
)


class CompileError(SpecError):
    """Report faults that show for given parameters; usual causes: guards with a gap, a broken contract."""

    def __init__(self, name: str, faults: list[Fault]) -> None:
        self.faults = faults
        super().__init__(f"{name}: " + "; ".join(f"{path_text(path)}: {message}" for path, message in faults))


def resolve_params(
    spec: Spec, given: Mapping[str, int] | None = None, *, check: bool = False
) -> dict[str, int]:
    """Give every parameter its value: as given, else the default (or the checker's small value).

    Raises UserError for an unknown name, a value out of range, or a requirement that fails.
    """
    given = dict(given or {})
    for name, value in given.items():
        if name not in spec.params:
            raise UserError(f"{spec.spec} has no parameter {name!r}{nearest(name, spec.params)}")
        low, high = spec.params[name].range
        if not low <= value <= high:
            raise UserError(f"{spec.spec}: {name}={value} is out of range; choose {low} to {high}")
    values = {
        name: given.get(name, param.check if check else param.default) for name, param in spec.params.items()
    }
    for condition in spec.require:
        if not evaluate(condition, values):
            shown = ", ".join(f"{name}={values[name]}" for name in dict.fromkeys(expression.names(condition)))
            raise UserError(f"{spec.spec} requires {to_text(condition)}, which fails for {shown}")
    return values


def compile_table(
    spec: Spec,
    params: Mapping[str, int] | None = None,
    *,
    check: bool = False,
    page_size: int = 1,
    line_of: Callable[[Path], int] | None = None,
) -> Table:
    """Compile for the given parameters; the others take their defaults (with `check`, the checker's values).

    `page_size` is what an abstract model reads under that name; `line_of` gives the line of a path in the file.
    Raises UserError for bad parameters and CompileError with every fault of the spec under them.
    """
    values = resolve_params(spec, params, check=check)
    compiler = _Compiler(spec, values, page_size, line_of or (lambda _: 0))
    table = compiler.table()
    if values not in Scope(spec).settings():
        # The loader follows tokens under the default and the checker's values; these are others.
        scope = Scope(spec, values=values)
        compiler.faults += followed(scope)
        if check and not compiler.faults:
            compiler.faults += positions.faults_of(table)
    if compiler.faults:
        raise CompileError(spec.spec, compiler.faults)
    return table


class _Compiler:
    """Build the parts of one table in order, collecting faults."""

    def __init__(
        self, spec: Spec, params: dict[str, int], page_size: int, line_of: Callable[[Path], int]
    ) -> None:
        self.spec = spec
        self.params = params
        self.page_size = page_size
        self.constants = params if spec.contract else {**params, "page_size": page_size}
        self.line_of = line_of
        self.faults: list[Fault] = []
        self.columns = self._columns()
        self.bounds = column_bounds({c.name: c.max for c in self.columns}, len(spec.states) + 3)
        self.carry_length = {name: self._fixed(carry.shape[0]) for name, carry in spec.carry.items()}
        if isinstance(spec.contract, str):
            self.carry_length["pending"] = 1
        self.block = (
            evaluate(spec.contract.block, params) if isinstance(spec.contract, BlockContract) else None
        )
        if self.block is not None and self.block < 1:
            self.faults.append((("contract", "block"), f"a block of {self.block} tokens; give 1 or more"))
            self.block = 1
        self.models = {
            name: ModelPlan(name, model.kind, self._sub(model.behind)) for name, model in spec.models.items()
        }
        self.forwards = {name: self._forward(name, forward) for name, forward in spec.forwards.items()}

    # Parts -----------------------------------------------------------------------------------------------------

    def _sub(self, expr: Expr) -> Expr:
        return (
            simplify(expression.substitute(expr, self.constants))
            if not expression.is_boolean(expr)
            else expression.substitute(expr, self.constants)
        )

    def _fixed(self, size: Expr | str) -> int | None:
        """Evaluate a size over parameters; `vocab` stays open (None)."""
        return None if size in ("vocab", Name("vocab")) else evaluate(size, self.params)  # type: ignore[arg-type]

    def _columns(self) -> tuple[ColumnPlan, ...]:
        plans: list[ColumnPlan] = []
        # An init reads columns above it as they start, not as they were before.
        above: dict[str, Expr] = {}
        for name, column in self.spec.columns.items():
            top = evaluate(column.max, self.params)
            if not 0 <= top < 2**31:
                self.faults.append(
                    (("columns", name, "max"), f"column {name} would run to {top}; give 0 to 2147483647")
                )
            above[name] = expression.substitute(self._sub(column.init), above)
            plans.append(ColumnPlan(name, above[name], top))
        return tuple(plans)

    def _forward(self, name: str, forward: Forward) -> ForwardPlan:
        segments: list[SegmentPlan] = []
        width = expression.total(segment.count for segment in forward.segments)
        groups = forward.groups
        for group in range(1 if groups is None else self._value(groups.count)):
            before: Expr = Const(0)
            for index, segment in enumerate(forward.segments):
                path: Path = ("forwards", name, *forward.segments_key, index)
                base = self._base(forward)
                plan = self._segment(segment, base, before, sum(s.max_count for s in segments), path)
                if groups is not None:
                    plan = self._grouped(segment, plan, group, width)
                segments.append(plan)
                before = simplify(expression.add(before, plan.count))
        count = sum(segment.max_count for segment in segments)
        if count > MAX_ROWS:
            self.faults.append(
                (
                    ("forwards", name, *forward.segments_key),
                    f"the plan has {count:,} rows for {shown_params(self.params)}; {MAX_ROWS:,} at most",
                )
            )
        operators: list[OperatorPlan] = []
        for index, op in enumerate(forward.ops):
            operators.append(self._operator(op, forward, segments, operators))
            self._sizes(operators[-1], ("forwards", name, "ops", index))
        both_ways = groups is not None and groups.inside == "bidirectional"
        return ForwardPlan(
            name, forward.attention, tuple(segments), tuple(operators), both_ways, model=forward.model
        )

    def _sizes(self, operator: OperatorPlan, path: Path) -> None:
        """Hold numbers that count something to one at least, and a place to the first row at least."""
        for key in ("size", "min", "max", "top", "depth", "start"):
            value, least = operator.numbers.get(key), int(key != "start")
            if value is not None and bounds(value, self.bounds)[0] < least:
                message = f"{key} would be {bounds(value, self.bounds)[0]} for {shown_params(self.params)}"
                self.faults.append(((*path, key), f"{message}; give {least} or more"))

    def _base(self, forward: Forward) -> Expr:
        """Give the slot that the first row takes if nothing else is said: the one behind the committed ones."""
        if forward.model is None:
            return Name("kv")
        return draft_cache.committed(self.models[forward.model].behind)

    def _grouped(self, segment: Segment, plan: SegmentPlan, group: int, width: Expr) -> SegmentPlan:
        """Place the rows of one group: positions go on from its head, slots from row to row of the block.

        Of a list of sources group j reads token j, and the pending token is final, so that its KV is kept.
        """
        at = plan.at if segment.at is not None else simplify(expression.add(plan.at, Const(group)))
        start = simplify(Op("*", (self._sub(width), Const(group))))
        slot = plan.slot if segment.slot is not None else simplify(expression.add(plan.slot, start))
        source, kv = plan.source, plan.kv
        if isinstance(segment.source, list):
            offset = group
            for piece in (self._piece(each, {}) for each in segment.source):
                length = evaluate(piece.length(Const(1)), {})
                if offset < length:
                    start = expression.add(piece.start or Const(0), Const(offset))
                    source = Piece(piece.name, start, expression.add(start, Const(1)))
                    break
                offset -= length
        if kv == "provisional" and source.name == "pending":
            kv = "keep"
        name = f"{plan.name}[{group}]"
        return replace(plan, name=name, at=at, slot=slot, source=source, kv=kv, group=group)

    def _segment(self, segment: Segment, base: Expr, before: Expr, first: int, path: Path) -> SegmentPlan:
        count = self._sub(segment.count)
        low, high = bounds(count, self.bounds)
        if low < 0 or high >= 2**30:
            self.faults.append(
                (
                    (*path, "count"),
                    f"segment {segment.name} would have {low} to {high} rows; counts are 0 or more and bounded",
                )
            )
            high = max(0, min(high, MAX_ROWS))
        at = self._sub(segment.at) if segment.at is not None else simplify(expression.add(base, before))
        slot = self._sub(segment.slot) if segment.slot is not None else at
        source = segment.source[0] if isinstance(segment.source, list) else segment.source
        return SegmentPlan(
            segment.name,
            self._piece(source, {}),
            first,
            count,
            high,
            at,
            slot,
            segment.weights == "adapter",
            segment.logits,
            segment.kv,
            features=None if segment.features is None else self._piece(segment.features, {}),
            query=segment.query,
        )

    def _operator(
        self, op: Operation, forward: Forward, segments: list[SegmentPlan], before: list[OperatorPlan]
    ) -> OperatorPlan:
        listed = getattr(op, "rows", [])
        named = [listed] if isinstance(listed, str) else list(listed)
        rows = tuple(s.name for name in named for s in segments if s.name.partition("[")[0] == name)

        def count(names: str | list[str]) -> Expr:
            wanted = [names] if isinstance(names, str) else names
            for output in (output for known in before for output in known.outputs):
                if wanted == [output.name]:
                    return output.most
            return expression.total(s.count for s in segments if s.name.partition("[")[0] in wanted)

        outputs = tuple(
            OutputPlan(
                name, output.kind, self._bound(output.least(op, count)), self._bound(output.most(op, count))
            )
            for name, output in outputs_of(op)
        )
        # Rows of draft models, and those whose text is no token of the request, propose; all others speak for the
        # target.
        unsure = any(s.name in rows and (s.source.name in ("mask", "noise") or s.adapter) for s in segments)
        draft = unsure or isinstance(op, Unmask) or forward.model is not None
        drafts = self._piece(op.drafts, {}) if isinstance(op, Accept) else None
        return OperatorPlan(
            key_of(op),
            getattr(op, "rule", ""),
            outputs,
            rows,
            drafts,
            {key: value for key in _READ if (value := getattr(op, key, None)) is not None},
            {key: self._sub(value) for key in _NUMBERS if (value := getattr(op, key, None)) is not None},
            freeze=getattr(op, "freeze", None) is not None,
            draft=draft,
        )

    def _bound(self, value: Expr | None) -> Expr:
        assert value is not None, "the loader knows every segment"
        return self._sub(value)

    def _value(self, expr: Expr) -> int:
        return interval(self._sub(expr), self.bounds)[1]

    def _piece(self, piece: Piece, outputs: Mapping[str, int]) -> Piece:
        """Substitute parameters and write both ends out."""
        whole = outputs.get(piece.name, self.carry_length.get(piece.name)) or 1
        start = Const(0) if piece.start is None else self._sub(piece.start)
        stop = Const(whole) if piece.stop is None else self._sub(piece.stop)
        if piece.name in ("mask", "noise"):
            return Piece(piece.name)
        return Piece(piece.name, start, stop)

    def _output_lengths(self, plan: ForwardPlan) -> dict[str, int]:
        """Give the greatest length of every output of a forward that has one."""
        return {
            output.name: bounds(output.most, self.bounds)[1]
            for op in plan.operators
            for output in op.outputs
            if output.kind != "count"
        }

    def _args(self, plan: ForwardPlan) -> tuple[ArgPlan, ...]:
        """List the counts that operators give, with their ranges, as arguments of the completion."""
        return tuple(
            ArgPlan(count.name, count.least, count.most) for op in plan.operators for count in op.counts
        )

    # The machine -----------------------------------------------------------------------------------------------

    def table(self) -> Table:
        spec = self.spec
        declared = [self._state(name) for name in spec.states]
        rounds = [state.name for state in declared if state.round]
        rows = [
            self._row(index, transition, source)
            for index, transition in enumerate(spec.transitions)
            for source in _sources(transition)
        ]
        origin = [
            (index, source)
            for index, transition in enumerate(spec.transitions)
            for source in _sources(transition)
        ]
        events = self._events(rows)
        start = next(state.name for state in declared if state.start)
        contract, fill = self._contract()
        if contract is not None and fill is not None:
            built_in = life_cycle.rows(contract, fill, rounds, start, self.columns, self._first_values(fill))
            around = life_cycle.events(contract, fill, rounds)
            declared = [*life_cycle.states(), *declared]
        else:
            built_in = life_cycle.abstract_rows(rounds, start)
            around = life_cycle.abstract_events(rounds)
            declared = [*life_cycle.abstract_states(), *declared]
        start_line = self.line_of(("states", start))
        rows = [replace(row, line=start_line) for row in built_in] + rows
        events = {event.name: event for event in around} | events
        origin = [(-1, "")] * len(built_in) + origin
        table = Table(
            name=spec.spec,
            params=self.params,
            contract=contract,
            states=tuple(declared),
            columns=self.columns,
            carry=self._carry(),
            events=events,
            rows=tuple(replace(row, index=index) for index, row in enumerate(rows)),
            forwards=self.forwards,
            fill=fill,
            block=self.block,
            models=self.models,
            always={text: self._sub(value) for text, value in spec.check.always.items()},
            sometimes={text: self._sub(value) for text, value in spec.check.sometimes.items()},
            eventually=spec.check.eventually,
            spec=spec,
            page_size=self.page_size,
        )
        paths = {index: ("transitions", number) for index, (number, _) in enumerate(origin) if number >= 0}
        self.faults += faults_of(table, self.bounds, paths)
        under = shown_params(self.params)
        self.faults += draft_cache.faults_of(table, self.bounds, paths, under)
        return with_peaks(table, self.bounds)

    def _contract(self) -> tuple[Contract | None, Expr | None]:
        """Give the contract by name, and the committed slots that prefill must reach under it."""
        contract = self.spec.contract
        if contract is None:
            return None, None
        name: Contract = "block" if isinstance(contract, BlockContract) else contract
        return name, life_cycle.fill(name, self.block or 1)

    def _first_values(self, fill: Expr) -> tuple[tuple[str, tuple[Piece, ...]], ...]:
        """Give the carries that have a value where a request enters the start state."""
        known = {
            "text": Piece("text", fill, expression.add(Name("prompt"), Name("emitted"))),
            "features": Piece("features", Const(0), Const(1)),
        }
        return tuple(
            (
                name,
                tuple(
                    Piece(piece.name, Const(0), Const(self.carry_length[name] or 0))
                    if piece.name == "certain"
                    else known.get(piece.name, piece)
                    for piece in carry.init
                ),
            )
            for name, carry in self.spec.carry.items()
            if carry.init is not None
        )

    def _carry(self) -> tuple[CarryPlan, ...]:
        pending = (CarryPlan("pending", (1,), "token"),) if isinstance(self.spec.contract, str) else ()
        declared = (
            CarryPlan(name, tuple(self._fixed(size) for size in carry.shape), carry.type)
            for name, carry in self.spec.carry.items()
        )
        return (*pending, *declared)

    def _state(self, name: str) -> StatePlan:
        state = self.spec.states[name]
        holding: dict[str, Expr] = {kind: Const(0) for kind in KINDS}
        if state.forward is not None and state.forward in self.forwards:
            if self.spec.contract:
                holding["committed"] = Name("kv")
            plan = self.forwards[state.forward]
            for segment in plan.segments:
                kind = KIND_OF_FATE[segment.kv]
                if plan.model is None:
                    holding[kind] = simplify(expression.add(holding[kind], segment.count))
                else:  # up to its last row, the slots of a draft cache are those of the target's
                    end = expression.add(segment.slot, segment.count)
                    holding["scratch"] = difference(end, Name("kv"))
        if state.kv is not None:
            asserted = {kind: self._sub(getattr(state.kv, kind)) for kind in KINDS}
            if state.forward is not None:
                for kind in KINDS:
                    if difference(asserted[kind], holding[kind]) != Const(0):
                        derived, said = to_text(holding[kind]), to_text(asserted[kind])
                        message = f"state {name} holds {derived} {kind} slots by its forward, not {said}"
                        self.faults.append((("states", name, "kv"), message))
            else:
                holding = asserted
        return StatePlan(name, state.phase, holding, state.forward, state.round, state.start)

    def _events(self, rows: list[Row]) -> dict[str, EventPlan]:
        events: dict[str, EventPlan] = {}
        for name, state in self.spec.states.items():
            if state.forward is not None:
                emits = any(row.emit for row in rows if row.event == name)
                events[name] = EventPlan(name, (name,), self._args(self.forwards[state.forward]), emits=emits)
        for name, event in self.spec.events.items():
            handled = tuple(dict.fromkeys(row.sources[0] for row in rows if row.event == name))
            ignored = tuple(state for state, plan in self.spec.states.items() if name in plan.ignore)
            args = tuple(
                ArgPlan(arg, self._sub(bound.range[0]), self._sub(bound.range[1]))
                for arg, bound in event.args.items()
            )
            events[name] = EventPlan(name, handled, args, ignored)
        return events

    def _row(self, index: int, transition: Transition, source: str) -> Row:
        state = self.spec.states[source]
        plan = self.forwards.get(state.forward) if state.forward is not None else None
        outputs = self._output_lengths(plan) if plan is not None else {}
        emit = tuple(self._piece(piece, outputs) for piece in transition.emit)
        sets: list[tuple[str, Expr]] = []
        carries: list[tuple[str, tuple[Piece, ...]]] = []
        for name, value in transition.set.items():
            if name in self.spec.columns:
                sets.append((name, self._sub(expression.parse(value))))  # type: ignore[arg-type]
            else:
                texts = value if isinstance(value, list) else [value]
                carries.append((name, tuple(self._piece(parse_piece(str(text)), outputs) for text in texts)))
        drafts = plan is not None and plan.model is not None
        keep = self._sub(transition.keep)
        return Row(
            -1,
            (source,),
            transition.on or source,
            transition.to,
            self._sub(transition.when),
            # What stays in a draft model's cache is none of the target's slots; `rules/draft_cache.py` follows it.
            Const(0) if drafts else keep,
            emit,
            tuple(sets),
            tuple(carries),
            draft_keep=keep if drafts else Const(0),
            keep_rows=transition.keep_rows,
            keep_stride=None if transition.keep_stride is None else self._value(transition.keep_stride),
            line=self.line_of(("transitions", index)),
        )


def _sources(transition: Transition) -> list[str]:
    return [transition.from_] if isinstance(transition.from_, str) else list(transition.from_)


__all__ = ["CompileError", "compile_table", "path_text", "resolve_params"]
