"""Write an abstract model as Promela, the language of the model checker Spin: one process a request, in one pool.

Every row of the table becomes options of a loop, one for each value of its event's arguments and each state it leaves;
an option is one `d_step`, so that the states Spin stores are those of `interleaving.Interleaving`, one to one.
Tables with forwards move by rounds of a scheduler: `promela/rounds.py`. Promela: spinroot.com/spin/Man/promela.html.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsm_spec import life_cycle
from fsm_spec.checker import properties
from fsm_spec.checker.interleaving import Interleaving
from fsm_spec.decision import ADMISSIONS
from fsm_spec.language.expression import TRUE, Const, Expr, Op, interval, substitute, total
from fsm_spec.language.scope import OWNED
from fsm_spec.promela.rounds import rounds
from fsm_spec.promela.steps import Step, Steps
from fsm_spec.promela.text import FALSE, OPERATORS, all_of, any_of, comment, text_of, tidy
from fsm_spec.table import END, WAIT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsm_spec.checker.composition import Composition

# Policies under which a blocked request gives its pages back, as `Interleaving.moves` has it.
_PREEMPTING: Final = [ADMISSIONS.index(name) for name in ("holdback", "preempt")]
_POOL: Final = """\
#define PAGES(slots)  CEIL(slots, {page_size})
/* Whether the pool has the pages that are lacking. */
#define FITS(need)    ((need) <= pages_of[_pid] || used + (need) - pages_of[_pid] <= K)
#define LACKS(need)   (!FITS(need))

#if POLICY == {reserve}
#define MAY_ADMIT(take)  ((live + 1) * LONGEST <= K)
#elif POLICY == {holdback}
#define MAY_ADMIT(take)  (used + (take) + (live > 0 -> GROW : 0) <= K)
#else
#define MAY_ADMIT(take)  (used + (take) <= K)
#endif
"""


class _Writer:
    """Write the model of one composition."""

    def __init__(self, composed: Interleaving) -> None:
        self.composed = composed
        self.table = composed.table
        self.steps = Steps(self.table)
        self.columns = {column.name: f"{column.name}_of[_pid]" for column in self.table.columns}
        self.reads = {**self.columns, OWNED: f"(pages_of[_pid] * {self.table.page_size})"}
        self.lines: list[str] = []

    def text(self) -> str:
        self._head()
        self._process()
        self._liveness()
        return "\n".join(self.lines) + "\n"

    def _put(self, *lines: str) -> None:
        self.lines += lines

    def _head(self) -> None:
        composed, table = self.composed, self.table
        params = ", ".join(f"{name}={value}" for name, value in table.params.items()) or "none"
        self._put(
            comment(f"{table.name}: {composed.requests} requests that share a pool of KV pages, in Promela."),
            comment(f"Exported by fsm-spec from the table {table.digest}."),
            comment(f"Parameters: {params}; {table.page_size} slots a page. Run: scripts/spin FILE."),
            comment("Set K (pages), POLICY and ABORT (1: a client may go away at any round) with -D."),
            comment("Policies: " + ", ".join(f"{code} {name}" for code, name in enumerate(ADMISSIONS)) + "."),
            "",
        )
        defaults = {
            "K": composed.pool.pages,
            "POLICY": ADMISSIONS.index(composed.policy.admit),
            "ABORT": int(composed.abort),
        }
        for name, value in defaults.items():
            self._put(f"#ifndef {name}", f"#define {name} {value}", "#endif")
        self._put(
            "",
            f"#define LONGEST {composed.longest}  {comment('the most pages a request can hold')}",
            f"#define GROW {composed.grow}  {comment('the most pages a round can add')}",
            *(f"#define AT_{state.name} {code}" for code, state in enumerate(table.states)),
            "",
            OPERATORS + pool_text(table.page_size),
        )
        pages = "byte" if composed.pool.pages < 256 else "int"
        n = composed.requests
        self._put(f"byte state_of[{n}] = AT_{WAIT};")
        first = table.new_abstract_request()
        for column in table.columns:
            kind = "byte" if column.max < 256 else "int"
            self._put(f"{kind} {column.name}_of[{n}] = {first[column.name]};")
        self._put(
            f"{pages} pages_of[{n}];",
            f"{pages} used;  {comment('pages that are handed out')}",
            f"byte live;  {comment('requests that are admitted and have not ended')}",
            comment("Values after a step, while it runs; no part of a state."),
            *(f"hidden int new_{name};" for name in ("pages", *self.columns)),
            "",
            f"#define HELD ({' + '.join(f'pages_of[{index}]' for index in range(n))})",
            "",
        )

    def _process(self) -> None:
        self._put(f"active [{self.composed.requests}] proctype Request()", "{", "  do")
        for state in self.table.states:
            for event in self.steps.events(state.name):
                if event.name == life_cycle.PREEMPT:
                    self._put(f"#if {' || '.join(f'POLICY == {code}' for code in _PREEMPTING)}")
                elif event.name == life_cycle.ABORT:
                    self._put("#if ABORT")
                for step in self.steps.steps(state.name, event):
                    self._option(step)
                for condition in self.steps.unhandled(state.name, event):
                    guard = self._conditions(state.name, condition)
                    self._put(
                        f"  {comment(f'{state.name} -{event.name}-> nowhere')}",
                        f"  :: d_step {{ {guard} -> assert(false) {comment(properties.HANDLED)} }}",
                    )
                if event.name in (life_cycle.PREEMPT, life_cycle.ABORT):
                    self._put("#endif")
        # A request that has ended waits for ever where Spin accepts it.
        self._put("  od;", "end:", "  false", "}")

    def _conditions(self, source: str, *parts: Expr | str) -> str:
        texts = [f"state_of[_pid] == AT_{source}"]
        texts += [
            part if isinstance(part, str) else text_of(part, self.columns) for part in parts if part != TRUE
        ]
        return " && ".join(texts)

    def _need(self, step: Step) -> str:
        empty = self._ends(step) or step.slots == Const(0)
        return "0" if empty else f"PAGES({text_of(step.slots, self.columns)})"

    def _ends(self, step: Step) -> bool:
        """Tell whether the request is done: at the end, or back in the state that it must reach."""
        return step.target == END or (step.target == self.table.eventually and step.event != life_cycle.ADMIT)

    def _grows(self, step: Step) -> str:
        """Give the condition on the pool under which a step is enabled."""
        if step.event == life_cycle.ADMIT:
            return f"MAY_ADMIT({self._need(step)})"
        if step.event == life_cycle.PREEMPT:
            return self._blocked(step.source)
        if step.event == life_cycle.ABORT or self._need(step) == "0":
            return ""
        return f"FITS({self._need(step)})"

    def _blocked(self, source: str) -> str:
        """Give the condition under which a request lacks pages for a step of its own."""
        lacking = [
            f"LACKS({self._need(step)})"
            if step.guard == TRUE
            else f"({text_of(step.guard, self.columns)} && LACKS({self._need(step)}))"
            for event in self.steps.events(source)
            if event.name not in life_cycle.EVENTS
            for step in self.steps.steps(source, event)
            if self._need(step) != "0"
        ]
        return f"({' || '.join(dict.fromkeys(lacking))})" if lacking else "false"

    def _option(self, step: Step) -> None:
        args = ", ".join(f"{name} = {value}" for name, value in step.args)
        line = f", line {step.row.line}" if step.row.line else ""
        title = f"{step.source} -{step.event}{f'({args})' if args else ''}-> {step.target}{line}"
        grows = self._grows(step)
        outside = self._outside(step)
        guard = self._conditions(step.source, *((step.guard, grows) if grows else (step.guard,)))
        self._put(f"  {comment(title)}")
        if outside != FALSE:
            past = text_of(outside, self.columns)
            self._put(f"  :: d_step {{ {guard} && {past} -> assert(false) {comment(properties.BOUNDS)} }}")
            guard += f" && !{past}"
        ends = self._ends(step)
        self._put(f"  :: d_step {{ {guard} ->")
        self._put(*(f"       {statement}" for statement in self._statements(step, ends=ends)))
        self._put(f"     }}{' -> break' if ends else ''}")

    def _outside(self, step: Step) -> Expr:
        """Give the condition under which a column leaves its bounds; false where it cannot."""
        most = {column.name: column.max for column in self.table.columns}
        known = self.steps.bounds
        parts = []
        for name, value in step.sets:
            low, high = interval(value, known)
            if low < 0:
                parts.append(substitute(Op("<", (value, Const(0))), {}))
            if high > most[name]:
                parts.append(substitute(Op(">", (value, Const(most[name]))), {}))
        outside = any_of(parts)
        return outside if self.steps.possible(all_of((step.guard, outside))) else FALSE

    def _statements(self, step: Step, *, ends: bool) -> Iterator[str]:
        source = self.table.state(step.source)
        yield f"new_pages = {self._need(step)};"
        for name, value in step.sets:
            yield f"new_{name} = {text_of(value, self.columns)};"
        if not (source.round or source.name == WAIT) and self._need(step) != "0":
            yield f"assert(new_pages <= pages_of[_pid]); {comment(properties.TAKEN)}"
        yield "used = used - pages_of[_pid] + new_pages; pages_of[_pid] = new_pages;"
        for name, _ in step.sets:
            yield f"{self.columns[name]} = new_{name};"
        lived, lives = step.source != WAIT, step.target != WAIT and not ends
        if lived != lives:
            yield "live++;" if lives else "live--;"
        yield f"state_of[_pid] = AT_{END if ends else step.target};"
        yield from self._asserts(step)
        if ends:
            # All requests that have ended are one local state.
            for column in self.columns.values():
                yield f"{column} = 0;"

    def _asserts(self, step: Step) -> Iterator[str]:
        target = self.table.state(step.target)
        if target.round:
            loose = total([target.holding["provisional"], target.holding["scratch"]])
            yield from self._assert(Op("==", (loose, Const(0))), step.target, properties.COMMITTED_ONLY)
        if target.name == self.table.eventually:
            held = total([*target.holding.values()])
            yield from self._assert(Op("==", (held, Const(0))), step.target, properties.RELEASED)
        if not target.built_in:
            for sentence, condition in self.table.always.items():
                yield from self._assert(condition, step.target, sentence)
        yield f"assert(used <= K && used == HELD); {comment(properties.POOL)}"

    def _assert(self, condition: Expr, state: str, sentence: str) -> Iterator[str]:
        known = tidy(self.steps.reads(state, condition, {}))
        if known != TRUE:
            yield f"assert({text_of(known, self.reads)}); {comment(sentence)}"

    def _liveness(self) -> None:
        goal = " && ".join(f"(<> (state_of[{index}] == AT_{END}))" for index in range(self.composed.requests))
        self._put(
            "",
            comment("Every request ends: -DLIVE for spin; no -DSAFETY, and pan -a -f (weak fairness)."),
            "#ifdef LIVE",
            f"ltl every_request_ends {{ {goal} }}",
            "#endif",
        )


def pool_text(page_size: int) -> str:
    """Write the rules of the pool: what fits, and whom each policy admits (`decision.admits`)."""
    return _POOL.format(
        page_size=page_size, reserve=ADMISSIONS.index("reserve"), holdback=ADMISSIONS.index("holdback")
    )


def promela(composed: Composition | Interleaving) -> str:
    """Write a composition in Promela; the states and transitions that Spin counts are those of the compiled search."""
    if isinstance(composed, Interleaving):
        return _Writer(composed).text()
    return rounds(composed)
