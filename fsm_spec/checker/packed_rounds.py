"""Pack requests that move by scheduler rounds, for the compiled search.

The local automaton of one request is enumerated with `automaton.py`, so the compiled search and the plain one see the
same ways with the same properties broken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsm_spec import life_cycle
from fsm_spec.checker import properties
from fsm_spec.checker.automaton import automaton_of
from fsm_spec.checker.lag import HostView
from fsm_spec.checker.packed import Model, bits_of, fit_word, model, sentences_of, word_of
from fsm_spec.checker.places import (
    ABSENT,
    ABSENT_CODE,
    ENDED,
    ENDED_CODE,
    LANDS_ALWAYS,
    LANDS_TO_TAKE,
    LOST,
    PREFILLING,
    RUNNING,
    WAITING,
    Local,
    Settings,
)
from fsm_spec.decision import ADMISSIONS
from fsm_spec.policy import Policy, Pool, block_rows, fill_slots, headroom, longest_pages, most_headroom
from fsm_spec.table import PREFILL, WAIT
from fsm_spec.tiers import tiers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsm_spec.checker.automaton import Automaton, Values, Way
    from fsm_spec.checker.composition import State


@dataclass
class _Options:
    """Collect lists of options; equal lists are not shared, as they are small."""

    start: list[int] = field(default_factory=lambda: [0])
    target: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)


@dataclass
class _Part:
    """Collect facts and lists by code, for one size."""

    automaton: Automaton
    local: list[Local] = field(default_factory=list)
    prefills: list[list[int]] = field(default_factory=list)
    admits: list[list[int]] = field(default_factory=list)


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
        self.tiers = tiers_of(self.table, policy)
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
        # By state of a table, the most slots above kv that a round from there has used.
        self.uses: dict[tuple[int | None, str], int] = {}
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
        return word_of(fields, self.model)

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
        """Enumerate local states from the arrivals on, and write the arrays: one part a size that so many can get."""
        sizes = [self.tiers.table(running) for running in range(self.requests + 1)]
        tables = list(dict.fromkeys(map(id, sizes)))
        parts = [_Part(automaton_of(table, self.automaton)) for table in {id(t): t for t in sizes}.values()]
        while len(parts[0].local) < len(self.values):
            for part in parts:
                self._add(part, len(part.local))
        tiers = [tables.index(id(table)) * len(self.values) for table in sizes]
        local = [facts for part in parts for facts in part.local]
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
            lands=0 if not self.policy.lag else LANDS_TO_TAKE if self.policy.tier is None else LANDS_ALWAYS,
            arrival_faults=bits_of([properties.FITS], self.sentences)
            if any(local[code].longest > self.pool.pages for code in arrivals)
            else 0,
        )
        options = self._options
        columns = (options.target, options.used, options.broken, options.shown)
        return model(
            settings,
            local,
            options.start,
            list(zip(*columns, strict=True)),
            [row for part in parts for row in part.prefills],
            [row for part in parts for row in part.admits],
            arrivals,
            tiers,
        )

    def _add(self, part: _Part, code: int) -> None:
        """Add what is known of a local state under a size."""
        facts, prefill, admit = self._local(part.automaton, code)
        if facts.status in (WAITING, PREFILLING, RUNNING):
            facts = facts._replace(**self._aborted(part.automaton, self.values[code]))
        part.local.append(facts)
        part.prefills.append(prefill)
        part.admits.append(admit)

    def _aborted(self, automaton: Automaton, values: Values) -> dict[str, int]:
        """Say where an abort leads, and what it breaks."""
        if self.view.done(values):
            return {}
        (way,) = automaton.alone(values, life_cycle.ABORT)
        target = LOST if way.lost else self._code(way.after)
        return {"aborted": target, "abort_faults": bits_of(way.broken, self.sentences)}

    def _note_uses(self, automaton: Automaton, values: Values, ways: Sequence[Way]) -> None:
        """Note the slots that the outcomes of a round use, to tell a peak that none of them needs."""
        kv = automaton.columns(values)["kv"]
        key = self.tiers.size(automaton.table), automaton.state_of(values)
        self.uses[key] = max(self.uses.get(key, 0), *(way.used - kv for way in ways))

    def _local(self, automaton: Automaton, code: int) -> tuple[Local, list[int], list[int]]:
        """Give the facts of a local state under a size, and its lists of options by tokens prefilled.

        A running request's round and preemption are in the first places.
        """
        if code in (ABSENT_CODE, ENDED_CODE):
            return Local(status=ABSENT if code == ABSENT_CODE else ENDED), [], []
        table, pool, view = automaton.table, self.pool, self.view
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
            # Ended unseen: whatever is planned for it, it goes; whom the host would preempt it sees first.
            going, preempt = [self._list([(view.dropped(values), ())])], []
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
            ways = automaton.round(values)
            self._note_uses(automaton, values, ways)
            going = [self._list(view.rounds(values, ways))]
        return Local(RUNNING, longest, need=need, rows=rows, sees=self._code(values)), going, preempt
