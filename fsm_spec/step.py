"""The step: one event for a batch of requests, one array a column.

Rule of this file: the generated code never branches on a value, names no array library (the namespace is an
argument: numpy, torch, or what answers to their `where`, `minimum` and `maximum`), and allocates nothing whose size
depends on data. So the same code runs on a level of the checker's search, the simulator's batch and device tensors.
Only the rows and columns that an event touches are computed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fsm_spec.language import expression
from fsm_spec.language.expression import Const, Expr, Name, Op, to_text
from fsm_spec.language.linear import difference, simplify
from fsm_spec.table import END, STOP, Row, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# A column: int32 array of the namespace in use, one element a request.
Array = Any
Columns = dict[str, Array]

# Row and transition of an event that the state ignores.
IGNORED: Final = -1

_CONSTANT: Final = re.compile(r"\bk_m?\d+\b")
_BOOLEAN: Final = {"and": "&", "or": "|"}


class Step:
    """Hold what an event did to each request.

    `columns`: int32 arrays after it; `transition`: int32, `2 * row`, plus 1 where the cut ended the request;
    `emitted`: int32, tokens emitted after the cut.
    """

    __slots__ = ("_before", "_table", "_xp", "columns", "emitted", "transition")

    def __init__(
        self, table: Table, xp: Any, before: Columns, columns: Columns, transition: Array, emitted: Array
    ) -> None:
        self._table = table
        self._xp = xp
        self._before = before
        self.columns = columns
        self.transition = transition
        self.emitted = emitted

    def slot_changes(self) -> dict[str, Array]:
        """Give the change in slots by kind: held while the new state's forward runs, minus held before."""
        before = slots(self._table, self._before, self._xp)
        after = slots(self._table, self.columns, self._xp)
        return {kind: after[kind] - before[kind] for kind in after}


def step(table: Table, columns: Columns, event: str, args: Mapping[str, Array], xp: Any) -> Step:
    """Apply one event to requests that are all in states that handle it.

    `columns` and `args` are int32 arrays [n] of the namespace `xp`; n may be 0. An event that emits takes the
    argument `stop`. Arguments are trusted to be in range (the oracle checks them).
    Raises UnhandledEvent for an event the table does not know.
    """
    key = ("step", event, id(xp))
    function = table.cache.get(key)
    if function is None:
        function = table.cache[key] = _compile(_Source(table, event).text(), "step", xp)
    after, transition, emitted = function(columns, args)
    return Step(table, xp, columns, after, transition, emitted)


def slots(table: Table, columns: Columns, xp: Any) -> dict[str, Array]:
    """Count the slots each request holds by kind while its state's forward is in flight: int32 arrays [n]."""
    key = ("slots", id(xp))
    function = table.cache.get(key)
    if function is None:
        function = table.cache[key] = _compile(_slots_source(table), "slots", xp)
    return function(columns)  # type: ignore[no-any-return]


def choose(table: Table, columns: Columns, event: str, args: Mapping[str, Array], xp: Any) -> Array:
    """Give the row that each request takes at this event, by its guards alone: int32 [n], before any cut."""
    key = ("choose", event, id(xp))
    function = table.cache.get(key)
    if function is None:
        function = table.cache[key] = _compile(_Source(table, event).rows_text(), "choose", xp)
    return function(columns, args)


def evaluate(table: Table, expr: Expr, columns: Columns, xp: Any) -> Array:
    """Evaluate an expression over columns for every request: an array [n] (a constant is spread over them).

    `columns` may hold arguments of an event beside them.
    """
    # By identity, as hashing a tree costs more than evaluating it; the entry keeps the expression alive.
    key = ("evaluate", id(expr), id(xp))
    known = table.cache.get(key)
    if known is None:
        emitter = _Emitter(table)
        body = emitter.array(expr)
        loads = emitter.loads("c", tuple(emitter.read))
        text = "\n    ".join(["def evaluate(c):", *loads, *emitter.lines, f"return {body}"])
        known = table.cache[key] = expr, _compile(text, "evaluate", xp)
    return known[1](columns)


def source_text(table: Table, event: str) -> str:
    """Give the generated Python text of one event, for reading and debugging."""
    return _Source(table, event).text()


class Body(NamedTuple):
    """Hold generated lines: the columns and arguments they read (as `v_NAME`), and where the results stand."""

    reads: tuple[str, ...]
    lines: tuple[str, ...]
    values: dict[str, str]


def step_body(table: Table, event: str) -> Body:
    """Give the lines of one event, for a function around them: columns that change, `=transition`, `=emitted`."""
    source = _Source(table, event)
    values = source.updates()
    return Body(tuple(source.emit.read), tuple(source.emit.lines), values)


def rows_body(table: Table, event: str) -> Body:
    """Give the lines that name the row of an event, before any cut, for a function around them: `=row`."""
    source = _Source(table, event)
    row = source.row()
    return Body(tuple(source.emit.read), tuple(source.emit.lines), {"=row": row})


def value_body(table: Table, values: Mapping[str, Expr]) -> Body:
    """Give the lines that evaluate expressions over columns, for a function around them."""
    emit = _Emitter(table)
    names = {name: emit.value(expr) for name, expr in values.items()}
    return Body(tuple(emit.read), tuple(emit.lines), names)


def constants(text: str) -> dict[str, int]:
    """Give the values of the constants that generated lines name."""
    return {name: int(name[2:].replace("m", "-")) for name in set(_CONSTANT.findall(text))}


def _compile(text: str, name: str, xp: Any) -> Callable[..., Any]:
    """Turn generated text into a function; it is built from parsed expressions, never from a spec's own words."""
    scope: dict[str, Any] = {
        "xp": xp,
        "where": xp.where,
        "minimum": xp.minimum,
        "maximum": xp.maximum,
    }
    for constant, value in constants(text).items():
        scope[constant] = xp.asarray(value, dtype=xp.int32)
    exec(compile(text, f"<{name}>", "exec"), scope)  # noqa: S102 - see docstring
    return scope[name]  # type: ignore[no-any-return]


def _constant(value: int) -> str:
    """Name an int32 scalar of the namespace; a Python int would widen `where` to int64."""
    return f"k_{value}" if value >= 0 else f"k_m{-value}"


class _Emitter:
    """Emit array code for expressions, each distinct one once."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.lines: list[str] = []
        self.known: dict[str, str] = {}
        self.read: dict[str, None] = {}

    def variable(self, name: str) -> str:
        """Name the local variable of a column or argument."""
        self.read[name] = None
        return f"v_{name}"

    def loads(self, source: str, names: Sequence[str]) -> list[str]:
        """Give the lines that load the columns (or arguments) read so far."""
        return [f"v_{name} = {source}[{name!r}]" for name in self.read if name in names]

    def bind(self, text: str) -> str:
        """Give the name of a computed value, computing it at its first use."""
        if text.isidentifier() or text.startswith("k_"):
            return text
        if text not in self.known:
            self.known[text] = f"t{len(self.known)}"
            self.lines.append(f"{self.known[text]} = {text}")
        return self.known[text]

    def scalar(self, expr: Expr) -> str:
        """Emit an operand; a constant stays a Python int, which keeps int32 in arithmetic and comparisons."""
        return str(expr.value) if isinstance(expr, Const) and not expr.boolean else self.value(expr)

    def value(self, expr: Expr) -> str:
        """Emit an expression as an array or a 0-dimensional constant."""
        if isinstance(expr, Const):
            return _constant(expr.value) if not expr.boolean else f"{_constant(expr.value)} == k_1"
        if isinstance(expr, Name):
            code = self.table.codes.get(expr.name)
            if code is not None and expr.name not in self.table.column_names:
                return _constant(code)
            return self.variable(expr.name)
        return self.bind(self._operation(expr))

    def array(self, expr: Expr) -> str:
        """Emit an expression as an array of full length."""
        if any(
            name in self.table.column_names or name in self._arguments() for name in expression.names(expr)
        ):
            return self.value(expr)
        return self.spread(expression.evaluate(expr, self.table.codes))

    def spread(self, value: int) -> str:
        """Emit a constant as an array of full length (cheaper than the namespace's `full_like`)."""
        zeros = self.bind(f"{self.variable('state')} * 0")
        return zeros if value == 0 else self.bind(f"{zeros} + {value}")

    def _arguments(self) -> set[str]:
        return {arg.name for event in self.table.events.values() for arg in event.args} | {STOP}

    def _operation(self, expr: Op) -> str:
        op = expr.op
        if op in ("min", "max"):
            return f"{op}imum({self.value(expr.args[0])}, {self.value(expr.args[1])})"
        parts = [self.scalar(arg) for arg in expr.args]
        if op == "neg":
            return f"-{parts[0]}"
        if op == "not":
            return f"~({parts[0]})"
        if op == "ceil":
            return f"-(-{parts[0]} // {parts[1]})"
        return (
            f"({parts[0]}) {_BOOLEAN.get(op, op)} ({parts[1]})"
            if op in _BOOLEAN
            else f"{parts[0]} {op} {parts[1]}"
        )

    def choose(self, guards: Sequence[str], values: Sequence[Expr]) -> str:
        """Emit the value of the row whose guard holds; the last row needs no guard, as guards are complete."""
        result, *rest = [values[-1], *reversed(list(zip(guards, values[:-1], strict=False)))]
        text, held = self.value(result), to_text(result)
        same = True
        for guard, value in rest:
            if same and to_text(value) == held:
                continue
            same = False
            text = self.bind(f"where({guard}, {self.value(value)}, {text})")
        return text


_NEVER: Final = Const(0, boolean=True)


class _Source:
    """Write the text of `step` for one event of one table."""

    def __init__(self, table: Table, event: str) -> None:
        self.table = table
        rows = table.rows_of(event)
        # A guard over parameters alone is decided by now.
        self.rows: tuple[Row, ...] = tuple(row for row in rows if row.guard != _NEVER) or rows
        self.plan = table.events[event]
        if self.plan.ignored:
            # An ignored event changes nothing and takes no transition.
            self.rows = (Row(IGNORED, self.plan.ignored, event, ""), *self.rows)
        self.emit = _Emitter(table)

    def text(self) -> str:
        """Give the function `step(c, a) -> (columns, transition, emitted)`."""
        updates = self.updates()
        arguments = [arg.name for arg in self.plan.args]
        loads = self.emit.loads("c", self.table.column_names) + self.emit.loads("a", [*arguments, STOP])
        stores = [f"new[{name!r}] = {value}" for name, value in updates.items() if not name.startswith("=")]
        lines = [*loads, *self.emit.lines, "new = dict(c)", *stores]
        return "\n    ".join(
            ["def step(c, a):", *lines, f"return new, {updates['=transition']}, {updates['=emitted']}"]
        )

    def rows_text(self) -> str:
        """Give the function `choose(c, a) -> rows`."""
        rows = self.row()
        arguments = [arg.name for arg in self.plan.args]
        loads = self.emit.loads("c", self.table.column_names) + self.emit.loads("a", arguments)
        return "\n    ".join(["def choose(c, a):", *loads, *self.emit.lines, f"return {rows}"])

    def row(self) -> str:
        """Emit the index of the row that is taken."""
        self.emit.variable("state")
        return self._full(self.emit.choose(self._guards(), [Const(row.index) for row in self.rows]))

    def _guards(self) -> list[str]:
        """Emit each row's guard, with its states where the event is handled in several."""
        several = len({state for row in self.rows for state in row.sources}) > 1 and len(self.rows) > 1
        guards = []
        for row in self.rows[:-1]:
            guard = row.guard
            if several:
                here: Expr = Const(0, boolean=True)
                for state in row.sources:
                    here = expression.substitute(Op("or", (here, Op("==", (Name("state"), Name(state))))), {})
                guard = expression.both(here, guard)
            guards.append(self.emit.bind(self.emit.value(guard)))
        return guards

    def updates(self) -> dict[str, str]:
        """Emit the new value of each column that changes, `=transition` and `=emitted`."""
        emit, table = self.emit, self.table
        guards = self._guards()
        names = list(dict.fromkeys(name for row in self.rows for name, _ in row.sets))
        updates: dict[str, str] = {}
        codes = emit.choose(
            guards, [Const(IGNORED if row.index == IGNORED else 2 * row.index) for row in self.rows]
        )
        targets = emit.choose(guards, [self._target(row) for row in self.rows])
        emit.variable("state")
        if any(row.emit for row in self.rows):
            updates |= self._cut(guards)
            done = updates.pop("=done")
            updates["state"] = emit.bind(f"where({done}, {_constant(table.codes[END])}, {targets})")
            updates["=transition"] = emit.bind(f"{codes} + {done}")
        else:
            updates["state"] = self._full(targets)
            updates["=transition"] = self._full(codes)
            updates["=emitted"] = emit.spread(0)
            if any(row.keep != Const(0) for row in self.rows):
                updates["kv"] = emit.bind(f"v_kv + {emit.choose(guards, [row.keep for row in self.rows])}")
                emit.variable("kv")
        for name in names:
            values = [dict(row.sets).get(name, Name(name)) for row in self.rows]
            updates[name] = self._full(emit.choose(guards, values))
        return updates

    def _target(self, row: Row) -> Expr:
        return Name("state") if row.index == IGNORED else Const(self.table.codes[row.target])

    def _full(self, text: str) -> str:
        """Spread a constant over the batch."""
        return self.emit.spread(int(text[2:].replace("m", "-"))) if text.startswith("k_") else text

    def _joined(self, values: list[Expr]) -> list[Expr]:
        """Let a row take the last row's value where its guard, a column or count with one value, makes them equal."""
        joined = list(values)
        for index, row in enumerate(self.rows[:-1]):
            guard = row.guard
            if isinstance(guard, Op) and guard.op == "==" and isinstance(guard.args[0], Name):
                known = guard.args[1]
                if isinstance(known, Const):
                    last = simplify(expression.substitute(values[-1], {guard.args[0].name: known}))
                    joined[index] = values[-1] if last == simplify(values[index]) else values[index]
        return joined

    def _cut(self, guards: list[str]) -> dict[str, str]:
        """Emit the cut at the first stop token and the limit (see `oracle.py` for the plain reading)."""
        emit = self.emit
        run = emit.choose(guards, self._joined([row.emit_count for row in self.rows]))
        for name in ("limit", "emitted", "kv", STOP):
            emit.variable(name)
        cut = emit.bind(f"minimum(v_stop + 1, {emit.bind('v_limit - v_emitted')})")
        done = emit.bind(f"{cut} <= {run}")
        kept = emit.bind(f"minimum({cut}, {run})")
        # keep - (run - kept): the difference keep - run is a constant in most specs, so simplify before emitting.
        margins = [difference(row.keep, row.emit_count) for row in self.rows]
        margin = emit.choose(guards, self._joined(margins))
        moved = kept if margin == "k_0" else emit.bind(f"{kept} + {margin}")
        return {
            "=done": done,
            "=emitted": kept,
            "emitted": emit.bind(f"v_emitted + {kept}"),
            "kv": emit.bind(f"v_kv + {moved}"),
        }


def _slots_source(table: Table) -> str:
    emit = _Emitter(table)
    emit.variable("state")
    results = []
    for kind in next(iter(table.states)).holding:
        text = emit.spread(0)
        for state in table.states:
            slots_of = state.holding[kind]
            if slots_of != Const(0):
                here = emit.bind(f"v_state == {table.codes[state.name]}")
                text = emit.bind(f"where({here}, {emit.value(slots_of)}, {text})")
        results.append(f"{kind!r}: {text}")
    loads = emit.loads("c", table.column_names)
    return "\n    ".join(["def slots(c):", *loads, *emit.lines, f"return {{{', '.join(results)}}}"])


__all__ = [
    "Array",
    "Body",
    "Columns",
    "Step",
    "choose",
    "constants",
    "evaluate",
    "rows_body",
    "slots",
    "source_text",
    "step",
    "step_body",
    "value_body",
]
