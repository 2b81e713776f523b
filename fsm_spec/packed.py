"""Pack a composition for the compiled search: local states to codes, codes and pages to words, and back.

The local automaton of one request is enumerated with `automaton.py`, so the compiled search and the plain one see the
same ways with the same properties broken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from fsm_spec import life_cycle, properties
from fsm_spec.errors import UserError
from fsm_spec.lag import HostView
from fsm_spec.policy import (
    ADMISSIONS,
    RESERVE,
    Policy,
    Pool,
    admits,
    block_rows,
    fill_slots,
    headroom,
    longest_pages,
    most_headroom,
)
from fsm_spec.table import PREFILL, WAIT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from fsm_spec.automaton import Automaton, Values, Way
    from fsm_spec.composition import Interleaving, State
    from fsm_spec.table import Table

# Codes of local states that every packing has: a request that has not arrived, and one that has ended.
ABSENT_CODE, ENDED_CODE = 0, 1
WORD_BITS = 63
MOST_REQUESTS = 16
# Statuses, settings and columns are those that `compiled.py` reads; it is not imported here, as numba is slow to load.
ABSENT, WAITING, PREFILLING, RUNNING, ENDED = 0, 1, 2, 3, 4
# The target of a way that leads nowhere.
LOST: Final = -1
# Two counts in one integer, as `interleaved.py` reads them: the first below this bit, the second above.
HALF: Final = 32


class Model(NamedTuple):
    """Hold the arrays that `compiled.py` reads, in the order of its arguments; all int64."""

    settings: NDArray[np.int64]
    local: NDArray[np.int64]
    lists: NDArray[np.int64]
    options: NDArray[np.int64]
    prefills: NDArray[np.int64]
    admits: NDArray[np.int64]
    arrivals: NDArray[np.int64]
    scratch: NDArray[np.int64]
    queue: NDArray[np.int64]


class Settings(NamedTuple):
    """Hold the settings of a composition, in the order of `compiled.py`."""

    requests: int
    bits: int
    page_bits: int
    symmetry: int
    abort: int
    admission: int
    pool_pages: int
    page_size: int
    grow: int
    mixed: int
    budget: int
    max_running: int
    ended_code: int
    pool_bit: int
    slots_bit: int


class Local(NamedTuple):
    """Hold what is known of a local state, in the order of `compiled.py`."""

    status: int = 0
    longest: int = 0
    pages: int = 0
    need: int = 0
    left: int = 0
    rows: int = 0
    take: int = 0
    fill: int = 0
    # The code of the same request once the host has seen it as it is.
    sees: int = 0


def fit_word(requests: int, codes: int, page_bits: int) -> int:
    """Give the bits of a request's field; raises UserError naming the most requests that fit a word."""
    bits = max(1, (codes - 1).bit_length()) + page_bits
    most = min(WORD_BITS // bits, MOST_REQUESTS)
    if requests > most:
        raise UserError(
            f"{requests} requests of {codes} local states do not pack into one word; "
            f"{most} at most, or smaller parameters"
        )
    return bits


@dataclass
class _Options:
    """Collect lists of options; equal lists are not shared, as they are small."""

    start: list[int] = field(default_factory=lambda: [0])
    target: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)


class RoundsPacking:
    """Pack requests that move by scheduler rounds."""

    def __init__(
        self,
        automaton: Automaton,
        policy: Policy,
        pool: Pool,
        requests: int,
        arrivals: Sequence[Values],
        *,
        symmetry: bool = True,
        abort: bool = True,
    ) -> None:
        self.automaton = automaton
        self.table = automaton.table
        self.policy = policy
        self.pool = pool
        self.requests = requests
        self.symmetry = symmetry
        # Code 0 is a request that has not arrived, code 1 one that has ended.
        self.values: list[Values] = [(), ()]
        # By code, what the host has seen where a lag hides the last round; and codes by both.
        self.seen: list[Values] = [(), ()]
        self.codes: dict[tuple[Values, Values], int] = {}
        self.view = HostView(automaton, policy.lag)
        self.sentences = sentences_of(self.table)
        self.shows = list(self.table.sometimes)
        self._options = _Options()
        self.model = self._model([self._code(values) for values in arrivals], symmetry=symmetry, abort=abort)

    def _code(self, values: Values, seen: Values = ()) -> int:
        if self.view.done(values) and not seen:
            return ENDED_CODE
        key = (values, seen)
        if key not in self.codes:
            self.codes[key] = len(self.values)
            self.values.append(values)
            self.seen.append(seen)
        return self.codes[key]

    def word(self, state: State) -> int:
        """Pack a state; with symmetry, requests that have ended come last."""
        shift = int(self.model.settings[Settings._fields.index("page_bits")])
        fields = []
        for entry in state:
            code = ABSENT_CODE if entry is None else self.codes.get((entry.columns, entry.seen), ENDED_CODE)
            fields.append(code << shift | (entry.pages if entry else 0))
        if self.symmetry:
            ended = ENDED_CODE << shift
            left = [value for value in fields if value != ended]
            fields = [*left, *[ended] * (len(fields) - len(left))]
        return _word(fields, self.model)

    def _list(self, ways: Sequence[tuple[Way, Values]]) -> int:
        """Add a list of options: ways that leave the request alike and use alike slots are one."""
        options = self._options
        merged: dict[tuple[int, int, int], int] = {}
        for way, seen in ways:
            broken = bits_of(way.broken, self.sentences)
            target = LOST if way.lost else self._code(way.after, seen)
            key = (target, way.used, broken)
            merged[key] = merged.get(key, 0) | bits_of(way.shown, self.shows)
        for (target, used, broken), shown in merged.items():
            options.target.append(target)
            options.used.append(used)
            options.broken.append(broken)
            options.shown.append(shown)
        options.start.append(len(options.target))
        return len(options.start) - 2

    def _model(self, arrivals: list[int], *, symmetry: bool, abort: bool) -> Model:
        """Enumerate local states from the arrivals on, and write the arrays."""
        local: list[Local] = []
        prefills: list[list[int]] = []
        admits: list[list[int]] = []
        while len(local) < len(self.values):
            facts, prefill, admit = self._local(len(local))
            local.append(facts)
            prefills.append(prefill)
            admits.append(admit)
        # No request owns more than it may need for a round, however large the pool is.
        most_pages = max((max(each.need, each.take) for each in local), default=0)
        page_bits = max(1, min(self.pool.pages, most_pages).bit_length())
        settings = Settings(
            requests=self.requests,
            bits=fit_word(self.requests, len(self.values), page_bits),
            page_bits=page_bits,
            symmetry=symmetry,
            abort=abort,
            admission=ADMISSIONS.index(self.policy.admit),
            pool_pages=self.pool.pages,
            page_size=self.pool.page_size,
            grow=int(self.pool.pages_of(most_headroom(self.table, self.policy))),
            mixed=self.policy.prefill.mixed,
            budget=self.policy.prefill.tokens,
            max_running=self.policy.max_running,
            ended_code=ENDED_CODE,
            pool_bit=bits_of([properties.POOL], self.sentences),
            slots_bit=bits_of([properties.SLOTS], self.sentences),
        )
        options = self._options
        columns = (options.target, options.used, options.broken, options.shown)
        return model(
            settings, local, options.start, list(zip(*columns, strict=True)), prefills, admits, arrivals
        )

    def _local(self, code: int) -> tuple[Local, list[int], list[int]]:
        """Give the facts of a local state, and its lists of options by tokens prefilled.

        A running request's round and preemption are in the first places.
        """
        if code in (ABSENT_CODE, ENDED_CODE):
            return Local(status=ABSENT if code == ABSENT_CODE else ENDED), [], []
        automaton, table, pool, view = self.automaton, self.table, self.pool, self.view
        values = self.values[code]
        # The scheduler decides by what it sees; what happens starts from what is.
        visible = self.seen[code] or values
        columns = automaton.columns(visible)
        state = table.states[visible[0]]
        fill = fill_slots(table, columns["prompt"], columns["emitted"])
        longest = longest_pages(table, pool, columns["prompt"], columns["limit"], self.policy)
        budget = self.policy.prefill.tokens
        if state.name == WAIT:
            if columns["limit"] <= columns["emitted"]:
                return Local(WAITING), [], [self._list(view.firsts(automaton.admit(values, 0)))]
            facts = Local(WAITING, longest, take=int(pool.pages_of(fill)), fill=fill)
            lists = [
                self._list(view.firsts(automaton.admit(values, n))) for n in range(min(fill, budget) + 1)
            ]
            return facts, [], lists
        if view.done(values):
            # Ended unseen: whatever is planned for it, it goes.
            going = preempt = [self._list([(view.dropped(values), ())])]
        else:
            going = []
            preempt = [self._list([(way, ()) for way in automaton.alone(values, life_cycle.PREEMPT)])]
        if state.name == PREFILL:
            left = fill - columns["kv"]
            lists = [
                self._list(view.firsts(automaton.prefill(values, n))) for n in range(1, min(left, budget) + 1)
            ]
            return Local(PREFILLING, longest, left=left, sees=code), [-1, *lists], preempt
        need = int(pool.pages_of(columns["kv"] + headroom(table, self.policy)[visible[0]]))
        rows = int(block_rows(table)[visible[0]])
        if not view.done(values):
            going = [self._list(view.rounds(values, automaton.round(values)))]
        return Local(RUNNING, longest, need=need, rows=rows, sees=self._code(values)), going, preempt


def model(
    settings: Settings,
    local: Sequence[Local],
    lists: Sequence[int],
    options: Sequence[tuple[int, ...]],
    prefills: Sequence[Sequence[int]] = (),
    admits: Sequence[Sequence[int]] = (),
    arrivals: Sequence[int] = (),
) -> Model:
    """Write the arrays of a composition."""
    return Model(
        np.array(settings, np.int64),
        np.array(local, np.int64),
        np.array(lists, np.int64),
        np.array(options, np.int64),
        _square(prefills),
        _square(admits),
        np.array(arrivals, np.int64),
        np.zeros((_SCRATCH_ROWS, settings.requests), np.int64),
        np.zeros((settings.requests, 3), np.int64),
    )


# Rows of scratch space that `compiled.py` names.
_SCRATCH_ROWS = 17


def _square(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    width = max((len(row) for row in rows), default=0)
    return np.array([[*row, *[-1] * (width - len(row))] for row in rows], np.int64).reshape(len(rows), width)


def sentences_of(table: Table) -> list[str]:
    """List the properties that a move can break; their places are their bits. The last is the liveness property."""
    return [*properties.built_in(table), *table.always, properties.eventually(table)]


def bits_of(sentences: Iterable[str], known: Sequence[str]) -> int:
    """Give the bits of sentences among the known ones."""
    return sum(1 << known.index(sentence) for sentence in set(sentences))


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
                enabled = self._enabled(edges, free - 1, live)
                targets = tuple(code ^ edge.target for edge in enabled if not edge.nowhere)
                if targets not in known:
                    known[targets] = len(changes) | ((len(changes) + len(targets)) << HALF)
                    changes += targets
                row = lists[free, live, code]
                row[0] = known[targets]
                for edge in enabled:
                    row[1] |= edge.faults
                    row[2] |= edge.shows
                    row[3] |= edge.event != life_cycle.ABORT and not edge.nowhere
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
            edges.append(
                _Edge(name, target, self._pages[target] - self._pages[code], faults, shows, way.lost)
            )
        return edges

    def word(self, state: State) -> int:
        """Pack a state; with symmetry, the requests stand in the order of their codes."""
        fields = [self.codes[entry.columns] for entry in state if entry is not None]
        return _word(sorted(fields) if self.symmetry else fields, self.model)

    def _enabled(self, edges: Sequence[_Edge], free: int, live: int) -> list[_Edge]:
        """Choose the edges that a request may take in a context, as `Interleaving.moves` does."""
        composed = self.composed
        promised, admission = (live + 1) * composed.longest, ADMISSIONS.index(composed.policy.admit)
        enabled = []
        blocked = False
        for edge in edges:
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


def _word(fields: Sequence[int], packed: Model) -> int:
    bits = int(packed.settings[Settings._fields.index("bits")])
    return sum(value << (index * bits) for index, value in enumerate(fields))


class _Edge(NamedTuple):
    """Hold one way an event of a local state goes; `grows` counts pages."""

    event: str
    target: int
    grows: int
    faults: int
    shows: int
    nowhere: bool


__all__ = ["ENDED_CODE", "ActionsPacking", "Local", "Model", "RoundsPacking", "Settings", "fit_word", "model"]
