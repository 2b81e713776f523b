"""Pack requests that move one event at a time, for the compiled search: what is enabled is looked up by context."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fsm_spec import life_cycle
from fsm_spec.checker import properties
from fsm_spec.checker.packed import bits_of, fit_word, model, sentences_of, word_of
from fsm_spec.checker.places import (
    BOUNDS,
    ENABLED_FAULTS,
    ENABLED_SHOWS,
    ENDED,
    HALF,
    RUNNING,
    STIRS,
    WAITING,
    Local,
    Settings,
)
from fsm_spec.decision import ADMISSIONS, RESERVE, admits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fsm_spec.checker.automaton import Values, Way
    from fsm_spec.checker.composition import State
    from fsm_spec.checker.interleaving import Interleaving


class ActionsPacking:
    """Pack requests of an abstract model, which move one event at a time; the arrays are those of `interleaved.py`."""

    def __init__(self, composed: Interleaving, *, symmetry: bool = True) -> None:
        table = composed.table
        self.composed = composed
        self.sentences = sentences_of(table)
        self.shows = list(table.sometimes)
        # The waiting request comes first, so that the start state is the word 0.
        self.values: list[Values] = [*composed.local, ()]
        self.symmetry = symmetry
        self.codes = {values: code for code, values in enumerate(self.values)}
        pool = composed.pool
        settings = Settings(
            requests=composed.requests,
            bits=fit_word(composed.requests, len(self.values), 0),
            page_bits=0,
            symmetry=symmetry,
            abort=composed.abort,
            admission=ADMISSIONS.index(composed.policy.admit),
            pool_pages=pool.pages,
            page_size=pool.page_size,
            grow=composed.grow,
            mixed=1,
            budget=0,
            max_running=composed.policy.max_running,
            ended_code=len(composed.local),
            pool_bit=bits_of([properties.POOL], self.sentences),
            slots_bit=0,
            arrival_faults=0
            if composed.longest <= pool.pages
            else bits_of([properties.FITS], self.sentences),
        )
        self._pages = [composed.pages(values) if values else 0 for values in self.values]
        local = [self._facts(code, values) for code, values in enumerate(self.values)]
        lists, changes = self._lists()
        self.model = model(settings, local, (), ())._replace(lists=lists, options=changes)

    def _facts(self, code: int, values: Values) -> Local:
        lives = bool(values) and self.composed.lives(values)
        status = ENDED if not values else RUNNING if lives else WAITING
        longest, pages = self.composed.longest if values else 0, self._pages[code]
        return Local(status, longest, pages, need=pages | (lives << HALF))

    def _lists(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """List the enabled actions of every local state in every context: free pages, and requests that live.

        Gives rows (free + 1, live, code) of bounds, faults, shows and whether an action other than an abort is enabled;
        and the actions they bound, each the code before xor the code after. More free pages than any action
        asks for are like one more context, one page less than none like the first.
        """
        requests, most = self.composed.requests, self.composed.longest + self.composed.grow
        lists = np.zeros((most + 2, requests + 1, len(self.values), 4), np.int64)
        changes: list[int] = []
        known: dict[tuple[int, ...], int] = {}
        for code, values in enumerate(self.values[:-1]):
            edges = self._edges(code, values)
            for free, live in np.ndindex(most + 2, requests + 1):
                enabled = self._enabled(values, edges, free - 1, live)
                targets = tuple(code ^ edge.target for edge in enabled if not edge.nowhere)
                if targets not in known:
                    known[targets] = len(changes) | ((len(changes) + len(targets)) << HALF)
                    changes += targets
                row = lists[free, live, code]
                row[BOUNDS] = known[targets]
                for edge in enabled:
                    row[ENABLED_FAULTS] |= edge.faults
                    row[ENABLED_SHOWS] |= edge.shows
                    row[STIRS] |= edge.event != life_cycle.ABORT and not edge.nowhere
        return lists.reshape(-1, 4), np.array(changes or [0], np.int64)

    def _edges(self, code: int, values: Values) -> list[_Edge]:
        edges = []
        for name, way in self.composed.events(values):
            ends = self.composed.is_end(name, way)
            target = code if way.lost else len(self.composed.local) if ends else self.codes[way.after]
            faults, shows = bits_of(way.broken, self.sentences), bits_of(way.shown, self.shows)
            if target == code and not way.lost:
                # What leaves a request as it is can repeat for ever.
                faults |= 1 << (len(self.sentences) - 1)
            grows = 0 if way.lost else self.composed.grows(values, name, way)
            edges.append(_Edge(name, target, grows, faults, shows, way.lost, way))
        return edges

    def word(self, state: State) -> int:
        """Pack a state; with symmetry, the requests stand in the order of their codes."""
        fields = [self.codes[entry.columns] for entry in state if entry is not None]
        return word_of(sorted(fields) if self.symmetry else fields, self.model)

    def _enabled(self, values: Values, edges: Sequence[_Edge], free: int, live: int) -> list[_Edge]:
        """Choose the edges that a request may take in a context, as `Interleaving.moves` does."""
        composed = self.composed
        promised, admission = (live + 1) * composed.longest, ADMISSIONS.index(composed.policy.admit)
        enabled = []
        blocked = False
        for edge in edges:
            if not composed.chosen(values, edge.way, live):
                continue
            if edge.event == life_cycle.ADMIT:
                allowed = (
                    promised <= composed.pool.pages
                    if admission == RESERVE
                    else admits(admission, live, 0, edge.grows, promised, composed.grow, free)
                )
            elif edge.event == life_cycle.PREEMPT:
                # Preemption comes after the events: a request gives its pages back only where it is blocked itself.
                allowed = blocked and composed.policy.admit not in ("reserve", "greedy")
            else:
                allowed = edge.event == life_cycle.ABORT or edge.grows <= max(free, 0)
                blocked = blocked or not allowed
            if allowed:
                enabled.append(edge)
        return enabled


class _Edge(NamedTuple):
    """Hold one way an event of a local state goes; `grows` counts pages."""

    event: str
    target: int
    grows: int
    faults: int
    shows: int
    nowhere: bool
    way: Way
