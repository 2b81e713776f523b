"""Pack a composition for the compiled search: local states to codes, codes and pages to words, and back.

The local automaton of one request is enumerated with `automaton.py`, so the compiled search and the plain one see the
same ways with the same properties broken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fsm_spec import life_cycle, properties
from fsm_spec.errors import UserError
from fsm_spec.expression import evaluate
from fsm_spec.policy import ADMISSIONS, Policy, Pool, block_rows, fill_slots, longest_pages
from fsm_spec.table import END, PREFILL, WAIT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from fsm_spec.automaton import Automaton, Values, Way

ABSENT, WAITING, PREFILLING, RUNNING, ENDED = 0, 1, 2, 3, 4
WORD_BITS = 63


class Model(NamedTuple):
    """Hold what `compiled.py` reads; arrays of the form of search that is not used are empty."""

    by_rounds: bool
    requests: int
    bits: int
    page_bits: int
    field: Any
    symmetry: bool
    abort: bool
    admission: int
    pool_pages: int
    page_size: int
    grow: int
    mixed: bool
    budget: int
    max_running: int
    ended_code: int
    pool_bit: Any
    slots_bit: Any
    status: NDArray[np.int8]
    longest: NDArray[np.int64]
    # By actions: edges of each code, pages it holds, properties it breaks and shows.
    edges: NDArray[np.int64]
    targets: NDArray[np.uint64]
    kinds: NDArray[np.int8]
    pages: NDArray[np.int64]
    broken: NDArray[np.uint64]
    shown: NDArray[np.uint64]
    # By rounds: what the scheduler reads of each code, and lists of options.
    arrivals: NDArray[np.int64]
    need: NDArray[np.int64]
    left: NDArray[np.int64]
    rows: NDArray[np.int64]
    take: NDArray[np.int64]
    fill: NDArray[np.int64]
    round_options: NDArray[np.int64]
    preempt_options: NDArray[np.int64]
    prefill_options: NDArray[np.int64]
    admit_options: NDArray[np.int64]
    option_start: NDArray[np.int64]
    option_target: NDArray[np.int64]
    option_used: NDArray[np.int64]
    option_broken: NDArray[np.uint64]
    option_shown: NDArray[np.uint64]


class Buffers(NamedTuple):
    """Hold scratch arrays of the compiled search, one element a request."""

    scratch: NDArray[np.uint64]
    codes: NDArray[np.int64]
    owned: NDArray[np.int64]
    queue: NDArray[np.int64]
    queued: NDArray[np.int64]
    running: NDArray[np.bool_]
    pages: NDArray[np.int64]
    need: NDArray[np.int64]
    left: NDArray[np.int64]
    rows: NDArray[np.int64]
    new_pages: NDArray[np.int64]
    actions: NDArray[np.int64]
    tokens: NDArray[np.int64]
    live: NDArray[np.int64]
    admit_tokens: NDArray[np.int64]
    mover: NDArray[np.int64]
    option: NDArray[np.int64]
    option_pages: NDArray[np.int64]
    wheel: NDArray[np.int64]


def buffers(requests: int) -> Buffers:
    """Make scratch arrays for so many requests."""
    shapes = {"queue": (requests, 3)}
    kinds: dict[str, Any] = {"scratch": np.uint64, "running": np.bool_}
    return Buffers(
        *(np.zeros(shapes.get(name, requests), kinds.get(name, np.int64)) for name in Buffers._fields)
    )


def no_arrays() -> dict[str, Any]:
    """Give empty arrays for every array field of a model."""
    kinds = {"status": np.int8, "kinds": np.int8}
    words = {"targets", "broken", "shown", "option_broken", "option_shown"}
    flat = Model._fields[Model._fields.index("status") :]
    arrays: dict[str, Any] = {
        name: np.zeros(0, np.uint64 if name in words else kinds.get(name, np.int64)) for name in flat
    }
    for name in ("prefill_options", "admit_options"):
        arrays[name] = np.zeros((0, 0), np.int64)
    return arrays


def fit_word(requests: int, codes: int, page_bits: int) -> int:
    """Give the bits of a request's field; raises UserError naming the most requests that fit a word."""
    bits = max(1, (codes - 1).bit_length()) + page_bits
    most = min(WORD_BITS // bits, 16)
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
    """Pack requests that move by scheduler rounds: `word_of` and `state_of` translate states of `search.py`."""

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
        # Code 0 is a request that has not arrived, code 1 one that has ended.
        self.values: list[Values] = [(), ()]
        self.codes: dict[Values, int] = {}
        self.sentences = [*properties.built_in(self.table), *self.table.always]
        self.sentences.append(properties.eventually(self.table))
        self.shows = list(self.table.sometimes)
        self._options = _Options()
        self.model = self._model([self._code(values) for values in arrivals], symmetry=symmetry, abort=abort)

    def _code(self, values: Values) -> int:
        if values[0] == self.table.codes[END]:
            return 1
        if values not in self.codes:
            self.codes[values] = len(self.values)
            self.values.append(values)
        return self.codes[values]

    def _bits(self, sentences: Iterable[str], known: Sequence[str]) -> int:
        """Give a bit for each sentence; a sentence may carry details behind the known text."""
        bits = 0
        for sentence in sentences:
            for place, text in enumerate(known):
                if sentence == text or sentence.startswith(f"{text} ("):
                    bits |= 1 << place
        return bits

    def _list(self, ways: Sequence[Way]) -> int:
        """Add a list of options: ways that leave the request alike and use alike slots are one."""
        options = self._options
        merged: dict[tuple[int, int, int], int] = {}
        for way in ways:
            broken = self._bits(way.broken, self.sentences)
            target = -1 if any(text.startswith(properties.HANDLED) for text in way.broken) else self._code(way.after)
            key = (target, way.used, broken)
            merged[key] = merged.get(key, 0) | self._bits(way.shown, self.shows)
        for (target, used, broken), shown in merged.items():
            options.target.append(target)
            options.used.append(used)
            options.broken.append(broken)
            options.shown.append(shown)
        options.start.append(len(options.target))
        return len(options.start) - 2

    def _model(self, arrivals: list[int], *, symmetry: bool, abort: bool) -> Model:
        table, policy, pool = self.table, self.policy, self.pool
        lists: dict[str, list[Any]] = {name: [] for name in ("round", "preempt", "prefill", "admit")}
        local: dict[str, list[int]] = {n: [] for n in ("status", "need", "left", "rows", "take", "fill", "longest")}
        code = 0
        while code < len(self.values):
            self._add_local(code, lists, local)
            code += 1
        widest = 1 + max((len(entry) for name in ("prefill", "admit") for entry in lists[name]), default=0)
        page_bits = max(1, pool.pages.bit_length())
        bits = fit_word(self.requests, len(self.values), page_bits)
        arrays = no_arrays() | {
            name: np.array(values, np.int8 if name == "status" else np.int64) for name, values in local.items()
        }
        for name in ("round", "preempt"):
            arrays[f"{name}_options"] = np.array(lists[name], np.int64)
        for name in ("prefill", "admit"):
            arrays[f"{name}_options"] = np.array([[*entry, *[-1] * (widest - len(entry))] for entry in lists[name]])
        options = self._options
        for name in ("start", "target", "used"):
            arrays[f"option_{name}"] = np.array(getattr(options, name), np.int64)
        for name in ("broken", "shown"):
            arrays[f"option_{name}"] = np.array(getattr(options, name), np.uint64)
        arrays["arrivals"] = np.array(arrivals, np.int64)
        return Model(
            by_rounds=True,
            requests=self.requests,
            bits=bits,
            page_bits=page_bits,
            field=np.uint64((1 << bits) - 1),
            symmetry=symmetry,
            abort=abort,
            admission=ADMISSIONS.index(policy.admit),
            pool_pages=pool.pages,
            page_size=pool.page_size,
            grow=int(pool.pages_of(table.peak)),
            mixed=policy.prefill.mixed,
            budget=policy.prefill.tokens,
            max_running=policy.max_running,
            ended_code=1,
            pool_bit=np.uint64(self._bits([properties.POOL], self.sentences)),
            slots_bit=np.uint64(self._bits([properties.SLOTS], self.sentences)),
            **arrays,
        )

    def _add_local(self, code: int, lists: dict[str, list[Any]], local: dict[str, list[int]]) -> None:
        """Add what the scheduler reads of a local state, and the options it gives a request there."""
        entry = dict.fromkeys(local, 0)
        options: dict[str, Any] = {"round": -1, "preempt": -1, "prefill": [], "admit": []}
        if code < 2:
            entry["status"] = (ABSENT, ENDED)[code]
        else:
            self._add_live(self.values[code], entry, options)
        for name, value in entry.items():
            local[name].append(value)
        for name, value in options.items():
            lists[name].append(value)

    def _add_live(self, values: Values, entry: dict[str, int], options: dict[str, Any]) -> None:
        automaton, table, pool = self.automaton, self.table, self.pool
        columns = automaton.columns(values)
        state = table.states[values[0]]
        fill = fill_slots(table, columns["prompt"], columns["emitted"])
        entry["longest"] = longest_pages(table, pool, columns["prompt"], columns["limit"])
        if state.name == WAIT:
            entry["status"] = WAITING
            if columns["limit"] > columns["emitted"]:
                entry["fill"], entry["take"] = fill, int(pool.pages_of(fill))
            else:
                entry["longest"] = 0
            most = min(entry["fill"], self.policy.prefill.tokens)
            options["admit"] = [self._list(automaton.admit(values, tokens)) for tokens in range(most + 1)]
            return
        options["preempt"] = self._list(automaton.alone(values, life_cycle.PREEMPT))
        if state.name == PREFILL:
            entry["status"], entry["left"] = PREFILLING, fill - columns["kv"]
            most = min(entry["left"], self.policy.prefill.tokens)
            options["prefill"] = [-1, *(self._list(automaton.prefill(values, n)) for n in range(1, most + 1))]
            return
        entry["status"] = RUNNING
        entry["need"] = int(pool.pages_of(columns["kv"] + state.peak))
        entry["rows"] = int(block_rows(table)[values[0]])
        options["round"] = self._list(automaton.round(values))


__all__ = ["Buffers", "Model", "RoundsPacking", "buffers", "evaluate", "fit_word", "no_arrays"]
