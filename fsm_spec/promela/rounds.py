"""Write requests that move by a scheduler's rounds as Promela: one process, one atomic step an iteration.

The local automaton of a request goes in as arrays, the same that the compiled search reads (`packed_rounds.py`), and
the scheduler as a translation of its own source (`promela/scheduler.py`).
Inside an atomic step Spin stores nothing, so that its states and transitions are those of the search, one to one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fsm_spec import decision
from fsm_spec.checker import properties
from fsm_spec.checker.packed_rounds import RoundsPacking
from fsm_spec.checker.places import LANDS_ALWAYS, LANDS_TO_TAKE, Local, Settings
from fsm_spec.promela.iteration import AGAIN, BEGIN, CHOOSE, LAND, OUTCOMES, PREPARE, SETTLED, TIER
from fsm_spec.promela.scheduler import Translation, macro_of
from fsm_spec.promela.text import OPERATORS, comment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fsm_spec.checker.automaton import Values
    from fsm_spec.checker.composition import Composition

# Columns of the scheduler's queue, as this model names them, and the lengths of its lists.
_QUEUE: Final = {"queue": ("queue_take", "queue_longest", "queue_fill")}
_LENGTHS: Final = {"need": "lives", "queue": "waits"}
# What the scheduler reads and writes: an element a live request, or a waiting one.
_LIVE: Final = ("running", "pages", "need", "left", "rows", "owned", "actions", "tokens")
# Facts of a local state that the model reads.
_FACTS: Final = ("status", "longest", "need", "left", "rows", "take", "fill", "sees")


class _Writer:
    """Write the model of one composition."""

    def __init__(self, composed: Composition) -> None:
        self.composed = composed
        self.packing = RoundsPacking(
            composed.automaton,
            composed.policy,
            composed.pool,
            composed.requests,
            composed.arrivals,
            symmetry=False,
            abort=composed.abort,
        )
        self.model = self.packing.model
        self.settings = Settings(*self.model.settings.tolist()[: len(Settings._fields)])
        self.tiered = composed.policy.tier is not None
        self.decide = Translation(decision.decide, "d_", _LENGTHS, _QUEUE)

    def text(self) -> str:
        lines = [*self._head(), *self._arrays(), *self._variables(), *self._process()]
        return "\n".join(lines) + "\n"

    def _head(self) -> Iterator[str]:
        composed, table, settings = self.composed, self.composed.table, self.settings
        params = ", ".join(f"{name}={value}" for name, value in table.params.items()) or "none"
        sizes = [self.packing.automaton.columns(values) for values in composed.arrivals]
        arrivals = ", ".join(f"{each['prompt']}+{each['limit']}" for each in sizes)
        yield comment(f"{table.name}: {composed.requests} requests under a scheduler, in Promela.")
        yield comment(f"Exported by fsm-spec from the table {table.digest}.")
        yield comment(f"Parameters: {params}; prompt + limit of what arrives: {arrivals}.")
        yield comment(
            "Run: scripts/spin FILE. Every atomic step is one move: an arrival, an abort, an iteration."
        )
        yield comment(
            f"Policy {composed.policy.policy}; K (pages) can be set with -D, and ABORT (1: a client may go)."
        )
        yield ""
        for name, value in (("K", settings.pool_pages), ("ABORT", settings.abort)):
            yield from (f"#ifndef {name}", f"#define {name} {value}", "#endif")
        constants = {
            "N": settings.requests,
            "PAGE_SIZE": settings.page_size,
            "BUDGET": settings.budget,
            "PREFILLS_WIDTH": max(1, self.model.prefills.shape[1]),
            "ADMITS_WIDTH": max(1, self.model.admits.shape[1]),
            "d_admission": settings.admission,
            "d_mixed": settings.mixed,
            "d_max_running": settings.max_running,
            "d_grow": settings.grow,
            "d_pool_pages": "K",
        }
        statuses = ("ABSENT", "WAITING", "PREFILLING", "RUNNING", "ENDED")
        for name, constant in (*constants.items(), *((status, code) for code, status in enumerate(statuses))):
            yield f"#define {name} {constant}"
        yield ""
        yield OPERATORS + macro_of(decision.admits)
        yield ""

    def _arrays(self) -> Iterator[str]:
        """Write the local automaton; the arrays are constant, and hidden, so that they are no part of a state."""
        model = self.model
        yield comment(
            "The local automaton: what is known of each local state, by its code; 0 is a request not yet here."
        )
        for code in range(len(self.packing.values)):
            yield f"  {comment(f'{code}: {self._described(code)}')}"
        for name in _FACTS:
            yield _array(f"{name}_at", model.local[:, Local._fields.index(name)].tolist())
        yield comment(
            "What a local state can do: lists of options, by the tokens that are prefilled; 0: it stays."
        )
        if self.tiered:
            yield comment("Sizes: by the requests that run, where the facts and lists of their size begin.")
            places = model.settings[len(Settings._fields) :][: self.settings.requests + 1]
            yield _array("tier_at", places.tolist())
        yield _array("prefills_at", (model.prefills.ravel() + 1).tolist() or [0])
        yield _array("admits_at", (model.admits.ravel() + 1).tolist() or [0])
        yield _array("lists", model.lists.tolist())
        yield comment("Options: local state after, plus 1 (0: none), slots in use, properties broken.")
        yield _array("target_of", (model.options[:, 0] + 1).tolist())
        yield _array("used_of", model.options[:, 1].tolist())
        yield _array("faults_of", model.options[:, 2].tolist())
        yield ""

    def _described(self, code: int) -> str:
        """Say in words what a local state is, and how a late host sees it."""
        if code < 2:
            return ("not yet here", "ended")[code]
        known = self.packing.seen[code]
        seen = f"; seen as {self._columns(known)}" if known else ""
        return self._columns(self.packing.values[code]) + seen

    def _columns(self, values: Values) -> str:
        automaton = self.packing.automaton
        columns = [f"{name} {value}" for name, value in automaton.columns(values).items() if name != "state"]
        return f"{automaton.state_of(values)}: {', '.join(columns)}"

    def _variables(self) -> Iterator[str]:
        yield comment("The state: local states, and pages that each request owns.")
        yield from ("short code_of[N];", "short pages_of[N];")
        yield comment("An iteration under way; all zero between moves.")
        yield from (
            "short list_of[N];",
            "short to_code[N];",
            "short to_pages[N];",
            "short at;",
            "byte who;",
            "bit lost;",
        )
        yield comment("Values inside one step.")
        scalars = (
            "lives",
            "waits",
            "request",
            "place",
            "local_",
            "held",
            "same",
            *(["tier"] if self.tiered else []),
            *(["again", "landed"] if self.settings.lands == LANDS_TO_TAKE else []),
            *self.decide.variables,
            "d_result",
        )
        yield from (f"hidden int {name};" for name in dict.fromkeys((*scalars, "d_promised", "d_budget")))
        arrays = (*(f"d_{name}" for name in _LIVE), "d_admit_tokens", *_QUEUE["queue"])
        yield from (f"hidden int {name}[N];" for name in (*arrays, "live_request", "waiting_request"))
        yield ""

    def _process(self) -> Iterator[str]:
        yield from ("active proctype Scheduler()", "{", "end:", "  do")
        for index in range(self.composed.requests):
            first = f"code_of[{index}] == 0" + (f" && code_of[{index - 1}] != 0" if index else "")
            for code in self.model.arrivals.tolist():
                yield f"  :: d_step {{ {first} -> code_of[{index}] = {code} }} {comment('arrival')}"
        yield "#if ABORT"
        for index in range(self.composed.requests):
            yield from self._abort(index)
        yield "#endif"
        active = " || ".join(f"code_of[{index}] > 1" for index in range(self.composed.requests))
        yield f"  :: atomic {{ {active} ->"
        yield from _indented(self._iteration(), 7)
        yield from ("     }", "  od", "}")

    def _abort(self, index: int) -> Iterator[str]:
        """Let a client go; a late host sees the round in flight first, in which a request may have ended."""
        gone = f"code_of[{index}] = 1; pages_of[{index}] = 0"
        if not self.settings.lands:
            yield f"  :: d_step {{ code_of[{index}] > 1 -> {gone} }} {comment('abort')}"
            return
        yield f"  :: d_step {{ code_of[{index}] > 1 -> {comment('abort')}"
        land = LAND.replace("to_code", "code_of").replace("to_pages", "pages_of")
        yield from _indented([*land.splitlines(), gone, "}"], 7)

    def _decision(self) -> Iterator[str]:
        """Write what leads to a plan: what the host sees, and the scheduler."""
        yield from BEGIN.splitlines()
        lands = self.settings.lands
        if lands == LANDS_ALWAYS:
            yield from LAND.splitlines()
        if lands == LANDS_TO_TAKE:
            yield from ("again = 1; landed = 0;", "do :: again > 0 ->")
        yield from TIER.splitlines() if self.tiered else ()
        yield from self._sized(PREPARE).splitlines()
        yield comment("decision.decide")
        yield from self.decide.statements()
        if lands == LANDS_TO_TAKE:
            yield from AGAIN.format(preempted=decision.PREEMPTED, land=LAND.rstrip("\n;")).splitlines()
            yield from (":: else -> break", "od;")

    def _iteration(self) -> Iterator[str]:
        table = self.composed.table
        yield "d_step {"
        yield from _indented(self._decision(), 2)
        choose = self._sized(CHOOSE).format(
            preempted=decision.PREEMPTED, runs=decision.RUNS, pool=comment(properties.POOL)
        )
        yield from _indented(choose.splitlines(), 2)
        yield "};"
        yield from OUTCOMES.splitlines()
        faults = int(self.model.options[:, 2].max(initial=0))
        for bit, sentence in enumerate(self.packing.sentences):
            if faults >> bit:
                yield f"    assert(!((faults_of[at] >> {bit}) & 1)); {comment(sentence)}"
        settled = SETTLED.replace("{slots}", comment(properties.SLOTS))
        settled = settled.replace("{eventually}", comment(properties.eventually(table)))
        yield from settled.splitlines()

    def _sized(self, text: str) -> str:
        """Let a text read the facts and lists of the size of the round; without tiers there is one size."""
        if self.tiered:
            return text.replace("TIER", "tier +")
        return re.sub(r"\(TIER ([^)]*)\)", r"\1", text).replace("TIER ", "")


def _array(name: str, values: Sequence[int]) -> str:
    return f"hidden int {name}[{len(values)}] = {{ {', '.join(map(str, values))} }};"


def _indented(lines: Iterable[str], width: int) -> Iterator[str]:
    # Lines for the preprocessor and labels may stand anywhere.
    return (f"{' ' * width}{line}" for line in lines)


def rounds(composed: Composition) -> str:
    """Write the composition of a spec with forwards in Promela; its states are those of the compiled search."""
    return _Writer(composed).text()
