"""The one compiled function that a run calls for its table: steps, counts of rows and draws, and prefill's end.

It is written by the emitter of `fsm_spec.step`, as a loop over places in the cells of a run (`places.py`), and all
tables' functions have one signature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from numba import types

from fsm_spec import life_cycle
from fsm_spec.jit import generated
from fsm_spec.language.expression import Expr
from fsm_spec.simulator.places import AT, COLUMNS, EMITTED_NOW, TRANSITION
from fsm_spec.step import Body, constants, step_body, value_body
from fsm_spec.table import NO_STOP, STOP, Table

SIGNATURE = types.void(types.int64, types.int64, types.int64, types.int64[:, ::1])
FILL = "fill"
# Nobody goes away in a simulation, and there are no stop strings.
UNUSED = (life_cycle.ABORT, life_cycle.HALT)


class TableCode:
    """Hold the function of one table; `what` numbers what it does, by event or by the name of a query.

    `queries` are expressions over columns by name: each writes its values to the rows from `results` on, in order.
    """

    def __init__(self, table: Table, queries: Mapping[str, Sequence[Expr]]) -> None:
        self.table = table
        self.args = COLUMNS + len(table.column_names)
        self.results = self.args + max((len(event.args) for event in table.events.values()), default=0)
        most = max((len(values) for values in queries.values()), default=0)
        self.rows = self.results + max(most, 1)
        self._queries = {name: values for name, values in queries.items() if values}
        self.events = tuple(name for name in table.events if name not in UNUSED)
        self.what = {name: number for number, name in enumerate((*self.events, *self._queries))}

    @cached_property
    def function(self) -> Any:  # noqa: ANN401 - numba's functions have no type
        """Compile the function `run(what, first, last, cells)`: places stand in row AT, from first to before last."""
        text = self.text
        return generated(text, "run", constants(text), SIGNATURE)

    @cached_property
    def text(self) -> str:
        """Give the generated text."""
        lines = ["def run(what, first, last, c):"]
        bodies = [(name, self._step(name)) for name in self.events]
        bodies += [(name, self._query(values)) for name, values in self._queries.items()]
        for name, body in bodies:
            lines += [f"    {'if' if len(lines) == 1 else 'elif'} what == {self.what[name]}:"]
            lines += ["        for place in range(first, last):", f"            i = c[{AT}, place]"]
            lines += [f"            {line}" for line in body]
        return "\n".join([*lines, ""])

    def _step(self, event: str) -> list[str]:
        body = step_body(self.table, event)
        values = dict(body.values)
        stores = [
            f"c[{TRANSITION}, i] = {values.pop('=transition')}",
            f"c[{EMITTED_NOW}, i] = {values.pop('=emitted')}",
        ]
        stores += [f"c[{self.column(name)}, i] = {value}" for name, value in values.items()]
        return [*self._loads(body, event), *body.lines, *stores]

    def _query(self, values: Sequence[Expr]) -> list[str]:
        body = value_body(self.table, {str(index): value for index, value in enumerate(values)})
        stores = [f"c[{self.results + int(index)}, i] = {value}" for index, value in body.values.items()]
        return [*self._loads(body, None), *body.lines, *stores]

    def _loads(self, body: Body, event: str | None) -> list[str]:
        loads = []
        arguments = [arg.name for arg in self.table.events[event].args] if event is not None else []
        for name in body.reads:
            if name in self.table.column_names:
                loads.append(f"v_{name} = c[{self.column(name)}, i]")
            elif name in arguments:
                loads.append(f"v_{name} = c[{self.argument(event or '', name)}, i]")
            else:
                # A simulated request ends at its length: there is never a stop token.
                assert name == STOP
                loads.append(f"v_{name} = {NO_STOP}")
        return loads

    def column(self, name: str) -> int:
        """Give the row of a column."""
        return COLUMNS + self.table.column_names.index(name)

    def argument(self, event: str, name: str) -> int:
        """Give the row of an event's argument."""
        return self.args + [arg.name for arg in self.table.events[event].args].index(name)
