"""Compile a spec for given parameters to its table; its forwards in `compile_forward.py`.

Cross references are checked by `rules/whole_spec.py` before; what only concrete parameters show is in
`rules/soundness.py`, the slots that rounds need in `peaks.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fsm_spec import life_cycle
from fsm_spec.compile_forward import ForwardCompiler
from fsm_spec.compile_values import Values, resolve_params
from fsm_spec.errors import SpecError
from fsm_spec.language import expression
from fsm_spec.language.expression import Const, Expr, Name, evaluate, to_text
from fsm_spec.language.findings import path_text
from fsm_spec.language.linear import bounds, difference, simplify
from fsm_spec.language.piece import Piece, parse_piece
from fsm_spec.language.scope import Scope
from fsm_spec.language.spec import BlockContract
from fsm_spec.peaks import with_peaks
from fsm_spec.plan import KIND_OF_FATE, KINDS, ForwardPlan
from fsm_spec.rules import draft_cache, positions
from fsm_spec.rules.soundness import Fault, faults_of, shown_params
from fsm_spec.rules.whole_spec import followed
from fsm_spec.table import ArgPlan, CarryPlan, EventPlan, ModelPlan, Row, StatePlan, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fsm_spec.language.findings import Path
    from fsm_spec.language.spec import Spec, Transition
    from fsm_spec.table import Contract


class CompileError(SpecError):
    """Report faults that show for given parameters; usual causes: guards with a gap, a broken contract."""

    def __init__(self, name: str, faults: list[Fault]) -> None:
        self.faults = faults
        super().__init__(f"{name}: " + "; ".join(f"{path_text(path)}: {message}" for path, message in faults))


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
    chosen = resolve_params(spec, params, check=check)
    compiler = _Compiler(spec, Values(spec, chosen, page_size), line_of or (lambda _: 0))
    table = compiler.table()
    if chosen not in Scope(spec).settings():
        # The loader follows tokens under the default and the checker's values; these are others.
        scope = Scope(spec, values=chosen)
        compiler.faults += followed(scope)
        if check and not compiler.faults:
            compiler.faults += positions.faults_of(table)
    if compiler.faults:
        raise CompileError(spec.spec, compiler.faults)
    return table


class _Compiler:
    """Build the parts of one table in order, collecting faults."""

    def __init__(self, spec: Spec, values: Values, line_of: Callable[[Path], int]) -> None:
        self.spec = spec
        self.values = values
        self.faults = values.faults
        self.line_of = line_of
        self.block = (
            evaluate(spec.contract.block, values.params) if isinstance(spec.contract, BlockContract) else None
        )
        if self.block is not None and self.block < 1:
            self.faults.append((("contract", "block"), f"a block of {self.block} tokens; give 1 or more"))
            self.block = 1
        self.models = {
            name: ModelPlan(name, model.kind, self.values.sub(model.behind))
            for name, model in spec.models.items()
        }
        forwards = ForwardCompiler(values, self.models)
        self.forwards = {name: forwards.compile(name, forward) for name, forward in spec.forwards.items()}

    def _output_lengths(self, plan: ForwardPlan) -> dict[str, int]:
        """Give the greatest length of every output of a forward that has one."""
        return {
            output.name: bounds(output.most, self.values.bounds)[1]
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
            built_in = life_cycle.rows(
                contract, fill, rounds, start, self.values.columns, self._first_values(fill)
            )
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
            params=self.values.params,
            contract=contract,
            states=tuple(declared),
            columns=self.values.columns,
            carry=self._carry(),
            events=events,
            rows=tuple(replace(row, index=index) for index, row in enumerate(rows)),
            forwards=self.forwards,
            fill=fill,
            block=self.block,
            models=self.models,
            always={text: self.values.sub(value) for text, value in spec.check.always.items()},
            sometimes={text: self.values.sub(value) for text, value in spec.check.sometimes.items()},
            eventually=spec.check.eventually,
            spec=spec,
            page_size=self.values.page_size,
        )
        paths = {index: ("transitions", number) for index, (number, _) in enumerate(origin) if number >= 0}
        self.faults += faults_of(table, self.values.bounds, paths)
        under = shown_params(self.values.params)
        self.faults += draft_cache.faults_of(table, self.values.bounds, paths, under)
        return with_peaks(table, self.values.bounds)

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
            life_cycle.FEATURES: Piece(life_cycle.FEATURES, Const(0), Const(1)),
        }
        return tuple(
            (
                name,
                tuple(
                    Piece(piece.name, Const(0), Const(self.values.carry_length[name] or 0))
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
            CarryPlan(name, tuple(self.values.fixed(size) for size in carry.shape), carry.type)
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
            asserted = {kind: self.values.sub(getattr(state.kv, kind)) for kind in KINDS}
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
                ArgPlan(arg, self.values.sub(bound.range[0]), self.values.sub(bound.range[1]))
                for arg, bound in event.args.items()
            )
            events[name] = EventPlan(name, handled, args, ignored)
        return events

    def _row(self, index: int, transition: Transition, source: str) -> Row:
        state = self.spec.states[source]
        plan = self.forwards.get(state.forward) if state.forward is not None else None
        outputs = self._output_lengths(plan) if plan is not None else {}
        emit = tuple(self.values.piece(piece, outputs) for piece in transition.emit)
        sets: list[tuple[str, Expr]] = []
        carries: list[tuple[str, tuple[Piece, ...]]] = []
        for name, value in transition.set.items():
            if name in self.spec.columns:
                sets.append((name, self.values.sub(expression.parse(value))))  # type: ignore[arg-type]
            else:
                texts = value if isinstance(value, list) else [value]
                carries.append(
                    (name, tuple(self.values.piece(parse_piece(str(text)), outputs) for text in texts))
                )
        drafts = plan is not None and plan.model is not None
        keep = self.values.sub(transition.keep)
        return Row(
            -1,
            (source,),
            transition.on or source,
            transition.to,
            self.values.sub(transition.when),
            # What stays in a draft model's cache is none of the target's slots; `rules/draft_cache.py` follows it.
            Const(0) if drafts else keep,
            emit,
            tuple(sets),
            tuple(carries),
            draft_keep=keep if drafts else Const(0),
            keep_rows=transition.keep_rows,
            keep_stride=None if transition.keep_stride is None else self.values.value(transition.keep_stride),
            line=self.line_of(("transitions", index)),
        )


def _sources(transition: Transition) -> list[str]:
    return [transition.from_] if isinstance(transition.from_, str) else list(transition.from_)
