"""The absorbing Markov chain of one request: the states it goes through, with the chances of its operators' counts.

A request runs alone, without preemption and without a stop token. What the visits of the states add up to is in
`expect.py`. Chances are fractions; very large chains fall back to floats.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from fsm_spec import life_cycle
from fsm_spec.checker.properties import Judge
from fsm_spec.errors import UserError
from fsm_spec.language.expression import evaluate
from fsm_spec.oracle import holding, next_event, oracle
from fsm_spec.table import END, NO_STOP, PREFILL, STOP

if TYPE_CHECKING:
    from fsm_spec.checker.chances import Chances
    from fsm_spec.oracle import Outcome
    from fsm_spec.table import Table

Values = tuple[int, ...]
Number = Fraction | float
# Fractions of a chain of n states have about n digits a rate: beyond this a float is as good an answer, and quicker.
MOST_EXACT: Final = 3_000
MOST_STATES: Final = 300_000
# States on a cycle, or behind one, are solved together; elimination over fractions takes the cube of their number.
MOST_SOLVED_EXACTLY: Final = 64
MOST_SOLVED: Final = 4_000


class Node(NamedTuple):
    """Hold a state of the chain: columns, and the most slots that were in use so far."""

    values: Values
    peak: int


class _Outcome(NamedTuple):
    """Hold one outcome of an event: its chance, columns after it, slots used by it, tokens emitted."""

    chance: Fraction
    after: Values
    used: int
    tokens: int


@dataclass
class Chain:
    """Enumerate the chain from the start of a request, and solve it."""

    table: Table
    chances: Mapping[str, Chances]
    limit: int
    prompt: int
    nodes: list[Node] = field(default_factory=list)
    # By node: chances of its successors; and what a visit adds: rounds, forwards, tokens, and at an end the peak.
    next: list[dict[int, Number]] = field(default_factory=list)
    rewards: list[tuple[int, int, Fraction, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Enumerate breadth first; where the peak so far cannot matter any more, it is forgotten."""
        self.judge = Judge(self.table)
        self._known: dict[Values, list[_Outcome]] = {}
        self._places: dict[Node, int] = {}
        self._place(*self._start())
        at = 0
        while at < len(self.nodes):
            self._expand(*self.nodes[at])
            at += 1
            if len(self.nodes) > MOST_STATES:
                raise UserError(
                    f"{self.table.name}: the chain of one request has more than {MOST_STATES:,} states; "
                    "give a lower limit or smaller parameters"
                )

    def _start(self) -> tuple[Values, int]:
        """Give the columns after admission and prefill, and the slots in use then."""
        table = self.table
        if table.contract is None:
            after = self._apply(table.new_abstract_request(), life_cycle.ADMIT, {})
        else:
            after = self._apply(table.new_request(self.prompt, self.limit), life_cycle.ADMIT, {"hit": 0})
            # A text shorter than a block has nothing to prefill.
            if table.states[after["state"]].name == PREFILL:
                after = self._apply(after, life_cycle.FIRST, {STOP: NO_STOP})
        return tuple(after.values()), self._held(after)

    def _apply(self, columns: Mapping[str, int], event: str, args: Mapping[str, int]) -> dict[str, int]:
        return oracle(self.table, columns, event, args).columns

    def _held(self, columns: Mapping[str, int]) -> int:
        return sum(holding(self.table, columns).values()) if self.table.contract is None else columns["kv"]

    def _place(self, values: Values, peak: int) -> int:
        outcomes = self._outcomes(values)
        # What is used next in any case makes a lower peak of before all the same.
        node = Node(values, max(peak, min((outcome.used for outcome in outcomes), default=0)))
        if node not in self._places:
            self._places[node] = len(self.nodes)
            self.nodes.append(node)
        return self._places[node]

    def _expand(self, values: Values, peak: int) -> None:
        onward: dict[int, Number] = {}
        tokens = Fraction(0)
        for outcome in self._outcomes(values):
            place = self._place(outcome.after, max(peak, outcome.used))
            onward[place] = onward.get(place, Fraction(0)) + outcome.chance
            tokens += outcome.chance * outcome.tokens
        self.next.append(onward)
        state = self.table.states[values[0]]
        runs = state.forward is not None and self.table.forwards[state.forward].target_rows > 0
        self.rewards.append((int(state.round and bool(onward)), int(runs), tokens, 0 if onward else peak))

    def _outcomes(self, values: Values) -> list[_Outcome]:
        if values not in self._known:
            columns = dict(zip(self.table.column_names, values, strict=True))
            self._known[values] = [
                _Outcome(chance, tuple(done.columns.values()), self._used(columns, done), done.emitted)
                for chance, done in self._steps(columns)
            ]
        return self._known[values]

    def _used(self, columns: Mapping[str, int], done: Outcome) -> int:
        if self.table.contract is None:
            return self._held(done.columns)
        return self.judge.used(columns, done.columns)

    def _steps(self, columns: Mapping[str, int]) -> Iterator[tuple[Fraction, Outcome]]:
        """Apply the state's event with every possible result and its chance."""
        event = self._event(columns)
        if event is None:
            return
        stop = {STOP: NO_STOP} if self.table.events[event].emits else {}
        for chance, args in self._arguments(columns, event):
            yield chance, oracle(self.table, columns, event, {**args, **stop})

    def _event(self, columns: Mapping[str, int]) -> str | None:
        state = self.table.states[columns["state"]].name
        if state == END:
            return None
        if self.table.contract is not None:
            return next_event(self.table, columns)
        built_in = {row.event for row in self.table.rows if row.built_in}
        own = [
            name
            for name, event in self.table.events.items()
            if state in event.states and name not in built_in
        ]
        if len(own) > 1:
            raise UserError(
                f"{self.table.name}: the state {state} handles the events {', '.join(own)}, and nothing says how "
                "often each comes; expected values need one event a state"
            )
        return own[0] if own else None

    def _arguments(self, columns: Mapping[str, int], event: str) -> Iterator[tuple[Fraction, dict[str, int]]]:
        """Enumerate the counts of an event with their chances; impossible ones are left out."""
        known: list[tuple[Fraction, dict[str, int]]] = [(Fraction(1), {})]
        for arg in self.table.events[event].args:
            longer = []
            for chance, args in known:
                values = {**columns, **args}
                low, high = evaluate(arg.low, values), evaluate(arg.high, values)
                law = self.chances[arg.name].law(high - low)
                longer += [
                    (chance * part, {**args, arg.name: low + count}) for count, part in enumerate(law) if part
                ]
            known = longer
        yield from known

    # Solving ---------------------------------------------------------------------------------------------------

    def visits(self) -> dict[int, Number]:
        """Give the expected visits of every state; those of an end are the chance to end there."""
        self._refuse_endless()
        if len(self.nodes) > MOST_EXACT:
            self.next = [{place: float(part) for place, part in row.items()} for row in self.next]
        came: list[Number] = [Fraction(0)] * len(self.nodes)
        came[0] = Fraction(1)
        waits = [0] * len(self.nodes)
        for onward in self.next:
            for place in onward:
                waits[place] += 1
        ready = deque(place for place, count in enumerate(waits) if not count)
        visits: dict[int, Number] = {}
        while ready:
            place = ready.popleft()
            visits[place] = came[place]
            for after, chance in self.next[place].items():
                came[after] += came[place] * chance
                waits[after] -= 1
                if not waits[after]:
                    ready.append(after)
        return visits | self._solved([place for place in range(len(self.nodes)) if place not in visits], came)

    def _refuse_endless(self) -> None:
        """Hold every state to a way to the end: without one the expected values are infinite."""
        before: list[list[int]] = [[] for _ in self.nodes]
        for place, onward in enumerate(self.next):
            for after in onward:
                before[after].append(place)
        todo = [p for p, node in enumerate(self.nodes) if self.table.states[node.values[0]].name == END]
        ends = set(todo)
        while todo:
            for place in before[todo.pop()]:
                if place not in ends:
                    ends.add(place)
                    todo.append(place)
        lost = next((place for place in range(len(self.nodes)) if place not in ends), None)
        if lost is not None:
            state = self.table.states[self.nodes[lost].values[0]].name
            raise UserError(
                f"{self.table.name}: a request in the state {state} never ends under these chances, so nothing can "
                "be expected of it; see what `check` says of it, or give other chances"
            )

    def _solved(self, places: list[int], came: list[Number]) -> dict[int, Number]:
        """Solve visits = came + visits * chances for the states on cycles and behind them."""
        if len(places) > MOST_SOLVED:
            raise UserError(
                f"{self.table.name}: {len(places):,} states of one request lie on cycles or behind them, and "
                f"{MOST_SOLVED:,} are solved at most; give smaller parameters"
            )
        order = {place: row for row, place in enumerate(places)}
        matrix: list[list[Number]] = [[Fraction(int(a == b)) for b in places] for a in places]
        for place in places:
            for after, chance in self.next[place].items():
                matrix[order[after]][order[place]] -= chance
        known = [came[place] for place in places]
        if len(places) > MOST_SOLVED_EXACTLY:
            solved = np.linalg.solve(np.array(matrix, np.float64), np.array(known, np.float64)).tolist()
        else:
            solved = _eliminated(matrix, known)
        return dict(zip(places, solved, strict=True))


def _eliminated(matrix: list[list[Number]], known: list[Number]) -> list[Number]:
    """Solve a system of equations exactly (Gauss and Jordan); the matrix is 1 - chances, so no pivot is 0."""
    rows = [[*row, value] for row, value in zip(matrix, known, strict=True)]
    for at in range(len(rows)):
        pivot = rows[at] = [value / rows[at][at] for value in rows[at]]
        for other, row in enumerate(rows):
            if other != at and row[at]:
                factor = row[at]
                rows[other] = [value - factor * lead for value, lead in zip(row, pivot, strict=True)]
    return [row[-1] for row in rows]
