"""What a run of `fsm-spec generate` shows: text as it comes, rounds, the trace, and the counts at its end.

The text of one prompt streams, except beside rounds: on a terminal both would share the same lines. Those of several
prompts are printed whole, in the order of the prompts, each under a line that names its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any

from fsm_spec.errors import UserError
from fsm_spec.executor.generate import Result, Session
from fsm_spec.executor.steps import StepView
from fsm_spec.executor.text_stream import NOT_FINITE
from fsm_spec.wording import counted

if TYPE_CHECKING:
    from fsm_spec.executor.command import Run
    from fsm_spec.executor.models.load import LoadedModel
    from fsm_spec.table import Table

# Letters of a prompt that stand in the line above its answer.
_TITLE = 60


class Watch:
    """Follow a session: text to standard output, rounds to standard error, records to the trace file."""

    def __init__(
        self,
        run: Run,
        session: Session,
        numbers: Sequence[int],
        records: list[dict[str, Any]],
        trace_file: IO[str] | None,
    ) -> None:
        self.run = run
        self.session = session
        self.numbers = numbers
        self.records = records
        self.trace_file = trace_file
        self.view = StepView(session.engine.tiers, self._text) if run.steps else None
        self.streams = len(numbers) == 1 and not self.view and not run.as_json
        self._shown = 0

    def follow(self) -> float | None:
        """Run all requests to their end; give the time of the first token."""
        first = None
        if self.view:
            print(self.view.header(), file=sys.stderr)
        try:
            while not all(map(self.session.done, self.numbers)):
                texts = self.session.iterate()
                if first is None and any(self.session.result(number).token_ids for number in self.numbers):
                    first = time.perf_counter()
                if self.streams and texts.get(self.numbers[0]):
                    sys.stdout.write(texts[self.numbers[0]])
                    sys.stdout.flush()
                self._drain()
                self._show(ended=True)
        finally:
            # Also where the run breaks off: what is said next starts a line of its own.
            if self.streams:
                print(flush=True)
            self._show(ended=False)
        return first

    def _show(self, *, ended: bool) -> None:
        """Print the answers whose turn it is: those at their end, or all that there is."""
        if self.streams or self.run.as_json:
            return
        for index in range(self._shown, len(self.numbers)):
            number = self.numbers[index]
            if ended and (self.view or not self.session.done(number)):
                return
            if len(self.numbers) > 1:
                title = " ".join(self.run.prompts[index].split())
                title = title if len(title) <= _TITLE else f"{title[:_TITLE]}..."
                print(f"== {index + 1} of {len(self.numbers)}: {title}")
            print(self.session.result(number).text, flush=True)
            self._shown = index + 1

    def _drain(self) -> None:
        for record in self.records:
            if self.trace_file:
                self.trace_file.write(json.dumps(record, separators=(",", ":")) + "\n")
            line = self.view.line(record) if self.view else None
            if line:
                print(line, file=sys.stderr, flush=True)
        self.records.clear()

    def _text(self, number: int, start: int, stop: int) -> str:
        """Show emitted tokens as text on one line."""
        tokens = self.session.result(number).token_ids[start:stop]
        tokenizer = self.session.tokenizer
        return repr(tokenizer.decode(tokens, skip_special=False)) if tokens and tokenizer else ""


def report(
    run: Run,
    table: Table,
    model: LoadedModel,
    session: Session,
    numbers: Sequence[int],
    measured: dict[str, float | None],
) -> None:
    """Print counts: as one JSON value, a list for several prompts, or as a line on standard error.

    Raises UserError where an answer broke off because the model's logits were no numbers.
    """
    results = [session.result(number) for number in numbers]
    broken = [str(index) for index, number in enumerate(numbers, 1) if session.fault(number)]
    if broken:
        which = f" (prompt {', '.join(broken)})" if len(results) > 1 else ""
        raise UserError(f"{NOT_FINITE}{which}")
    total, seconds = sum(len(result.token_ids) for result in results), measured["seconds"]
    speed = total / seconds if seconds else 0.0
    if run.as_json:
        shared = {
            "spec": table.name,
            "params": dict(table.params),
            "digest": table.digest,
            "model": model.name,
            "dtype": run.dtype,
            "quantization": run.quantization,
            "mask_id": session.mask_id,
            "adapter": model.adapter and str(model.adapter),
            "synthetic": session.synthetic and session.synthetic.describe(),
            "run": {**measured, "tokens_per_s": speed},
        }
        values = [{**asdict(result), **shared} for result in results]
        print(json.dumps(values[0] if len(values) == 1 else values))
    if not run.as_json:
        print(f"{counted(total, 'token')} in {_counts(results)}, {speed:.1f} tok/s", file=sys.stderr)


def _counts(results: Sequence[Result]) -> str:
    """Say the rounds of all answers, their rates, and how they ended."""
    rounds, forwards = (
        sum(result.rounds for result in results),
        sum(result.forwards for result in results),
    )
    # The first token of each answer is the prefill's and counts to no round.
    emitted = sum((result.acceptance_length or 0) * result.rounds for result in results)
    rates = ""
    if rounds and forwards:
        rates = f"acceptance length {emitted / rounds:.2f}, tokens per forward {emitted / forwards:.2f}, "
    reasons = list(dict.fromkeys(result.finish_reason for result in results))
    return f"{counted(rounds, 'round')}, {rates}finish reason {' or '.join(reasons)}"
