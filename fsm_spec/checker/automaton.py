"""The local automaton of one request: every way an event or a whole round can go, judged and remembered.

Operator results take every value in their range, and a stop token every place in the run or none. Columns are tuples
in the order of `table.column_names`, so that states of a search are small and hashable. What a scheduler does with
requests is in `composition.py`; the sentences of the properties are in `properties.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from fsm_spec import life_cycle
from fsm_spec.checker import properties
from fsm_spec.errors import UnhandledEvent, UserError
from fsm_spec.language.expression import evaluate
from fsm_spec.oracle import next_event, oracle
from fsm_spec.rules.soundness import shown_params
from fsm_spec.table import END, NO_STOP, STOP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fsm_spec.table import Row, Table

Values = tuple[int, ...]
# Outcomes of one request that are enumerated before its search, in Python: some seconds of it.
MOST_OUTCOMES: Final = 200_000
# The transition of an event that no row, or more than one, would take.
NO_ROW: Final = -1


class Event(NamedTuple):
    """Hold one event of one request: columns before and after, and the transition code."""

    name: str
    args: Mapping[str, int]
    transition: int
    before: Values
    after: Values


class Way(NamedTuple):
    """Hold one way a request can go: where it ends, its events, most slots in use, properties broken or shown.

    A `lost` way leads nowhere: no row takes its last event, or columns left their bounds, or its round never ends.
    `tier` is the size under which it goes, where requests move one event at a time; None without tiers.
    """

    after: Values
    events: tuple[Event, ...]
    used: int
    broken: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    lost: bool = False
    tier: int | None = None


class Automaton:
    """Enumerate what one request of a table can do; every answer is computed once."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.names = table.column_names
        self.judge = properties.Judge(table)
        self._tried = 0
        self._known: dict[tuple[object, ...], tuple[Way, ...]] = {}

    def columns(self, values: Values) -> dict[str, int]:
        """Give the columns by name; what a composition has noted behind them is left out."""
        return dict(zip(self.names, values, strict=False))

    def values(self, columns: Mapping[str, int]) -> Values:
        """Give the columns as a tuple."""
        return tuple(columns[name] for name in self.names)

    def state_of(self, values: Values) -> str:
        """Name the state."""
        return self.table.states[values[0]].name

    def admit(self, values: Values, tokens: int, hit: int = 0) -> tuple[Way, ...]:
        """Admit a waiting request of whose text `hit` tokens have KV, and prefill its next tokens if there are any."""
        return self._cached(("admit", values, tokens, hit), lambda: self._admit(values, tokens, hit))

    def prefill(self, values: Values, tokens: int) -> tuple[Way, ...]:
        """Prefill so many tokens: a chunk, or the last one with the first token."""
        return self._cached(("prefill", values, tokens), lambda: self._prefill(values, tokens))

    def alone(self, values: Values, event: str) -> tuple[Way, ...]:
        """Apply one event in every way it can go."""
        return self._cached((event, values), lambda: _distinct(self._event(values, event, {})))

    def round(self, values: Values) -> tuple[Way, ...]:
        """Run a whole round: from a round state to the next one, or to the end."""
        return self._cached(("round", values), lambda: _distinct(self._round(values)))

    def _cached(self, key: tuple[object, ...], make: Callable[[], tuple[Way, ...]]) -> tuple[Way, ...]:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def _admit(self, values: Values, tokens: int, hit: int) -> tuple[Way, ...]:
        ways = []
        for way in self._event(values, life_cycle.ADMIT, {"hit": hit}):
            if way.lost or not tokens or self.state_of(way.after) == END:
                ways.append(way)
            else:
                ways += [_joined(way, more) for more in self.prefill(way.after, tokens)]
        return _distinct(iter(ways))

    def _prefill(self, values: Values, tokens: int) -> tuple[Way, ...]:
        assert self.table.fill is not None
        columns = self.columns(values)
        if columns["kv"] + tokens < evaluate(self.table.fill, columns):
            return _distinct(self._event(values, life_cycle.CHUNK, {"n": tokens}))
        return _distinct(self._event(values, life_cycle.FIRST, {}))

    def _round(self, values: Values) -> Iterator[Way]:
        """Walk the states inside a round breadth first, so that the shortest way to each end comes first."""
        level = [Way(values, (), 0)]
        met: set[tuple[object, ...]] = {(values, 0, ())}
        while level:
            deeper: list[Way] = []
            for way in level:
                event = next_event(self.table, self.columns(way.after))
                if event is None:
                    yield self._endless(way)
                    continue
                for step in self._event(way.after, event, {}):
                    joined = _joined(way, step)
                    met_as = (joined.after, joined.used, joined.broken)
                    if step.lost or self._is_round_point(step.after):
                        yield joined
                    elif any(step.after == earlier.before for earlier in joined.events):
                        yield self._endless(joined)
                    elif met_as not in met:
                        met.add(met_as)
                        deeper.append(joined)
            level = deeper

    def _endless(self, way: Way) -> Way:
        return way._replace(broken=(*way.broken, properties.eventually(self.table)), lost=True)

    def _is_round_point(self, values: Values) -> bool:
        state = self.table.states[values[0]]
        return state.round or state.built_in

    def _event(self, values: Values, event: str, given: Mapping[str, int]) -> Iterator[Way]:
        columns = self.columns(values)
        known = list(self._arguments(columns, event, given))
        self._tried += len(known)
        if self._tried > MOST_OUTCOMES:
            raise UserError(
                f"{self.table.name} ({shown_params(self.table.params)}): one request alone has more than "
                f"{MOST_OUTCOMES:,} outcomes; check smaller values (--set NAME=VALUE)"
            )
        # A forward ends somehow; an event of an abstract model without a possible argument does not happen.
        for args in known or ([{}] if self.table.contract else []):
            try:
                outcome = oracle(self.table, columns, event, args)
            except UnhandledEvent:
                stays = Event(event, args, NO_ROW, values, values)
                yield Way(values, (stays,), 0, (properties.HANDLED,), lost=True)
                continue
            after = self.values(outcome.columns)
            done = Event(event, args, outcome.transition, values, after)
            broken = self.judge.broken(columns, args, outcome)
            lost = not properties.DEAD_ENDS.isdisjoint(broken)
            shown = () if lost else self.judge.shown(outcome.columns)
            yield Way(after, (done,), self.judge.used(columns, outcome.columns), broken, shown, lost)

    def _arguments(
        self, columns: Mapping[str, int], event: str, given: Mapping[str, int]
    ) -> Iterator[dict[str, int]]:
        """Enumerate the arguments of an event: counts in their ranges, then where the run stops (nowhere first)."""
        plan = self.table.events[event]
        known: list[dict[str, int]] = [dict(given)]
        for arg in plan.args:
            if arg.name not in given:
                known = [
                    {**args, arg.name: value}
                    for args in known
                    for value in self._range(arg.low, arg.high, {**columns, **self.table.codes, **args})
                ]
        for args in known:
            if not plan.emits:
                yield args
                continue
            run = self._run({**columns, **self.table.codes, **args}, event)
            yield {**args, STOP: NO_STOP}
            for stop in range(run):
                yield {**args, STOP: stop}

    @staticmethod
    def _range(low: object, high: object, values: Mapping[str, int]) -> range:
        return range(evaluate(low, values), evaluate(high, values) + 1)  # type: ignore[arg-type]

    def _run(self, values: Mapping[str, int], event: str) -> int:
        """Give the length of the run that would be emitted; 0 where no row fits (the oracle then says so)."""
        state = self.table.states[values["state"]].name
        rows: list[Row] = [row for row in self.table.rows_of(event) if state in row.sources]
        return next((evaluate(row.emit_count, values) for row in rows if evaluate(row.guard, values)), 0)


def automaton_of(table: Table, known: Automaton) -> Automaton:
    """Give the automaton of a table, which is kept with it; `known` is one that exists already."""
    if table is known.table:
        return known
    automaton: Automaton = table.cached("automaton", lambda: Automaton(table))
    return automaton


def _joined(first: Way, then: Way) -> Way:
    # Only the last state of a way is a round point or an end, so that it alone can show anything.
    broken = tuple(dict.fromkeys(first.broken + then.broken))
    return Way(
        then.after, first.events + then.events, max(first.used, then.used), broken, then.shown, then.lost
    )


def _distinct(ways: Iterator[Way]) -> tuple[Way, ...]:
    """Keep the first way to each end."""
    found: dict[tuple[object, ...], Way] = {}
    for way in ways:
        found.setdefault((way.after, way.used, way.broken), way)
    return tuple(found.values())
