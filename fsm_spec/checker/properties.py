"""The properties that `check` decides: those built into every table, and those a spec writes under `check`.

A `Judge` looks at one event of one request; pages, deadlock and livelock are judged in `search.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fsm_spec import life_cycle
from fsm_spec.errors import UserError
from fsm_spec.language.expression import evaluate
from fsm_spec.language.findings import nearest
from fsm_spec.language.scope import OWNED
from fsm_spec.oracle import holding
from fsm_spec.plan import KINDS
from fsm_spec.table import END, WAIT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsm_spec.oracle import Outcome
    from fsm_spec.table import Row, StatePlan, Table

CONTRACT: Final = {
    "pending": "at every round point kv = prompt + emitted - 1",
    "full": "at every round point kv = prompt + emitted",
    "block": "at every round point kv = prompt + emitted, less the tail of a block in the making",
}
LIMIT: Final = "emitted never passes the limit"
BOUNDS: Final = "every column stays within its bounds"
FINISH: Final = "a request ends by a stop token, its limit or an abort only"
VERIFIED: Final = "only verified rows are committed; provisional and scratch slots do not outlive the round"
ROUND: Final = "a round ends in a round state or at the end"
HANDLED: Final = "every event finds exactly one row"
SLOTS: Final = "every slot in use lies in a page that the request owns"
POOL: Final = "pages are never over-committed: free + held = pool"
RELEASED: Final = "no slot is held where no round or prefill runs"
TAKEN: Final = "pages are taken where a round starts only"
ABORTS: Final = "an abort ends a request"
SHARED: Final = "a page with more than one holder is never written"
FITS: Final = "every request can make progress: an empty pool holds its longest case"
COMMITTED_ONLY: Final = "at a round point only committed slots are held"


# Claims about a single request: states that differ only in who is who are one state, so nobody can be followed.
_SINGLE: Final = re.compile(r"\brequest \d+\b|\bfair(ness|ly)?\b")
# What breaks these leads nowhere: no row says where to, or columns have left the values that a state may have.
DEAD_ENDS: Final = frozenset({HANDLED, BOUNDS, LIMIT})


def eventually(table: Table) -> str:
    """Give the sentence of the liveness property."""
    return f"every request reaches {table.eventually}"


def built_in(table: Table, *, prefix: bool = False) -> tuple[str, ...]:
    """List the built-in properties that apply to a table, and to a pool with a prefix cache."""
    if table.contract is None:
        return (BOUNDS, COMMITTED_ONLY, TAKEN, ABORTS, RELEASED, POOL, FITS, HANDLED)
    return (
        CONTRACT[table.contract],
        LIMIT,
        BOUNDS,
        FINISH,
        ABORTS,
        VERIFIED,
        ROUND,
        SLOTS,
        POOL,
        *([SHARED] if prefix else []),
        FITS,
        RELEASED,
        HANDLED,
    )


def every(table: Table, *, prefix: bool = False) -> tuple[str, ...]:
    """List all properties of a table, in the order of reports."""
    return (*built_in(table, prefix=prefix), *table.always, eventually(table), *table.sometimes)


def choose(table: Table, given: Sequence[str], *, prefix: bool = False) -> frozenset[str]:
    """Give the properties that are meant: all where none is named; a part of a name that only one has will do.

    Raises UserError for a name that none or several have, with the nearest, and for claims about a single request.
    """
    known = every(table, prefix=prefix)
    return frozenset(_meant(table, name, known) for name in given) if given else frozenset(known)


def _meant(table: Table, name: str, known: Sequence[str]) -> str:
    wanted = " ".join(name.split()).casefold()
    if _SINGLE.search(wanted):
        raise UserError(
            f"{name!r} claims something of one request or under fairness, which a search over interchangeable requests "
            f"cannot keep apart; {eventually(table)!r} holds it for each of them, without any fairness"
        )
    exact = [each for each in known if each.casefold() == wanted]
    found = exact or [each for each in known if wanted and wanted in each.casefold()]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"{table.name}: {name!r} is part of several properties: {'; '.join(found)}")
    raise UserError(f"{table.name}: no property is called {name!r}{nearest(name, known)}")


class Judge:
    """Judge single events of one request against a table's properties."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._maxima = {column.name: column.max for column in table.columns}

    def broken(self, before: Mapping[str, int], args: Mapping[str, int], outcome: Outcome) -> tuple[str, ...]:
        """Name the properties that an event breaks."""
        after = outcome.columns
        found = [BOUNDS] if not self._bounded(after) else []
        if outcome.transition >= 0 and self._lives_on(after, self.table.rows[outcome.transition // 2]):
            found.append(ABORTS)
        if self.table.contract is None:
            return tuple(found + self._held(before, after))
        if after["emitted"] > after["limit"]:
            found.append(LIMIT)
        state = self.table.states[after["state"]]
        if self._idles(state, after):
            found.append(RELEASED)
        # No event of a table with a contract is ignored, so that a row was taken.
        found += self._row_faults(before, self.table.rows[outcome.transition // 2], args, outcome)
        if state.round:
            length = after["prompt"] + after["emitted"]
            debt = int(self.table.contract == "pending")
            if self.table.block and not outcome.emitted:
                # A block in the making; one that is emitted is whole, or the text would say it twice.
                debt = length % self.table.block
            if after["kv"] != length - debt:
                found.append(CONTRACT[self.table.contract])
            found += self._unheld(self.table.always, after)
        return tuple(found)

    def _lives_on(self, after: Mapping[str, int], row: Row) -> bool:
        return row.event == life_cycle.ABORT and self.table.states[after["state"]].name != END

    def _idles(self, state: StatePlan, after: Mapping[str, int]) -> bool:
        """Tell whether a request holds slots though it waits or is done; a waiting one has no committed KV either."""
        abstract = self.table.contract is None
        if state.name not in (WAIT, END) and not (abstract and state.name == self.table.eventually):
            return False
        stale = not abstract and state.name == WAIT and after["kv"] > 0
        return stale or any(holding(self.table, after).values())

    def _bounded(self, after: Mapping[str, int]) -> bool:
        if self.table.contract and (
            not 0 <= after["kv"] <= after["prompt"] + after["limit"] or after["emitted"] < 0
        ):
            return False
        return all(0 <= after[name] <= top for name, top in self._maxima.items())

    def _held(self, before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
        """Judge the holding that an abstract model declares; its `always` holds in every state of a request."""
        source, state = (self.table.states[columns["state"]] for columns in (before, after))
        held = {kind: evaluate(state.holding[kind], after) for kind in KINDS}
        found = [COMMITTED_ONLY] if state.round and (held["provisional"] or held["scratch"]) else []
        if self._idles(state, after):
            found.append(RELEASED)
        if not (source.round or source.name == WAIT) and self._pages(after) > self._pages(before):
            found.append(TAKEN)
        if state.built_in:
            return found
        return found + self._unheld(
            self.table.always, {**after, OWNED: self._pages(after) * self.table.page_size}
        )

    def _pages(self, columns: Mapping[str, int]) -> int:
        """Count the pages of the slots that a request of an abstract model holds."""
        return -(-sum(holding(self.table, columns).values()) // self.table.page_size)

    def _unheld(self, conditions: Mapping[str, object], after: Mapping[str, int]) -> list[str]:
        values = {**after, **self.table.codes}
        return [sentence for sentence, value in conditions.items() if not evaluate(value, values)]  # type: ignore[arg-type]

    def _row_faults(
        self, before: Mapping[str, int], row: Row, args: Mapping[str, int], outcome: Outcome
    ) -> list[str]:
        after, cut = outcome.columns, outcome.transition % 2
        target = self.table.states[after["state"]]
        found = []
        if (
            target.name == END
            and not cut
            and row.event not in (life_cycle.ABORT, life_cycle.HALT, life_cycle.ADMIT)
        ):
            found.append(FINISH)
        if not row.built_in and target.built_in and target.name != END:
            found.append(ROUND)
        if self._commits_unverified(before, row, args, after["kv"] - before["kv"]):
            found.append(VERIFIED)
        return found

    def _commits_unverified(
        self, before: Mapping[str, int], row: Row, args: Mapping[str, int], kept: int
    ) -> bool:
        """Tell whether a kept row is scratch, a draft beyond the accepted count, or not where its token stands."""
        source = self.table.states[before["state"]]
        if source.forward is None or row.built_in:
            return False
        plan = self.table.forwards[source.forward]
        values = {**before, **args}
        vouched = sum(args[op.out[0]] + op.root for op in plan.operators if op.judges)
        if row.keep_rows is not None:
            return kept > vouched
        index = first = 0
        stride = row.keep_stride or 1
        for segment in plan.segments:
            count = evaluate(segment.count, values)
            # The rows kept are index * stride; those of this segment are first .. first + count - 1.
            while index < kept and index * stride < first + count:
                place = segment.slot if row.keep_stride is None else segment.at
                if segment.kv == "scratch":
                    return True
                if evaluate(place, values) + index * stride - first != before["kv"] + index:
                    return True
                if segment.kv == "provisional":
                    vouched -= 1
                    if vouched < 0:
                        return True
                index += 1
            first += count
        return kept > index

    def shown(self, after: Mapping[str, int]) -> tuple[str, ...]:
        """Name the `sometimes` properties that hold at a round point or at a request's end."""
        state = self.table.states[after["state"]]
        if not (state.round or state.name == self.table.eventually):
            return ()
        values = {**after, **self.table.codes}
        return tuple(sentence for sentence, value in self.table.sometimes.items() if evaluate(value, values))

    def used(self, before: Mapping[str, int], after: Mapping[str, int]) -> int:
        """Give the slots from 0 that an event's forward writes and what is committed after it."""
        if self.table.contract is None:
            return 0
        most = max(before["kv"], after["kv"])
        source = self.table.states[before["state"]]
        if source.forward is not None:
            for segment in self.table.forwards[source.forward].segments:
                count = evaluate(segment.count, before)
                if count:
                    most = max(most, evaluate(segment.slot, before) + count)
        return most
