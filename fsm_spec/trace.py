"""Traces: what happened to every request, one JSON record a line, in one form for simulator and executor.

The first line is the header: the spec's text, parameters, policy, pool and the table's digest, so that a trace can be
replayed anywhere; an executor whose acceptance was synthetic adds by which chances. Then come arrivals, plans (one an
iteration) and steps.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsm_spec.policy import Policy, Pool
    from fsm_spec.table import Table

VERSION: Final = 1
STEP_FIELDS: Final = ("round", "request", "event", "args", "transition", "columns", "pages")


def header(table: Table, policy: Policy, pool: Pool, spec_text: str, source: str) -> dict[str, Any]:
    """Give the first record; `source` says which side wrote the trace: simulator or executor."""
    return {
        "trace": VERSION,
        "source": source,
        "digest": table.digest,
        "spec": spec_text,
        "params": dict(table.params),
        "policy": policy.model_dump(mode="json"),
        "pool": pool._asdict(),
    }


class TraceWriter:
    """Write records as JSON Lines; a list instead of a file collects them."""

    def __init__(self, out: IO[str] | list[dict[str, Any]], head: Mapping[str, Any]) -> None:
        self._out = out
        self._write(dict(head))

    def arrive(self, iteration: int, request: int, prompt: int, limit: int) -> None:
        """Record that a request has arrived before an iteration."""
        self._write({"round": iteration, "arrive": request, "prompt": prompt, "limit": limit})

    def plan(self, iteration: int, **decisions: Sequence[Any] | int) -> None:
        """Record the scheduler's decisions of an iteration, by request.

        `tier` is the size of its rounds, `hits` pages that newcomers found, `shared` pages that are counted with an
        older request; each only where there are any.
        """
        self._write({"round": iteration, "plan": decisions})

    def step(
        self,
        iteration: int,
        request: int,
        event: str,
        args: Mapping[str, int],
        transition: int,
        columns: Mapping[str, int],
        pages: int,
    ) -> None:
        """Record one event of one request: its arguments, the transition, columns after, pages owned."""
        values = (iteration, request, event, dict(args), transition, dict(columns), pages)
        self._write(dict(zip(STEP_FIELDS, values, strict=True)))

    def _write(self, record: dict[str, Any]) -> None:
        if isinstance(self._out, list):
            self._out.append(record)
        else:
            self._out.write(json.dumps(record, separators=(",", ":")) + "\n")
